"""`make prove`, `prove-spark`, `prove-rocketmq`: the scenarios of `make test` at larger numbers, and docs/proof.md.

`python -m tests.prove` runs those of the daemon, `python -m tests.prove spark` those that need Spark, `python -m
tests.prove rocketmq` those on RocketMQ, with names those; each check that ran has its rows in the file replaced.
`--scale 0.1` makes everything smaller, and prints the rows alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import memory
from tests.scenarios import delayed_proof as delayed
from tests.scenarios import exactly_once as once
from tests.scenarios import (
    health,
    ids,
    kills,
    ledger,
    library,
    members,
    reloads,
    rewinds,
    rocketmq,
    soak,
    tables,
    upgrade,
)
from tests.scenarios import lane as both_ways
from tests.scenarios import rocketmq_resets as resets
from tests.simulation import run as simulation
from tests.support import rocketmq_flow as flows
from tests.support.audit import Finding
from tests.support.jars import ROOT
from tests.support.kafka import KafkaBroker
from tests.support.postgresql import PostgresqlServer
from tests.support.rocketmq import RocketMqNode
from tests.support.rocketmq_brokers import promoted, read_from_slave, rebalances
from tests.support.rocketmq_fifo import fifo_kills, fifo_refused
from tests.support.rocketmq_made_again import every_round, kept_offsets, made_again
from tests.support.rocketmq_proxies import held_for_long, restarts
from tests.support.rocketmq_trio import clock, name_servers, transactions

PROOF = ROOT / "docs" / "proof.md"
READERS = ("connector", "client")
"""Who reads Kafka on Spark."""
SIMULATED = {
    "leased": "messages handed over one by one (`client: grpc`, `native`)",
    "leased-2": "the same with two members, where a message may come twice",
    "leased-ledger": "the same with two members and a ledger",
    "leased-remade": "the same with topics made again",
    "fifo": "FIFO queues of `client: grpc`, in order",
    "remoting": "ranges of offsets of `client: remoting`: resets, topics made again, killed brokers, clocks",
}
"""Kinds of `tests.simulation.run`, and what they are."""
WITH_PROXY = ("rocketmq-native", "rocketmq-made-again", "rocketmq-transactions", "rocketmq-clocks")
HEAD = ("point", "how often", "messages", "lost", "twice", "seconds", "what else", "command")

HEADING = """\
# Proof

