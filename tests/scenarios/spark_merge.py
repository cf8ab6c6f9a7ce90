"""`sidecar spark run` that merges by key, its driver killed: the table against the last change of each key."""

from __future__ import annotations

import random
import time
from pathlib import Path

from deltalake import DeltaTable

from tests.scenarios.exactly_once import new_topics
from tests.scenarios.spark_tables import CORES, LATE_S, PATIENCE_S, kill_in_micro_batch
from tests.support.audit import Finding
from tests.support.kafka import Broker, produce
from tests.support.spark.job import SparkJob
from tests.support.spark.merging import RULE, SCHEMA, compare, last_of_each, made, outgoing
from tests.support.spark.tables import Kind, config, rows

PARTITIONS = 4


def killed(
    broker: Broker, folder: Path, changes: int, keys: int, times: int, kind: Kind = "delta", *, seed: int = 1
) -> Finding:
    """Kill the driver with all its processes in the midst of micro-batches, and start it with other parallelism.

    Args:
        broker: The broker.
        folder: For the job's files and the tables.
        changes: How many, 10 % of them late and 20 % deletes.
        keys: Of how many keys, each in any partition.
        times: How many kills.
        kind: Of table.
        seed: Of changes and instants.

    Raises:
        AssertionError: The table does not have exactly the last change of each key.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    all_changes = list(made(topic, changes, keys, PARTITIONS, seed))
    produce(broker.bootstrap, topic, map(outgoing, all_changes))
    document = config(broker, [topic], folder, kind, schema=SCHEMA, merge=RULE)
    document |= {"tags": {}, "dedup": {}, "batch": {"span_max": max(1_000, changes // (times + 3))}}

    def job(number: int, *, once: bool) -> SparkJob:
        document["spark"]["master"] = f"local[{CORES[number % len(CORES)]},4]"
        return SparkJob(folder, document, once=once, jars=kind != "deltalake")

    offsets = folder / "checkpoint" / "table"
    pending = sum(kill_in_micro_batch(job(number, once=False), offsets, chance, 2 * LATE_S) for number in range(times))
    last = job(times, once=True)
    assert last.run(PATIENCE_S + changes / 500) == 0, last.log_tail()
    wanted = last_of_each(all_changes)
    table, aside = rows(folder / "table"), rows(folder / "table-rejects")
    found = compare(table, wanted.values())
    keyless = sum(change.key is None for change in all_changes)
    assert len(aside) == keyless, f"{len(aside)} rejects, and {keyless} changes have no key"
    deleted = sum(row["deleted"] for row in table)
    notes = (
        f"{len(table):,} keys, {deleted:,} of them deleted; {len(aside):,} rejects; {pending} kills in a micro-batch; "
        f"{DeltaTable(folder / 'table').version()} versions of the table"
    )
    point = f"`sidecar spark run` with `spark.table.merge` ({kind}), 10 % out of order, driver `kill -9`"
    return Finding(point, times, changes, found, time.monotonic() - begun, notes)
