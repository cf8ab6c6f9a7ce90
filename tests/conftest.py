"""What holds for all tests: examples take their time, long files begin first, nodes are shared."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from typing_extensions import override
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from sidecar.runtime.lane import is_built
from tests.support.kafka import Broker, KafkaBroker, MakeTopic, unique
from tests.support.postgresql import Database, PostgresqlServer
from tests.support.receiver import Receiver
from tests.support.rocketmq import Node, RocketMqNode
from tests.support.scene import Scene

# Else gRPC runs code of its own in every child before its program begins, and now and then aborts there.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# How daemons read Kafka, see `tests.support.process.on_lane`; `make test-python` says "off".
os.environ.setdefault("SIDECAR_TEST_LANE", "on" if is_built() else "off")

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


SLOW = (
    "test_table_progress", "test_table_types", "test_table_others", "test_rocketmq_grpc", "test_ingest",
    "test_rocketmq_delayed", "test_table_layout", "test_delayed", "test_run_tables", "test_delay_postgresql",
    "test_delayed_kills", "test_rewinds", "test_rocketmq_nodes", "test_delayed_restarts", "test_demo",
    "test_delay_cancels_killed", "test_zone_killed", "test_rocketmq_clients", "test_log_lines", "test_run_kills",
    "test_health", "test_library", "test_kills", "test_rocketmq_cluster", "test_changelog", "test_run_engines",
    "test_members", "test_parked", "test_rocketmq_packed", "test_leaders", "test_run_pushdown", "test_sessions",
    "test_rocketmq_broker", "test_rocketmq", "test_compose", "test_tables", "test_rocketmq_native", "test_source",
    "test_ledger", "test_faults", "test_memory", "test_exactly_once", "test_rocketmq_access", "test_rocketmq_4",
    "test_rocketmq_flows", "test_rocketmq_letters", "test_rocketmq_origins", "test_rocketmq_resets",
    "test_run_crashes", "test_run_broker", "test_topics", "test_security", "test_ids", "test_dead_letters_topic",
    "test_query_rocketmq", "test_query_source", "test_receivers", "test_tutorial", "test_page", "test_lane_assigned",
    "test_lane_sanitized", "test_run_ledger", "test_run_rocketmq", "test_listener", "test_merge",
    "test_delay_offline", "test_rocketmq_offsets", "test_sources", "test_delay_clocks", "test_rocketmq_source",
    "test_run_lane", "test_reload", "test_delay_commands", "test_dead_letters", "test_dead_letters_produced",
    "test_rocketmq_dead_letters", "test_broker", "test_delay_cancels", "test_run_gaps",
)  # fmt: skip
"""These files are marked `slow`. They begin in this order: at the end no process is left alone with a long one."""
OUTSIDE = {"integration", "spark", "conformance"}
"""Folders that have such files."""
SHARED = ("spark: SparkSession", "rocketmq: Node")
"""Parameters of tests for what a process of pytest has once, and is dear to start, to warm up or to leave idle."""


@pytest.fixture(autouse=True)
def logging_untouched() -> Iterator[None]:
    """What a test does to the logging of the process ends with it."""
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark and order what is in `SLOW`; what shares, and the simulator's long files, come before all others."""
    for item in items:
        if _place(item.path) < len(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: (_rank(item.path), _place(item.path)))


def _place(path: Path) -> int:
    return SLOW.index(path.stem) if path.stem in SLOW and path.parent.name in OUTSIDE else len(SLOW)


def _rank(path: Path) -> int:
    shared = _shared(path)
    return SHARED.index(shared) if shared else len(SHARED) + (path.parent.name != "simulation")


@functools.cache
def _shared(path: Path) -> str:
    text = path.read_text()
    return next((parameter for parameter in SHARED if parameter in text), "")


class SharingFiles(LoadFileScheduling):  # type: ignore[misc]
    """Gives files to workers, all that share the same to one."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return _shared(self.config.rootpath / file) or file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Use it for `--dist loadfile`."""
    return SharingFiles(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the broker said, when a test failed that uses it."""
    report = yield
    broker: Any = getattr(item, "funcargs", {}).get("kafka")
    if report.failed and isinstance(broker, KafkaBroker):
        report.sections.append(("broker", broker.log_tail()))
    return report


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that tests share: the one `SIDECAR_TEST_KAFKA` names, or one started here."""
    named = os.environ.get("SIDECAR_TEST_KAFKA")
    if named:
        yield Broker(named)
        return
    with KafkaBroker(tmp_path_factory.mktemp("kafka") / "broker") as broker:
        yield broker


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The RocketMQ node that tests share: the one `SIDECAR_TEST_ROCKETMQ` names, or one started here."""
    named = os.environ.get("SIDECAR_TEST_ROCKETMQ")
    if named:
        yield Node(named)
        return
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", tls=True) as node:
        yield node


@pytest.fixture
def make_topic(kafka: Broker) -> MakeTopic:
    """Makes topics of the shared broker: `make_topic(partitions, config, name=…)` gives the unique name back."""

    def make(partitions: int = 1, config: Mapping[str, str] | None = None, *, name: str = "topic") -> str:
        return kafka.create_topic(unique(name), partitions, config)

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition that no other test uses."""
    return make_topic()


@pytest.fixture
def group() -> str:
    """The name of a consumer group that no other test uses."""
    return unique("group")


@pytest.fixture
def scene(kafka: Broker, topic: str, group: str, tmp_path: Path) -> Iterator[Scene]:
    """A topic of one partition and a receiver that remembers names; some files have a scene of their own."""
    with Receiver() as receiver:
        yield Scene(kafka, tmp_path, receiver, topic, group)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Database]:
    """The PostgreSQL that tests share: the one whose URL `SIDECAR_TEST_POSTGRESQL` holds, or one started here."""
    named = os.environ.get("SIDECAR_TEST_POSTGRESQL")
    if named:
        yield Database(named)
        return
    with PostgresqlServer() as server:
        yield server