This page is written by `make prove`, `make prove-spark` and `make prove-rocketmq` (last on {about}). They run the
checks of `make test-all` with larger numbers, on real Apache Kafka 4.2, Apache Spark 4.2 and Apache RocketMQ 5.5.
Each check counts what arrives at the receiver or in the table, row by row, and compares it with what was produced. A
check fails if a message was lost, or arrived twice although that was not promised. With a receiver that does not
remember names, *twice* counts the repeats that promise 4 allows. If the daemon was ended, *delivers again* is the
time from the start of its process to the first new row at the receiver. For the simulator, *lost* and *twice* count
schedules.
"""

Check = Callable[[Any, Path], list[Finding]]
"""Takes a Kafka broker, or a RocketMQ node where its name says so."""


@dataclass
class Sizes:
    """The large numbers, made smaller by a factor."""

    scale: float = 1.0

    def __call__(self, large: int, least: int = 1) -> int:
        """`large` times the scale, at least `least`."""
        return max(least, round(large * self.scale))


def daemon_checks(n: Sizes) -> dict[str, Check]:
    """Those of `make prove`."""
    messages, ends = n(500_000, 20_000), n(20, 3)

    def flows(broker: KafkaBroker, folder: Path) -> list[Finding]:
        return [
            once.flow(broker, folder, messages),
            once.flow(broker, folder, messages, by="group"),
            once.flow(broker, folder, messages, form="ndjson", by="group"),
            once.flow(broker, folder, messages, ids=True),
        ]

    def ended(**how: object) -> Check:
        return lambda broker, folder: [kills.kills(broker, folder, messages, ends, **how)]  # type: ignore[arg-type]

    def without_state(broker: KafkaBroker, folder: Path) -> list[Finding]:
        run = partial(kills.kills, broker, folder, messages, ends, delete_state=True)
        return [run(by="partition"), run(by="group")]

    def many_groups(broker: KafkaBroker, folder: Path) -> list[Finding]:
        run = partial(kills.kills, broker, folder, n(100_000, 12_000), ends, tags=300)
        return [run(by="partition"), run(by="group")]

    def come_and_go(broker: KafkaBroker, folder: Path) -> list[Finding]:
        return [members.members(broker, folder, count, n(300, 20)) for count in (2, 3)]

    def come_and_go_by_group(broker: KafkaBroker, folder: Path) -> list[Finding]:
        return [members.members(broker, folder, 3, n(300, 20), by="group", seed=2)]

    def outages(broker: KafkaBroker, folder: Path) -> list[Finding]:
        return [kills.outage(broker, folder, n(100_000, 20_000), kind, times=n(5)) for kind in ("killed", "frozen")]

    def killed_tables(broker: KafkaBroker, folder: Path) -> list[Finding]:
        return [tables.killed(broker, folder, n(200_000, 10_000), ends, kind) for kind in tables.TARGETS]

    def twins(broker: KafkaBroker, folder: Path) -> list[Finding]:
        with PostgresqlServer() as database:
            return [ledger.twins(broker, folder, database, n(200_000, 10_000), n(20, 2))]

    return {
        "flow": flows,
        "poison": lambda broker, folder: [once.poison(broker, folder, times=ends)],
        "split": lambda broker, folder: [once.split_killed(broker, folder, kills=ends)],
        "kills": ended(),
        "kills-by-group": ended(by="group"),
        "kills-forgetful": ended(remember=False),
        "kills-no-state": without_state,
        "sigterm": ended(how="SIGTERM", remember=False),
        "many-groups": many_groups,
        "members": come_and_go,
        "members-by-group": come_and_go_by_group,
        "upgrade": lambda broker, folder: [
            upgrade.upgrades(broker, _made(folder / by), n(4, 2), by=by) for by in ("partition", "group")
        ],
        "outages": outages,
        "rewinds": lambda broker, folder: rewinds.rewinds(broker, folder, n(5)),
        "ids": lambda broker, folder: [ids.restored(broker, folder, n(30_000_000, 1_000_000), n(200_000, 2_000))],
        "ids-lane": lambda broker, folder: [ids.switched(broker, folder, n(300_000, 20_000), n(50, 4))],
        "health": lambda broker, folder: [health.outages(broker, folder, n(5))],
        "soak": lambda broker, folder: [soak.soak(broker, folder, n.scale)],
        "library": lambda broker, folder: [library.kills(broker, folder, n(20, 2))],
        "memory": partial(held, n(64, 32) * memory.MIB),
        "tables": killed_tables,
        "ledger": twins,
        **delayed.checks(n),
        "reloads": lambda broker, folder: [
            reloads.reloads(broker, folder, n(200, 10), n(20, 2)),
            reloads.reloads_killed(broker, folder, n(50, 3)),
        ],
        "lane": lambda broker, folder: [both_ways.compared(broker, folder, n(160, 8), n(20_000, 2_000))],
        "lane-sanitized": lambda broker, folder: [
            both_ways.compared(broker, folder, n(160, 8), n(20_000, 2_000), sanitized=True, seed=1_001)
        ],
        "receivers": partial(suite, "a receiver that misbehaves in every way", "integration/test_faults.py"),
        "threads": partial(
            suite,
            "a failure in each thread by name; a state folder of another user",
            "integration/test_threads.py integration/test_foreign_state.py",
        ),
        "topics": partial(suite, "topics made again, resets, expired offsets", "integration/test_topics.py"),
        "security": partial(suite, "TLS and SASL against a broker that demands them", "integration/test_security.py"),
        "twins": partial(suite, "twins of tests of the suite", "integration conformance", mark="proof"),
        "simulator": partial(simulated, n(1_000_000, 1_000)),
        "simulator-ledger": partial(simulated, n(200_000, 1_000), ledger=True),
        "simulator-lane": partial(
            simulated_kinds, {"lane": "runs that sort themselves, as in the fast lane"}, n(100_000, 300)
        ),
        "simulator-leased": partial(simulated_kinds, SIMULATED, n(20_000, 50)),
        "simulator-delayed": partial(simulated_kinds, delayed.SIMULATED, delayed.schedules(n)),
    }


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def spark_checks(n: Sizes) -> dict[str, Check]:
    """Those of `make prove-spark`; a check imports its test when it runs, so that `make prove` needs no Spark."""

    def engines(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_engines import engines

        return [engines(broker, _made(folder / one), n(200_000, 20_000), reader=one) for one in READERS]

    def drivers(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_kills import drivers

        return [drivers(broker, _made(folder / one), n(200_000, 20_000), n(10), reader=one) for one in READERS]

    def executors(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_kills import executors

        return [executors(broker, _made(folder / one), n(200_000, 20_000), n(10), reader=one) for one in READERS]

    def two_hosts(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_kills import hosts

        return [hosts(broker, _made(folder / one), n(200_000, 20_000), n(10, 2), reader=one) for one in READERS]

    def copies(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_kills import copies

        return [copies(broker, _made(folder / one), n(60_000, 20_000), reader=one) for one in READERS]

    def into_tables(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_tables import killed

        return [
            killed(broker, _made(folder / "parquet"), n(1_000_000, 20_000), n(10, 2), "parquet"),
            killed(broker, _made(folder / "delta"), n(1_000_000, 20_000), n(10, 2), "delta"),
            killed(broker, _made(folder / "deltalake"), n(200_000, 20_000), n(10, 2), "deltalake"),
        ]

    def kept_tables(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_tables import killed

        return [
            killed(broker, _made(folder / kind), n(200_000, 20_000), n(5, 2), kind, kept=True)
            for kind in ("delta", "deltalake")
        ]

    def resumed(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_tables import resumed

        return [
            resumed(broker, _made(folder / kind), n(60_000, 20_000), n(3, 1), kind) for kind in ("delta", "deltalake")
        ]

    def merged(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_merge import killed

        changes, keys, kills = n(1_000_000, 20_000), n(100_000, 2_000), n(5, 2)
        return [
            killed(broker, _made(folder / "delta"), changes, keys, kills),
            killed(broker, _made(folder / "deltalake"), n(200_000, 20_000), n(20_000, 2_000), kills, "deltalake"),
        ]

    def shared(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios import spark_ledger as keys

        with PostgresqlServer() as database:
            run = [keys.drivers, keys.executors]
            return [one(broker, _made(folder / one.__name__), database, n(50_000, 6_000), n(5, 1)) for one in run]

    def zone(_: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios import spark_zone as zone

        return [
            zone.killed(folder, n(200_000, 10_000), n(10, 2), max_rows=n(5_000, 1_000)),
            zone.damaged(folder / "damaged", n(1_000, 50), n(100, 5)),
            zone.polled(n(50_000, 1_000)),
        ]

    def zone_on_s3(_: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_zone import killed_on_s3

        return [killed_on_s3(folder, n(20_000, 5_000), n(5, 1), max_rows=n(3_000, 1_000))]

    def ingested_on_s3(_: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_s3 import killed

        return [killed(folder, n(20_000, 5_000), n(5, 1))]

    def query(broker: KafkaBroker, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_query import drivers

        return [drivers(broker, folder, n(1_000_000, 20_000), n(10, 3))]

    return {
        "spark-zone": zone,
        "zone-s3": zone_on_s3,
        "ingest-s3": ingested_on_s3,
        "spark-query": query,
        "spark-engines": engines,
        "spark-drivers": drivers,
        "spark-executors": executors,
        "spark-two-hosts": two_hosts,
        "spark-copies": copies,
        "spark-tables": into_tables,
        "spark-tables-kept": kept_tables,
        "spark-tables-resumed": resumed,
        "spark-merge": merged,
        "spark-ledger": shared,
        "spark-tests": partial(suite, "tests on Spark with several JVMs", "spark", mark="proof"),
    }


def rocketmq_checks(n: Sizes) -> dict[str, Check]:
    """Those of `make prove-rocketmq`, on a node of their own: `rocketmq-` and the client, and what is done to it."""
    messages, share, ends = n(200_000, 8_000), n(5_000, 100), n(20, 3)

    def kills(node: Any, folder: Path) -> list[Finding]:
        return [rocketmq.kills(node, folder, messages, ends)]

    def outages(node: Any, folder: Path) -> list[Finding]:
        return [
            rocketmq.broker_killed(node, folder, n(20_000, 4_000), n(5)),
            rocketmq.name_server_away(node, folder, n(20_000, 4_000), n(60, 10)),
        ]

    def spark_query(node: Any, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_query import rocketmq_drivers

        return [rocketmq_drivers(node, folder, n(100_000, 20_000), n(10, 3))]

    def spark_run(node: Any, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_rocketmq import drivers

        return [drivers(node, folder, n(30_000, 6_000), n(10, 2))]

    def spark_executors(node: Any, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_rocketmq import executors

        return [executors(node, folder, n(20_000, 6_000), n(5, 1))]

    def spark_tables(kind: Any, node: Any, folder: Path) -> list[Finding]:
        from tests.scenarios.spark_tables import rocketmq_killed

        return [rocketmq_killed(node, folder, n(1_000_000, 6_000), n(10, 2), kind)]

    remoting, grpc, native = (partial(flows.source_of, client) for client in ("remoting", "grpc", "native"))

    def twins(node: Any, folder: Path, source: dict[str, str]) -> list[Finding]:
        with PostgresqlServer() as database:
            return [ledger.handed_twins(node, source, folder, database, n(20_000, 4_000), n(10, 2))]

    return {
        "rocketmq-remoting": lambda node, folder: [rocketmq.flow(node, folder, messages, giants=2_000)],
        "rocketmq-remoting-kills": kills,
        "rocketmq-remoting-outages": outages,
        "rocketmq-remoting-retried": lambda node, folder: [rocketmq.retried(node, folder, n(2_000, 100))],
        "rocketmq-remoting-members": lambda node, folder: [rocketmq.members(node, folder, n(300, 20))],
        "rocketmq-remoting-large": lambda node, folder: [
            rocketmq.large_starts(node, folder, queues) for queues in (n(64, 16), n(128, 32), n(256, 64))
        ],
        "rocketmq-remoting-ledger": lambda node, folder: twins(node, folder, remoting(node)),
        "rocketmq-delayed": lambda node, folder: delayed.rocketmq_checks(node, folder, n),
        "rocketmq-senders": lambda node, folder: [flows.flow(node, remoting(node), folder, n(20_000, 2_000), share)],
        "rocketmq-grpc": lambda node, folder: [flows.flow(node, grpc(node), folder, messages, share)],
        "rocketmq-grpc-kills": lambda node, folder: [flows.kills(node, grpc(node), folder, messages, ends)],
        "rocketmq-grpc-fifo": lambda node, folder: [
            fifo_kills(node, grpc(node), folder, n(40_000, 6_000), ends),
            *(fifo_refused(node, grpc(node), folder, n(20_000, 2_000), n(5, 1), queues) for queues in (8, 64)),
        ],
        "rocketmq-grpc-outages": lambda node, folder: [flows.outages(node, grpc(node), folder, n(20_000, 4_000), n(5))],
        "rocketmq-grpc-members": lambda node, folder: [
            flows.members(node, grpc(node), folder, count, n(300, 20)) for count in (2, 3)
        ],
        "rocketmq-grpc-ledger": lambda node, folder: twins(node, folder, grpc(node)),
        "rocketmq-native": lambda node, folder: [flows.flow(node, native(node), folder, n(50_000, 5_000), share)],
        "rocketmq-native-outages": lambda node, folder: [
            flows.outages(node, native(node), folder, n(20_000, 4_000), n(5))
        ],
        "rocketmq-native-kills": lambda node, folder: [
            flows.kills(node, native(node), folder, n(50_000, 5_000), n(5, 2))
        ],
        "rocketmq-native-ledger": lambda node, folder: twins(node, folder, native(node)),
        "rocketmq-transactions": lambda node, folder: transactions(node, folder, n(4_000, 800), n(5)),
        "rocketmq-name-servers": lambda _, folder: name_servers(folder, n(4_000, 800), n(5)),
        "rocketmq-clocks": lambda node, folder: [
            found for ahead_s in (600, -600) for found in clock(node, folder, n(8_000, 1_600), n(5), ahead_s)
        ],
        "rocketmq-takeovers": lambda _, folder: [read_from_slave(folder, n(5)), promoted(folder, n(5))],
        "rocketmq-rebalances": lambda node, folder: [
            rebalances(node, client, _made(folder / client), n(5)) for client in ("remoting", "grpc", "native")
        ],
        "rocketmq-proxies": lambda node, folder: [
            restarts(node, folder, n(8_000, 800), n(5), proxies=proxies, fifo=fifo)
            for proxies, fifo in ((1, False), (2, False), (1, True))
        ],
        "rocketmq-grpc-held": lambda node, folder: held_for_long(node, folder, n(1_000, 300)),
        "rocketmq-grpc-skipped": lambda node, folder: [kept_offsets(node, grpc(node), folder, n(5))],
        "rocketmq-resets": lambda node, folder: [resets.resets(node, folder, resets.every_case(n(5)))],
        "rocketmq-spark-query": spark_query,
        "rocketmq-spark-run": spark_run,
        "rocketmq-spark-executors": spark_executors,
        "rocketmq-spark-tables": partial(spark_tables, "parquet"),
        "rocketmq-spark-delta": partial(spark_tables, "delta"),
        "rocketmq-made-again": lambda node, folder: [
            made_again(node, source(node), folder, every_round(ends), n(2_000, 1_000))
            for source in (remoting, grpc, native)
        ],
    }


def suite(point: str, tests: str, broker: KafkaBroker, _: Path, *, mark: str = "") -> list[Finding]:
    """Tests that have no larger numbers; each one asserts that nothing is lost or comes twice."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-m", mark, *(f"tests/{one}" for one in tests.split())]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "SIDECAR_TEST_KAFKA": broker.bootstrap}, capture_output=True, text=True
    )
    found = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and found, f"{tests}: {done.stdout[-300:]}"
    return [Finding(point, int(found[1]), 0, None, time.monotonic() - begun, f"{found[1]} tests")]


