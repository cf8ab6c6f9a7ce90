"""What a message costs on its way from Kafka into a Delta table: two ways of Sidecar beside Spark's own connector.

Messages of 200 bytes, 8 tags in a header of which 5 are wanted, 4 partitions, ids in the key, one in twenty of them
twice. Without ids the yardstick is the connector's stream, filtered by tag in the JVM, to Delta; with ids it is the
same with `dropDuplicates` on RocksDB. It runs with the settings of Spark and Delta, and again with those that Sidecar
adds. The one way of Sidecar is `sidecar spark run`; the other is a daemon that fills a landing zone, and then
`sidecar spark ingest`. The columns are alike, tables are partitioned by the day, and each way is run in turn in one
session: what counts is the ratio, round by round. CPU time is that of driver, JVM, Python workers and daemon together,
without the broker; it includes the daemon's start.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from benchmarks.spark_pipeline import measured, with_connector
from benchmarks.spark_session import CpuClock, children, session
from benchmarks.spark_zone import ROCKSDB
from benchmarks.throughput import PARTITIONS, TAGS
from sidecar.config.model import Settings
from sidecar.spark.driver import DELTA_CONF
from sidecar.spark.ingest.job import SparkIngest
from sidecar.spark.run.kafka_options import source_options
from sidecar.spark.run.table_job import job_of
from tests.support.kafka import KafkaBroker, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.produce import Outgoing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TWIN_OF = 20
WANTED = TAGS[:5]
WITHOUT_IDS_MAX = 1.2
WITH_IDS_MAX = 0.7
_numbers = itertools.count()


def stream(count: int) -> Iterator[Outgoing]:
    """Messages of 200 bytes, tags in turn, partitions in turn of a thousand; of twenty, the last has the first's id."""
    for i in range(count):
        value = b'{"id":%010d,"pad":"' % i
        number = i - i % TWIN_OF if i % TWIN_OF == TWIN_OF - 4 else i  # with the same tag, so that both are wanted
        key = b"order-%012d" % number
        yield Outgoing(i // 1000 % PARTITIONS, value.ljust(198, b"x") + b'"}', key, headers=[("tag", TAGS[i % 8])])


@dataclass
class Bench:
    """What every run needs.

    Args:
        broker: Has the messages.
        topic: Where they are.
        messages: How many.
        batch: Offsets of a micro-batch.
        folder: For checkpoints and tables.
        others: Processes that do not count.
    """

    broker: KafkaBroker
    topic: str
    messages: int
    batch: int
    folder: Path
    others: set[int]

    def ours(self, *, ids: bool) -> None:
        """By `sidecar spark run`."""
        settings = self._settings(ids=ids)
        with capture_logs() as events:
            job_of(settings)(settings, lambda: False, once=True).run()
        done = [one for one in events if one["event"] == "micro_batch.delivered"]
        assert sum(one["consumed"] for one in done) == self.messages, events[-3:]
        assert bool(sum(one["duplicate"] for one in done)) == ids, events[-3:]

    def through_zone(self, *, ids: bool) -> None:
        """By a daemon, its landing zone, and `sidecar spark ingest`."""
        document = self._document(ids=ids)
        table, folder = document["sink"].pop("delta"), Path(document["state"]["dir"]).parent
        document["sink"]["spark"] = {"landing": str(folder / "zone")}
        off = document.pop("admin")  # the daemon tells its status
        del document["batch"]
        clock = CpuClock(self.others | children())
        folder.mkdir(parents=True, exist_ok=True)
        with Daemon(folder, document) as daemon:
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["consumed"] == self.messages, 600, "all messages are read")
            daemon.terminate()
            daemon.wait(0)
        print(f"    {clock.seconds() / self.messages * 1e6:.2f} us of that by the daemon")
        document["spark"]["table"] = {"format": "delta", "partition_by": ["date"], **table}
        document["admin"] = off
        with capture_logs() as events:
            SparkIngest(Settings.model_validate(document), lambda: False, once=True).run()
        rows = sum(one["rows_written"] for one in events if one["event"] == "ingest.committed")
        assert rows == self.messages * len(WANTED) // len(TAGS) - self.messages // TWIN_OF * ids, (rows, events[-3:])

    def connector(self, spark: SparkSession, *, ids: bool, tuned: bool) -> None:
        """By the connector; if `tuned`, with Sidecar's settings for Delta, which the session has from then on."""
        from pyspark.sql import functions as F  # noqa: N812

        for name, value in DELTA_CONF.items():
            if tuned or name.endswith("requiredSparkConfsCheck.enabled"):  # neither way needs its catalogue
                spark.conf.set(name, value)
            else:
                spark.conf.unset(name)
        settings = self._settings(ids=ids)
        assert settings.spark is not None
        assert settings.sink.delta is not None
        frame = spark.readStream.format("kafka").options(**source_options(settings, once=True, headers=True)).load()
        tag = F.element_at(F.filter("headers", lambda header: header["key"] == "tag"), 1)["value"].cast("string")
        frame = frame.withColumn("tag", tag).where(F.col("tag").isin([name.decode() for name in WANTED]))
        if ids:
            frame = frame.dropDuplicates(["key"])
        columns = ["topic", "partition", "offset", "timestamp", "key", "value", "tag", "headers"]
        frame = frame.select(*columns, F.to_date("timestamp").alias("date"))
        writer = frame.writeStream.format("delta").partitionBy("date").option("path", settings.sink.delta.path)
        writer = writer.option("checkpointLocation", settings.spark.checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert read == self.messages, read

    def _settings(self, *, ids: bool) -> Settings:
        return Settings.model_validate(self._document(ids=ids))

    def _document(self, *, ids: bool) -> dict[str, Any]:
        folder = self.folder / f"run-{next(_numbers)}"
        kafka = {"bootstrap_servers": self.broker.bootstrap, "group_id": unique("bench"), "topics": [self.topic]}
        document: dict[str, Any] = {
            "source": {"kafka": kafka},
            "tags": {"from": {"header": "tag"}, "subscribe": " || ".join(tag.decode() for tag in WANTED)},
            "batch": {"span_max": self.batch},
            "sink": {"delta": {"path": str(folder / "table")}},
            "spark": {"checkpoint": str(folder / "checkpoint")},
            "state": {"dir": str(folder / "state")},
            "admin": {"listen": "off"},
            "log": {"level": "warning"},
        }
        return document | ({"dedup": {"by": "key"}} if ids else {})


def compare(name: str, bench: Bench, ways: Mapping[str, Callable[[], None]], rounds: int, most: float) -> None:
    """Run the ways in turn, and print the ratios of the last ones to the first two."""
    ratios: dict[str, list[float]] = {}
    print(f"{name}, {bench.batch:,} offsets a micro-batch")
    for number in range(rounds + 1):  # the first one warms up, and does not count
        note = " (warm-up)" * (not number)
        found = {way: measured(way, bench.messages, run, bench.others, note) for way, run in ways.items()}
        plain, tuned, *ours = found
        for way, beside in itertools.product(ours, (plain, tuned)) if number else ():
            ratios.setdefault(f"{way} / {beside}", []).append(found[way] / found[beside])
    for pair, some in ratios.items():
        told = ", ".join(f"{ratio:.2f}" for ratio in sorted(some))
        print(f"  {pair}: median {statistics.median(some):.2f} x, of {told} (at most {most} wanted)", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, nargs="*", default=[250_000, 1_000_000], help="offsets of a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        topic = broker.create_topic("bench", PARTITIONS)
        produce(broker.bootstrap, topic, stream(wanted.messages))
        others = children()
        more = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
        spark = session(Path(name), settings={**with_connector(), **more})
        for batch in wanted.batch:
            bench = Bench(broker, topic, wanted.messages, batch, Path(name), others)
            for ids, most in ((False, WITHOUT_IDS_MAX), (True, WITH_IDS_MAX)):
                dropping = " + dropDuplicates" * ids
                ways = {
                    f"connector{dropping} -> Delta": partial(bench.connector, spark, ids=ids, tuned=False),
                    "the same, Sidecar's settings": partial(bench.connector, spark, ids=ids, tuned=True),
                    "sidecar spark run -> Delta": partial(bench.ours, ids=ids),
                    "daemon, zone, ingest -> Delta": partial(bench.through_zone, ids=ids),
                }
                compare("with ids in the key" if ids else "without ids", bench, ways, wanted.rounds, most)
        spark.stop()


if __name__ == "__main__":
    main()
