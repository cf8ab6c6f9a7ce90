"""`sidecar spark run` into tables, its driver killed: rows of table and rejects against what was produced."""

from __future__ import annotations

import random
import time
from pathlib import Path

from sidecar.spark.run.pinned import latest_batch
from tests.scenarios.exactly_once import new_topics
from tests.support.audit import Finding
from tests.support.kafka import Broker
from tests.support.process import wait_until
from tests.support.spark.job import SparkJob
from tests.support.spark.tables import SCHEMA, Kind, config, rows, tally
from tests.support.workload import Workload

CORES = (3, 1, 2, 4)
PATIENCE_S = 400.0
LATE_S = 2.0
"""A kill comes up to so long after a micro-batch has begun."""


def killed(broker: Broker, folder: Path, messages: int, times: int, kind: Kind, *, seed: int = 1) -> Finding:
    """Kill the driver with all its processes in the midst of micro-batches, and start it with other parallelism.

    Args:
        broker: The broker.
        folder: For the job's files and the tables.
        messages: How many, of every kind: 5 % with a repeated id, five of eight tags wanted.
        times: How many kills.
        kind: Of table.
        seed: Of messages and instants.

    Raises:
        AssertionError: A message is no row, is more than one, or is not what was produced.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    topics = new_topics(broker, 1, 4)
    work = Workload(topics, 4, messages, seed=seed)
    work.produce(broker.bootstrap)
    document = config(broker, topics, folder, kind, schema=SCHEMA)
    document["batch"] = {"span_max": max(1_000, messages // (2 * times + 2))}

    def job(number: int, *, once: bool) -> SparkJob:
        document["spark"]["master"] = f"local[{CORES[number % len(CORES)]},4]"
        return SparkJob(folder, document, once=once, jars=kind != "deltalake")

    offsets = folder / "checkpoint" / "table"
    for number in range(times):
        before = latest_batch(offsets, "offsets")
        with job(number, once=False) as running:
            wait_until(
                lambda before=before: latest_batch(offsets, "offsets") > before,  # type: ignore[misc]
                PATIENCE_S,
                "a micro-batch begins",
                detail=running.log_tail,
            )
            time.sleep(chance.uniform(0, LATE_S))  # the instant is random: there is nothing to wait for
            running.kill()
    pending = latest_batch(offsets, "offsets") - latest_batch(offsets, "commits")
    last = job(times, once=True)
    assert last.run(PATIENCE_S + messages / 500) == 0, last.log_tail()
    assert not last.events("micro_batch.unbalanced")
    table, aside = rows(folder / "table"), rows(folder / "table-rejects")
    found = tally(table + aside, work.expected)
    alive = len(work.expected.first_of_each_id())
    assert len(table) + len(aside) == alive, f"{len(table) + len(aside)} rows, and {alive} are wanted"
    notes = (
        f"{len(table):,} rows and {len(aside):,} rejects; {alive:,} wanted and distinct; {pending} pending at the end"
    )
    point = f"`sidecar spark run` into a table ({kind}), driver `kill -9`, restarted with other parallelism"
    return Finding(point, times, messages, found, time.monotonic() - begun, notes)