def held(budget: int, broker: KafkaBroker, folder: Path) -> list[Finding]:
    """Memory while the receiver never answers, at the points that cost the most beside what is counted."""
    begun = time.monotonic()
    found = dict(memory.measured(broker, folder, memory.WORST, budget))
    beyond = [f"{point}: {one}" for point, one in found.items() if not one.keeps_bounds]
    assert not beyond, "; ".join(beyond)
    notes = (
        f"memory grows by {max(one.ratio for one in found.values()):.2f} times what is held at most,"
        f" {max(one.peak for one in found.values()) / memory.MIB:.0f} MiB at its peak"
    )
    point = f"a silent receiver, `memory.budget: {budget // memory.MIB}MiB`: 1 to 10,000 bytes, 8 to 3,000 tags"
    return [Finding(point, len(found), 0, None, time.monotonic() - begun, notes)]


def simulated(schedules: int, _: KafkaBroker, __: Path, *, ledger: bool = False) -> list[Finding]:
    """Core and state under the seeded simulator, several sidecars with one ledger or none."""
    begun = time.monotonic()
    outcome = simulation.run(schedules, jobs=os.cpu_count() or 1, ledger=ledger)
    assert not outcome.failures, f"{outcome.line()}; seed {outcome.failures[0]}"
    notes = f"{outcome.steps:,} steps; in none was a message lost, stored twice or stuck"
    name = "schedules of the simulator" + (", with a ledger that all share" if ledger else "")
    return [Finding(name, outcome.schedules, 0, None, time.monotonic() - begun, notes)]


