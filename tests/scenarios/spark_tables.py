"""`sidecar spark run` into tables, its driver killed: rows of table and rejects against what was produced."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from sidecar.errors import EXIT_CONFIG
from sidecar.spark.run.pinned import latest_batch
from tests.scenarios.exactly_once import new_topics
from tests.support.audit import Finding, Tally
from tests.support.kafka import Broker
from tests.support.process import wait_until
from tests.support.rocketmq import Node
from tests.support.spark.job import SparkJob
from tests.support.spark.rocketmq import rocketmq_config, source, tally_bodies, waiting
from tests.support.spark.tables import SCHEMA, Kind, config, make_due, rows, tally
from tests.support.workload import Expected, Workload

CORES = (3, 1, 2, 4)
PATIENCE_S = 400.0
LATE_S = 2.0
"""A kill comes up to so long after a micro-batch has begun."""


def killed(
    broker: Broker, folder: Path, messages: int, times: int, kind: Kind, *, kept: bool = False, seed: int = 1
) -> Finding:
    """Kill the driver with all its processes in the midst of micro-batches, and start it with other parallelism.

    Args:
        broker: The broker.
        folder: For the job's files and the tables.
        messages: How many, of every kind: 5 % with a repeated id, five of eight tags wanted.
        times: How many kills.
        kind: Of table.
        kept: Whether the table has partitions by hour and tag, and `OPTIMIZE` and `VACUUM` are due at each start.
        seed: Of messages and instants.

    Raises:
        AssertionError: A message is no row, is more than one, or is not what was produced.
    """
    topics = new_topics(broker, 1, 4)
    expected = Workload(topics, 4, messages, seed=seed).produce(broker.bootstrap)
    document = config(broker, topics, folder, kind, schema=SCHEMA)
    if kept:
        document["spark"]["table"] |= {"partition_by": ["date", "hour", "tag"]}
        document["spark"]["table"] |= {"maintenance": {"optimize": "1m", "vacuum": "1h"}}
    how = ", partitions by hour and tag, maintained" if kept else ""
    return _killed(document, expected, folder, times, kind, seed, tally, how=how)


def resumed(broker: Broker, folder: Path, messages: int, rounds: int, kind: Kind, *, seed: int = 1) -> Finding:
    """Kill the driver twice a round, and lose what it must have: only what is left on purpose lets it go on.

    In each round an older copy of the checkpoint is put back, then the table is taken away: both are refused. Then
    the queries' checkpoints are lost for good, and a new one goes on where the table ends.

    Args:
        broker: The broker.
        folder: For the job's files and the tables.
        messages: See `killed`.
        rounds: How many.
        kind: Of table.
        seed: Of messages and instants.

    Raises:
        AssertionError: A message is no row, is more than one, or is not what was produced; or a start is not refused.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    topics = new_topics(broker, 1, 4)
    expected = Workload(topics, 4, messages, seed=seed).produce(broker.bootstrap)
    document = config(broker, topics, folder, kind, schema=SCHEMA, resume="from_table")
    document["batch"] = {"span_max": max(500, messages // (8 * rounds))}
    checkpoint, older, last, table = (folder / name for name in ("checkpoint", "older", "last", "table"))

    def job(number: int, *, once: bool) -> SparkJob:
        document["spark"]["master"] = f"local[{CORES[number % len(CORES)]},4]"
        return SparkJob(folder, document, once=once, jars=kind != "deltalake")

    def refused(why: str) -> None:
        found = job(0, once=True)
        assert found.run(PATIENCE_S) == EXIT_CONFIG, found.log_tail()
        assert why in found.log_tail()

    for number in range(rounds):
        for life in range(2):
            life_job = job(2 * number + life, once=False)
            kill_in_micro_batch(life_job, checkpoint / "table", chance, LATE_S, after="commits")
            if not life:
                shutil.copytree(checkpoint, older)
        checkpoint.rename(last)
        older.rename(checkpoint)
        refused("all rows of this one up to number")
        shutil.rmtree(checkpoint)
        last.rename(checkpoint)
        table.rename(last)
        refused("is not there, and the checkpoint")
        last.rename(table)
        for query in ("table", "rejects"):
            shutil.rmtree(checkpoint / query)
    ending = job(0, once=True)
    assert ending.run(PATIENCE_S + messages / 500) == 0, ending.log_tail()
    found, aside = rows(table), rows(folder / "table-rejects")
    alive = len(expected.first_of_each_id())
    assert len(found) + len(aside) == alive, f"{len(found) + len(aside)} rows, and {alive} are wanted"
    notes = (
        f"{len(found):,} rows, {len(aside):,} rejects; {2 * rounds} starts refused; "
        f"{len(ending.events('table.resumed')) // 2} new checkpoints went on where the tables ended"
    )
    point = f"`sidecar spark run` into a table ({kind}): `kill -9`, older and lost checkpoints, a table taken away"
    return Finding(point, 2 * rounds, messages, tally(found + aside, expected), time.monotonic() - begun, notes)


def kill_in_micro_batch(
    job: SparkJob,
    checkpoint: Path,
    chance: random.Random,
    late_s: float,
    *,
    after: Literal["offsets", "commits"] = "offsets",
) -> bool:
    """Start a job, and kill it in the midst of micro-batches; return whether one was under way then.

    Args:
        job: The job.
        checkpoint: Of its query.
        chance: Chooses the instant.
        late_s: How long at most after a micro-batch of this life.
        after: Whether that one has begun, or has ended.
    """
    before = latest_batch(checkpoint, "offsets")
    with job:
        wait_until(
            lambda: job.supervise() and latest_batch(checkpoint, after) > before,
            PATIENCE_S,
            f"a micro-batch is in the {after}",
            detail=job.log_tail,
        )
        time.sleep(chance.uniform(0, late_s))  # the instant is random: there is nothing to wait for
    return latest_batch(checkpoint, "offsets") > latest_batch(checkpoint, "commits")


def rocketmq_killed(node: Node, folder: Path, messages: int, times: int, kind: Kind, *, seed: int = 1) -> Finding:
    """The same from RocketMQ; one message in fifty does not fit the schema.

    Args:
        node: The node.
        folder: See `killed`.
        messages: Likewise.
        times: Likewise.
        kind: Likewise.
        seed: Likewise.

    Raises:
        AssertionError: Likewise.
    """
    topic, expected = waiting(node, messages, seed=seed, poison_every=50)
    document = rocketmq_config(source(node, topic), folder, kind, schema=SCHEMA)
    return _killed(document, expected, folder, times, kind, seed, tally_bodies, "from RocketMQ ")


def _killed(
    document: dict[str, Any],
    expected: Expected,
    folder: Path,
    times: int,
    kind: Kind,
    seed: int,
    compared: Callable[[list[dict[str, Any]], Expected], Tally],
    read: str = "",
    how: str = "",
) -> Finding:
    begun, chance, messages = time.monotonic(), random.Random(seed), expected.count
    kept = bool(how)
    document["batch"] = {"span_max": max(1_000, messages // (2 * times + 2))}

    def job(number: int, *, once: bool) -> SparkJob:
        if kept:
            for name in ("table", "rejects"):
                make_due(folder / "checkpoint" / "maintenance" / f"{name}.json")
        document["spark"]["master"] = f"local[{CORES[number % len(CORES)]},4]"
        return SparkJob(folder, document, once=once, jars=kind != "deltalake")

    offsets = folder / "checkpoint" / "table"
    pending = sum(kill_in_micro_batch(job(number, once=False), offsets, chance, LATE_S) for number in range(times))
    last = job(times, once=True)
    assert last.run(PATIENCE_S + messages / 500) == 0, last.log_tail()
    assert not last.events("micro_batch.unbalanced")
    table, aside = rows(folder / "table"), rows(folder / "table-rejects")
    found = compared(table + aside, expected)
    alive = len(expected.first_of_each_id())
    assert len(table) + len(aside) == alive, f"{len(table) + len(aside)} rows, and {alive} are wanted"
    notes = f"{len(table):,} rows, {len(aside):,} rejects; {alive:,} wanted; {pending} kills in micro-batches"
    if kept:
        maintained, failed = (len(last.events(f"table.{end}")) for end in ("maintained", "maintenance_failed"))
        notes += f"; maintained {maintained} times, failed {failed} times"
    point = f"`sidecar spark run` {read}into a table ({kind}{how}), driver `kill -9`, restarted with other parallelism"
    return Finding(point, times, messages, found, time.monotonic() - begun, notes)
