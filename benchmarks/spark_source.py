"""What a message costs in a query of one's own: `read_kafka_stream` beside Spark's Kafka connector, into `noop`.

Messages of 200 bytes with a tag and an id in headers, 4 partitions, one of twenty ids sent twice. Each way is run in
turn in one session, a micro-batch after the other; what counts is the ratio, round by round:

* plain: the same columns (topic, partition, offset, timestamp, key, value) of both sources;
* headers: these and the headers;
* ids: rows without headers, in micro-batches of each size, beside the connector with `dropDuplicates` by the same
  header, on RocksDB.

A query has a cost of its own before its first message, since Spark starts Python processes that plan. It is measured
with few messages, and the ratios are given with it and without: a stream pays it once.

CPU time is that of driver, JVM and Python workers together, without the broker.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.spark_pipeline import with_connector
from benchmarks.spark_session import CpuClock, children, session
from sidecar.spark import read_kafka_stream
from tests.support.kafka import KafkaBroker, produce
from tests.support.produce import Outgoing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Make: TypeAlias = Callable[[str], DataFrame]
    """A stream of a topic."""

PARTITIONS = 4
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
WANTED = {"plain": 1.4, "headers": 1.4, "ids": 0.7}
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FEW = 1_000
_numbers = itertools.count()


def messages(count: int) -> Iterator[Outgoing]:
    """Messages of 200 bytes; every 20th repeats an id that its partition had before."""
    value = b"v" * 200
    for number in range(count):
        row, partition = divmod(number, PARTITIONS)
        id_ = number if row % 20 else row // 2 * PARTITIONS + partition
        yield Outgoing(partition, value, b"k%d" % number, [("tag", b"t%d" % (row % 8)), ("id", b"order-%09d" % id_)])


def columns_of(case: str) -> Sequence[str]:
    """The columns of the rows; the connector reads headers only if it is told to."""
    return COLUMNS if case == "headers" else COLUMNS[:-1]


def connector(spark: SparkSession, broker: KafkaBroker, most: int, topic: str, *, case: str) -> DataFrame:
    """Spark's own source."""
    from pyspark.sql import functions as F  # noqa: N812

    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(most),
        "includeHeaders": str(case != "plain").lower(),
    }
    frame = spark.readStream.format("kafka").options(**options).load()
    if case != "ids":
        return frame.select(*columns_of(case))
    found = F.element_at(F.filter("headers", lambda header: header["key"] == "id"), 1)["value"]
    return frame.select(*columns_of(case), found.alias("id")).dropDuplicates(["id"]).drop("id")


def ours(spark: SparkSession, broker: KafkaBroker, most: int, folder: Path, topic: str, *, case: str) -> DataFrame:
    """Sidecar's source."""
    dedup: dict[str, Any] = {"dedup": {"by": {"header": "id"}}} if case == "ids" else {}
    return read_kafka_stream(
        spark,
        bootstrap_servers=broker.bootstrap,
        topics=[topic],
        columns=columns_of(case),
        max_offsets=most,
        state=folder / f"ids-{next(_numbers)}",
        **dedup,
    )


def drained(make: Make, topic: str, folder: Path) -> int:
    """Run a stream to the end of the log; its micro-batches."""
    writer = make(topic).writeStream.format("noop").option("checkpointLocation", str(folder / f"run-{next(_numbers)}"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return len(query.recentProgress)


def compared(name: str, wanted: float, ways: dict[str, Make], args: argparse.Namespace, folder: Path) -> None:
    """Both ways in turn; the medians of the ratios."""
    print(f"{name}, at most {wanted} x wanted", flush=True)
    ratios, net, starts = [], [], {}
    for number in range(args.rounds + 1):  # the first one warms up, and does not count
        costs = {}
        for way, make in ways.items():
            clock, begun_s = CpuClock(args.broker_processes), time.perf_counter()
            batches = drained(make, "bench", folder)
            costs[way] = clock.seconds() / args.messages * 1e6
            rate = args.messages / (time.perf_counter() - begun_s) / 1e3
            note = " (warm-up)" * (not number)
            print(
                f"  {way:<34} {costs[way]:6.2f} us CPU a message  {rate:6.1f} k/s  {batches} batches{note}", flush=True
            )
            if not number:
                clock = CpuClock(args.broker_processes)
                drained(make, "few", folder)
                starts[way] = clock.seconds() / args.messages * 1e6
        if number:
            first, second = ways
            ratios.append(costs[second] / costs[first])
            net.append((costs[second] - starts[second]) / (costs[first] - starts[first]))
    print(f"  of it, the start: {', '.join(f'{way} {cost:.2f}' for way, cost in starts.items())}")
    for what, found in (("with", sorted(ratios)), ("without", sorted(net))):
        each = ", ".join(f"{ratio:.2f}" for ratio in found)
        print(f"  {what} the start: median {statistics.median(found):.2f} x, of {each}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=[250_000, 1_000_000])
    parser.add_argument("--cases", nargs="*", choices=list(WANTED), default=list(WANTED))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        folder = Path(name)
        for topic, count in (("bench", args.messages), ("few", FEW)):
            produce(broker.bootstrap, broker.create_topic(topic, PARTITIONS), messages(count))
        args.broker_processes = children()
        spark = session(folder, settings=with_connector())
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        for case in args.cases:
            for most in args.batches if case == "ids" else [max(args.batches)]:
                ways: dict[str, Make] = {
                    "connector": partial(connector, spark, broker, most, case=case),
                    "read_kafka_stream": partial(ours, spark, broker, most, folder, case=case),
                }
                compared(f"{case}, batches of {most:,}", WANTED[case], ways, args, folder)
        spark.stop()


if __name__ == "__main__":
    main()