def simulated_kinds(kinds: Mapping[str, str], schedules: int, _: KafkaBroker, __: Path) -> list[Finding]:
    """So many schedules of each kind."""
    return [_simulated_kind(kind, point, schedules) for kind, point in kinds.items()]


def _simulated_kind(kind: str, point: str, schedules: int) -> Finding:
    begun = time.monotonic()
    outcome = simulation.run(schedules, jobs=os.cpu_count() or 1, kind=kind)
    assert not outcome.failures, f"{kind}: {outcome.line()}; seed {outcome.failures[0]}"
    told = f"{outcome.steps:,} steps; " if outcome.steps else ""
    notes, seconds = f"{told}in none was a promise broken", time.monotonic() - begun
    return Finding(f"schedules of the simulator, {point}", schedules, 0, None, seconds, notes)


def row(finding: Finding, command: str) -> str:
    """A finding as a line of the table."""
    messages = f"{finding.messages:,}" if finding.messages else ""
    found = finding.found
    lost, twice = (f"{len(found.lost):,}", f"{len(found.twice) + finding.repeated:,}") if found else ("", "")
    cells = [finding.point, f"{finding.times:,}", messages, lost, twice]
    return line([*cells, f"{finding.seconds:.0f}", finding.notes, f"`{command}`"])


