"""Keys that are sent twice over partitions, through the pipeline on Spark with a ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from tests.scenarios.exactly_once import configuration
from tests.scenarios.ledger import PARTITIONS, Orders, ledger
from tests.scenarios.spark_kills import CORES, Strikes, executor_killer
from tests.support.audit import Finding, StrikingReceiver
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.postgresql import Database
from tests.support.receiver import Fault, Request
from tests.support.spark.cluster import Cluster
from tests.support.spark.job import SparkJob

PATIENCE_S = 400.0


class NamesReceiver(StrikingReceiver):
    """The receiver, which refuses poison, and notes names that come with two bodies.

    Attributes:
        differing: These names.
        repeats: How many requests came under a key that had come before.
    """

    def __init__(self) -> None:
        self.differing: list[str] = []
        self.repeats = 0
        self._first: dict[str, bytes] = {}
        super().__init__()
        self.fail("refuse", status=400, marker="poison")

    def __enter__(self) -> NamesReceiver:
        return self

    def fault_for(self, request: Request) -> Fault | None:
        """Compare, then go on as ever."""
        key, body = request.headers["idempotency-key"], xxhash.xxh3_128_digest(request.body)
        self.repeats += key in self._first
        if self._first.setdefault(key, body) != body:
            self.differing.append(key)
        return super().fault_for(request)


class Scene:
    """Orders that wait in Kafka, 5 % of them twice in any partition; of some the first copy is poison.

    Args:
        broker: The broker.
        database: Of the ledger.
        messages: How many different ones.
        times: How many micro-batches there are at least.
    """

    def __init__(self, broker: Broker, database: Database, messages: int, times: int) -> None:
        self.begun = time.monotonic()
        self.orders = Orders(messages, poisoned=True)
        topic = broker.create_topic(unique("orders"), PARTITIONS)
        produce(broker.bootstrap, topic, (Outgoing(place, body, None, []) for place, body in self.orders.messages))
        self.receiver = NamesReceiver()
        batch = {"linger": "20ms", "max_messages": 50, "span_max": max(1_000, messages // (2 * times + 2))}
        self.settings: dict[str, Any] = configuration(
            broker, [topic], self.receiver.url, "*", dedup=ledger(database, database.schema(), "30m"), batch=batch,
            sink={"http": {"url": self.receiver.url, "timeout": "2s"}},
        )  # fmt: skip

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.receiver.close()

    def finish(self, job: SparkJob, point: str, times: int) -> Finding:
        """Each order came once, whichever copy; no name stood for two bodies; the books balanced."""
        assert not self.receiver.differing, f"{len(self.receiver.differing)} names with two bodies"
        assert not job.events("micro_batch.unbalanced")
        found, carried = self.orders.tally(self.receiver), job.events("twins.settled")
        delivered, duplicate = (sum(event[name] for event in carried) for name in ("delivered", "duplicate"))
        notes = (
            f"{self.orders.twice:,} keys sent twice, {len(self.orders.poison):,} of them first as poison; the driver "
            f"settled {delivered:,} as delivered and {duplicate:,} as duplicates; "
            f"{self.receiver.repeats:,} requests repeated"
        )
        return Finding(point, times, self.orders.count, found, time.monotonic() - self.begun, notes)


def drivers(broker: Broker, folder: Path, database: Database, messages: int, times: int) -> Finding:
    """The driver is killed -9 with all its processes and started again with other parallelism."""
    with Scene(broker, database, messages, times) as scene:
        scene.receiver.fail("lost", rate=0.02)
        scene.receiver.fail("slow", delay_ms=20)
        strikes = Strikes(scene.receiver, messages // (times + 1))
        for number in range(times):
            master = f"local[{CORES[number % len(CORES)]},4]"
            with SparkJob(folder, scene.settings, master=master, reader="client", once=False) as job:
                strikes.strike(number, job, job.kill)
        job = SparkJob(folder, scene.settings, master="local[2,4]", reader="client")
        assert job.run(PATIENCE_S + messages / 500) == 0, job.log_tail()
        point = "`sidecar spark run` with a ledger, 5 % sent twice over 8 partitions, driver `kill -9`"
        return scene.finish(job, point, times)


def executors(broker: Broker, folder: Path, database: Database, messages: int, times: int) -> Finding:
    """By `spark-submit` on a master and two workers: the executor that sends is killed -9."""
    with Scene(broker, database, messages, times) as scene, Cluster(folder / "cluster") as cluster:
        scene.receiver.fail("lost", rate=0.02)
        scene.receiver.fail("slow", delay_ms=20)
        strikes = Strikes(scene.receiver, messages // (times + 1))
        killed, kill = executor_killer(cluster, scene.receiver.port)
        with SparkJob(folder, scene.settings, master=cluster.url, reader="client", submit=True) as job:
            for number in range(times):
                while len(killed) <= number:
                    strikes.strike(number, job, kill)
            assert job.wait(PATIENCE_S + messages / 500) == 0, job.log_tail()
        point = "the same by `spark-submit` to a master and two workers, executor `kill -9`"
        return scene.finish(job, point, times)


def one_core(
    broker: Broker, folder: Path, database: Database, messages: int, during: Callable[[Scene, SparkJob], None]
) -> Finding:
    """8 partitions on one core: whatever waits for a twin in a later task would stop it for ever."""
    with Scene(broker, database, messages, 1) as scene:
        scene.receiver.fail("slow", delay_ms=5)
        with SparkJob(folder, scene.settings, master="local[1,4]", reader="client") as job:
            during(scene, job)
            assert job.wait(PATIENCE_S) == 0, job.log_tail()
        return scene.finish(job, "8 partitions on one core", 1)
