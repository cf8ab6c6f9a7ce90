# What a person types: demo, test, test-all, lint, bench, prove, chaos. Everything is set up at its first use: `.venv`, `.cache`.

PYTHON ?= python3
# `make wheels` tries them with these.
PYTHONS ?= $(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
# On two cores: a test with brokers and daemons waits for half of its time, one of the core does not.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# How long the soak of `make chaos` lasts.
HOURS ?= 1
# Images of Python often forbid byte code, and each process that a test starts would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# The stamps stand for the environment's packages, and for all of it: gone or older than what it is made from, it is made again.
PACKAGES := $(VENV)/packages
INSTALLED := $(VENV)/installed

KAFKA := admin alerts broker dead_letters exactly_once exits explain faults health http_sink ids kills leaders log_lines members \
	memory offsets reload rewinds security tap topics traps
kafka = $(foreach name,$(1),tests/integration/test_$(name).py)
# The tests that take every branch of the core. Coverage makes a test take half as long again: the others run without it.
CORE := tests/unit/core tests/unit/daemon tests/unit/runtime tests/unit/test_threaded.py tests/simulation \
	$(foreach name,core_properties range_claims range_parts stored_bytes tag_masks,tests/property/test_$(name).py)

.DEFAULT_GOAL := help
.PHONY: help fastlane wheels test test-core test-others test-all test-python lint format docs demo examples first-hour bench bench-spark bench-rocketmq prove prove-spark prove-rocketmq chaos jars clean

help:
	@echo "make demo    show the daemon at work on generated messages, and the books at the end; SINK=http skips Spark; SOURCE=rocketmq"
	@echo "make test    lint and the quick tests, some against real brokers, Spark and PostgreSQL: 8 minutes on two cores"
	@echo "make test-all   make test, then the slow tests: 37 minutes"
	@echo "make test-python   the tests of daemons that read Kafka, without the fast lane: 10 minutes"
	@echo "make lint    ruff and mypy"
	@echo "make format  fix what ruff can fix, and format"
	@echo "make docs    generate the tables of keys in docs/ from sidecar/config, and the manual page from sidecar/cli; build the site in build/site"
	@echo "make examples   run the receivers in examples/ that are built with npm, go and Maven, and kill them"
	@echo "make fastlane   compile the fast lane for Kafka, if there is a C compiler, and install it"
	@echo "make wheels   build the wheels in dist/, the fast lane's for x86-64 and aarch64, and try them; PYTHONS='python3.11 python3.13'"
	@echo "make first-hour   do the tutorial from an empty environment, and tell what each step takes"
	@echo "make bench   measure the cost of a message against a bare consumer loop, of the ledger, and of delayed messages"
	@echo "make bench-spark   measure a row of the zone and a message of the pipeline on Spark, against Spark's own sources"
	@echo "make bench-rocketmq   measure a message of RocketMQ against a bare pull loop and other consumers, and idle queues"
	@echo "make prove   run the checks with larger numbers; writes docs/proof.md"
	@echo "make prove-spark   the same for Spark: kills of zone writers, jobs and executors; both engines compared"
	@echo "make prove-rocketmq   the same for RocketMQ: kills, outages, retried messages, members"
	@echo "make chaos   random kills, rebalances and outages, and a soak under all of them: HOURS=1"

# Beside each other: the jars take two minutes at their first use, mypy one, and tests of the core the time in which others wait.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 3 lint test-core test-others

test-core: $(INSTALLED)
	@nice $(PYTEST) -n 2 -m "not slow" $(CORE) --cov=sidecar.core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

test-others: jars
	@$(PYTEST) --no-loadscope-reorder -m "not slow and not proof" tests $(addprefix --ignore=,$(CORE))

# Only the folders that have slow tests: to collect all takes each worker 10 s more.
test-all: test
	@$(PYTEST) --no-loadscope-reorder -m "slow and not proof" $(addprefix tests/,conformance integration simulation spark)
	@SIDECAR_TEST_LANE=off $(PYTEST) -m "not proof" $(call kafka,kills members exactly_once)

# Daemons read Kafka in C, where a compiler is; here they do not.
test-python: $(INSTALLED) jars
	@SIDECAR_TEST_LANE=off $(PYTEST) $(call kafka,$(KAFKA))

fastlane: $(PACKAGES)
	@$(BIN)/python fastlane/build_lane.py
	@test ! -f fastlane/sidecar_fastlane/libfastlane.so || $(PIP) --no-build-isolation --no-deps -e fastlane

wheels: $(INSTALLED)
	@PIP_CONSTRAINT=constraints.txt $(PIP) -e '.[wheels]'
	@$(BIN)/python fastlane/build_wheels.py dist $(PYTHONS)

lint: $(INSTALLED)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --strict --no-error-summary

format: $(INSTALLED)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

docs: $(INSTALLED)
	@$(BIN)/python -m sidecar.config.reference
	@$(BIN)/python -m sidecar.cli.shared.manual
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

demo: $(INSTALLED)
	@$(BIN)/sidecar demo $(addprefix --sink ,$(SINK)) $(addprefix --source ,$(SOURCE))

examples: $(INSTALLED) jars
	@$(BIN)/python -m pytest tests/integration/test_receivers.py

first-hour: $(INSTALLED) jars
	@$(BIN)/python -m tests.scenarios.tutorial

bench: $(INSTALLED) jars
	@$(BIN)/python -m benchmarks.throughput
	@$(BIN)/python -m benchmarks.tags
	@$(BIN)/python -m benchmarks.ledger
	@$(BIN)/python -m benchmarks.delay
	@$(BIN)/python -m benchmarks.delay_restart
	@$(BIN)/python -m benchmarks.delay_restore
	@$(BIN)/python -m benchmarks.delay_cancels
	@$(BIN)/python -m benchmarks.delay_postgresql
	@$(BIN)/python -m benchmarks.delay_lateness

bench-spark: $(INSTALLED) jars
	@$(BIN)/python -m benchmarks.spark_zone
	@$(BIN)/python -m benchmarks.spark_pipeline
	@$(BIN)/python -m benchmarks.spark_source
	@$(BIN)/python -m benchmarks.spark_tables

bench-rocketmq: $(INSTALLED) jars
	@$(BIN)/python -m benchmarks.rocketmq
	@$(BIN)/python -m benchmarks.rocketmq_idle

prove: $(INSTALLED) jars
	@$(BIN)/python -m tests.prove

prove-rocketmq: $(INSTALLED) jars
	@$(BIN)/python -m tests.prove rocketmq

chaos: $(INSTALLED) jars
	@$(BIN)/python -m tests.prove kills kills-by-group kills-no-state members outages \
		delayed-kills delayed-requests delayed-cancels delayed-takeovers delayed-zombies delayed-outages \
		delayed-postgresql delayed-postgresql-members
	@$(BIN)/python -m tests.prove --scale $(HOURS) soak

prove-spark: $(INSTALLED) jars
	@$(BIN)/python -m tests.prove spark

jars: $(INSTALLED)
	@$(BIN)/python -m tests.support.jars

clean:
	rm -rf $(VENV) .cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

# The fast lane for Kafka too, where there is a C compiler.
$(INSTALLED): $(PACKAGES) fastlane/build_lane.py fastlane/pyproject.toml $(wildcard fastlane/src/* fastlane/sidecar_fastlane/*.py)
	@$(MAKE) --no-print-directory fastlane
	@touch $@

$(PACKAGES): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed: $(PYTHON) is older or missing (choose one: make PYTHON=python3.12 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments; install that with: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT=constraints.txt $(PIP) hatchling editables -e '.[dev,spark,delta]'
	@touch $@