def failure(name: str, error: BaseException, command: str) -> str:
    """A check that failed as a line of the table."""
    text = " ".join(str(error).split())[:300].replace("|", "/")
    return line([f"**{name} failed**", "", "", "", "", "", text, f"`{command}`"])


def line(cells: Sequence[object]) -> str:
    """Cells as a line of a Markdown table."""
    return f"| {' | '.join(str(cell).replace('||', 'or') for cell in cells)} |"


def page(known: Iterable[str], rows: Mapping[str, Sequence[str]], old: str) -> str:
    """What docs/proof.md holds: the rows of the checks that ran, the old page's rows of the others."""
    kept = {name: [row for row in old.splitlines() if row.endswith(f"`{command(name)}` |")] for name in known}
    table = [row for one in (kept | dict(rows)).values() for row in one]
    about = f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return "\n".join([HEADING.format(about=about), line(HEAD), line(["---"] * len(HEAD)), *table, ""])


def command(name: str) -> str:
    """What a person types to run one check."""
    return f"python -m tests.prove {name}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; 1 when one of them failed."""
    kinds = {"daemon": daemon_checks, "spark": spark_checks, "rocketmq": rocketmq_checks}
    groups = {name: list(checks(Sizes())) for name, checks in kinds.items()}
    offered = ", ".join(chain(groups, *groups.values()))
    options = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    options.add_argument("names", nargs="*", default=["daemon"], help=f"of {offered}; daemon when none is given")
    options.add_argument("--scale", type=float, default=1.0, help="multiplies the numbers; 1 by default")
    asked = options.parse_args(argv)
    known = {name: check for checks in kinds.values() for name, check in checks(Sizes(asked.scale)).items()}
    names = [name for one in asked.names for name in groups.get(one, [one])]
    unknown = [name for name in names if name not in known]
    if unknown:
        options.error(f"unknown: {', '.join(unknown)}")
    rows: dict[str, list[str]] = {}
    failed = False
    with tempfile.TemporaryDirectory(prefix="sidecar-prove-") as place:
        for name in names:
            try:
                findings = run(name, known[name], Path(place) / name)
                assert all(one.exact for one in findings), findings
                rows[name] = [row(one, command(name)) for one in findings]
            except Exception as error:  # noqa: BLE001  # the other checks are of interest all the same
                traceback.print_exc()
                rows[name] = [failure(name, error, command(name))]
                failed = True
            print(*rows[name], sep="\n", flush=True)
            if asked.scale == 1:
                PROOF.write_text(page(known, rows, PROOF.read_text(encoding="utf-8")), encoding="utf-8")
    return int(failed)


def run(name: str, check: Check, folder: Path) -> list[Finding]:
    """One check on a broker of its own."""
    folder.mkdir()
    kind: Callable[[Path], Any] = RocketMqNode if name.startswith("rocketmq") else KafkaBroker
    if name.startswith(("rocketmq-grpc", "rocketmq-senders")) or name in WITH_PROXY:
        kind = partial(RocketMqNode, proxy={})
    with kind(folder / "broker") as broker:
        return check(broker, folder)


if __name__ == "__main__":
    sys.exit(main())
