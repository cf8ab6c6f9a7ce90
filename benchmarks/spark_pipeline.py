"""What a message costs on its way through `sidecar spark run`, beside Kafka → `noop` in the same session.

Messages of 200 bytes, 8 tags in a header, 4 partitions, 1,000,000 offsets a micro-batch, `ndjson` over HTTP to a
receiver that throws them away; each way is run in turn, and what counts is the ratio, round by round. The yardstick is
Spark's own stream from the same connector with the same options, written to its `noop` sink; it filters and delivers
nothing. Beside it the same columns to a writer in Python that does nothing: what the hand-over alone takes; and the
pipeline with either `spark.reader`, and on the fast lane if it is built. After that the daemon with the same file, and
the pipeline with `reader: client` on a standalone cluster with one core an executor.

CPU time is that of driver, JVMs and Python workers together, without the broker and the receiver.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from benchmarks import throughput
from benchmarks.spark_nothing import Nothing
from benchmarks.spark_session import CpuClock, children, session
from sidecar.config.model import Settings
from sidecar.runtime.lane import is_built
from sidecar.spark.run.job import SparkRun
from sidecar.spark.run.kafka_options import source_options
from tests.support.jars import spark_jars
from tests.support.kafka import KafkaBroker, produce
from tests.support.spark.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WANTED = 2.2
_numbers = itertools.count()


@dataclass
class Bench:
    """What every run needs.

    Args:
        broker: Has the messages.
        topic: Where they are.
        messages: How many.
        port: Of the receiver.
        tags: How many of the 8 tags are wanted.
        folder: For checkpoints and logs.
    """

    broker: KafkaBroker
    topic: str
    messages: int
    port: int
    tags: int
    folder: Path

    @property
    def delivered(self) -> int:
        """How many messages are wanted."""
        return self.messages // len(throughput.TAGS) * self.tags

    def config(self) -> dict[str, Any]:
        """The daemon's benchmark, with as many tags wanted."""
        wanted = " || ".join(tag.decode() for tag in throughput.TAGS[: self.tags])
        found = throughput.settings(self.broker, self.topic, self.port)
        found["tags"]["subscribe"] = wanted
        return found

    def pipeline(self, reader: str, lane: str = "off") -> None:
        """All messages through the pipeline, in the session that is there."""
        with capture_logs() as events:
            SparkRun(self._settings(reader, lane), lambda: False, once=True).run()
        delivered = sum(one["delivered"] for one in events if one["event"] == "micro_batch.delivered")
        assert delivered == self.delivered, (delivered, events[-3:])

    def noop(self, spark: SparkSession) -> None:
        """All messages into nothing."""
        self._into(spark, "noop", ["*"])

    def to_python(self, spark: SparkSession) -> None:
        """All messages to Python, and into nothing there."""
        self._into(spark, Nothing.name(), ["topic", "partition", "offset", "headers", "value"])

    def _into(self, spark: SparkSession, sink: str, columns: list[str]) -> None:
        settings = self._settings()
        assert settings.spark is not None
        options = source_options(settings, once=True, headers=True)
        frame = spark.readStream.format("kafka").options(**options).load().select(*columns)
        writer = frame.writeStream.format(sink).option("checkpointLocation", settings.spark.checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert read == self.messages, read

    def _settings(self, reader: str = "connector", lane: str = "off") -> Settings:
        config = self.config()
        config["source"]["kafka"]["lane"] = lane
        folder = self.folder / f"run-{next(_numbers)}"
        own = {
            "spark": {"checkpoint": str(folder / "checkpoint"), "reader": reader},
            "state": {"dir": str(folder / "state")},
            "admin": {"listen": "off"},
            "log": {"level": "warning"},
        }
        return Settings.model_validate({**config, **own})


def measured(name: str, messages: int, way: Callable[[], None], others: set[int], note: str = "") -> float:
    """CPU microseconds a message of one way, printed."""
    clock, begun_s = CpuClock(others), time.perf_counter()
    way()
    cpu_us, wall_s = clock.seconds() / messages * 1e6, time.perf_counter() - begun_s
    print(f"  {name:<28} {cpu_us:6.2f} us CPU a message   {messages / wall_s / 1e3:6.1f} k/s{note}", flush=True)
    return cpu_us


def beside_noop(bench: Bench, rounds: int, others: set[int]) -> float:
    """Every way in turn in one session; the medians of the ratios to `noop`."""
    spark = session(bench.folder, settings=with_connector())
    spark.dataSource.register(Nothing)
    ways: dict[str, Callable[[], None]] = {
        "Kafka -> noop": partial(bench.noop, spark),
        "Kafka -> Python": partial(bench.to_python, spark),
        "sidecar spark run, connector": partial(bench.pipeline, "connector"),
        "sidecar spark run, client": partial(bench.pipeline, "client"),
    }
    if is_built():
        ways["the same on the fast lane"] = partial(bench.pipeline, "client", "on")
    costs = defaultdict(list)
    for number in range(rounds + 1):  # the first one warms up, and does not count
        note = " (warm-up)" * (not number)
        found = {name: measured(name, bench.messages, way, others, note) for name, way in ways.items()}
        for name, cost_us in found.items() if number else ():
            costs[name].append((cost_us / found["Kafka -> noop"], cost_us))
    spark.stop()
    for name, pairs in costs.items():
        told = ", ".join(f"{ratio:.2f}" for ratio, _ in sorted(pairs))
        print(f"  {name:<28} median {statistics.median(ratio for ratio, _ in pairs):.2f} x noop, of {told}")
    print(f"  (at most {WANTED} wanted)")
    return statistics.median(cost_us for _, cost_us in costs["sidecar spark run, client"])


def beside_daemon(bench: Bench, ours_us: float) -> None:
    """The daemon with the same file."""
    ran = throughput.daemon(bench.config(), bench.messages, bench.folder, kept=bench.tags / len(throughput.TAGS))
    cost_us = ran.cpu_s / ran.messages * 1e6
    print(f"  the daemon costs {cost_us:.2f} us CPU a message, the pipeline {ours_us / cost_us:.1f} times that")


def on_cluster(bench: Bench, executors: int, others: set[int], runs: int) -> None:
    """The pipeline with so many executors of one core."""
    with Cluster(bench.folder, workers=executors) as cluster:
        settings = {**with_connector(), "spark.executor.memory": "768m", "spark.cores.max": str(executors)}
        spark = session(bench.folder, cluster.url, settings)
        for run in range(runs + 1):
            note = " (warm-up)" * (not run)
            measured(f"{executors} executor(s)", bench.messages, partial(bench.pipeline, "client"), others, note)
        spark.stop()


def with_connector() -> dict[str, str]:
    """The setting that brings the Kafka connector."""
    return {"spark.jars": ",".join(map(str, spark_jars()))}


@contextmanager
def receiver() -> Iterator[int]:
    """A receiver that throws everything away; its port."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.discard"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tags", type=int, default=8, help="how many of 8 tags are wanted")
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2], help="sizes of the cluster; none for none")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker, receiver() as port:
        topic = broker.create_topic("bench", throughput.PARTITIONS)
        produce(broker.bootstrap, topic, throughput.stream(wanted.messages))
        bench = Bench(broker, topic, wanted.messages, port, wanted.tags, Path(name))
        others = children()
        print(f"the pipeline, {wanted.tags} of 8 tags wanted")
        ours_us = beside_noop(bench, wanted.rounds, others)
        beside_daemon(bench, ours_us)
        for executors in wanted.executors:
            on_cluster(bench, executors, others, 2)


if __name__ == "__main__":
    main()
