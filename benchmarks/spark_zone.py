"""What a landing zone costs to read in Spark: beside Parquet, beside `dropDuplicates`, and with much behind it.

1. A poll of a zone of which 50,000 batches are consumed beside one of which 100 are, and what a restart costs.
2. CPU time a row of reading a zone beside `readStream.parquet` on the same rows, all columns, to the `noop` sink.
3. CPU time a row with duplicates dropped by the source beside `dropDuplicates` on RocksDB; two writers, a tenth twice.

CPU time is that of JVM, driver and Python workers together; runs go in turn, in one session, and what counts is the
median of the ratios, pair by pair.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.spark_session import CpuClock, session
from sidecar.core.parts import Batch
from sidecar.spark import read_stream
from sidecar.spark.source.options import Limit
from sidecar.spark.source.planner import Planner
from sidecar.zone.writer import Format
from tests.support.landing import Sent, part, writer
from tests.support.manifest import Lines, place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_A_BATCH = 5_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Polls(NamedTuple):
    """Milliseconds of a poll that finds nothing, and of one that plans a new batch."""

    idle_ms: float
    busy_ms: float


def polls(counts: list[int]) -> list[Polls]:
    """What a poll costs with so many batches consumed; printed as well."""
    found = list[Polls]()
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            lines = Lines(Path(name))
            for number in range(count):
                entry = lines.land("ab"[number % 2], {place(): range(number * 500, number * 500 + 500)})
                file = lines.root / entry.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            begun_s = time.perf_counter()
            planner = Planner(lines.root, report=print)
            at = planner.latest({}, Limit())
            planner.plan(at, at)
            restart_s = time.perf_counter() - begun_s
            idle_ms = _median_ms(partial(planner.latest, at, Limit(files=1_000)), 200)
            busy_ms = []
            for number in range(count, count + 50):
                lines.land("ab"[number % 2], {place(): range(number * 500, number * 500 + 500)})
                begun_s, before = time.perf_counter(), at
                at = planner.latest(before, Limit(files=1_000))
                assert len(planner.plan(before, at)) == 1
                busy_ms.append((time.perf_counter() - begun_s) * 1e3)
        found.append(Polls(idle_ms, statistics.median(busy_ms)))
        print(
            f"  {count:>6,} consumed: a poll {idle_ms:.3f} ms, one that plans a new batch {found[-1].busy_ms:.3f} ms, "
            f"a restart {restart_s:.2f} s"
        )
    return found


def _median_ms(call: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        begun_s = time.perf_counter()
        call()
        spent.append((time.perf_counter() - begun_s) * 1e3)
    return statistics.median(spent)


def land(root: Path, name: str, first: int, rows: int, form: Format = "arrow") -> None:
    """Rows of 150 bytes as a daemon lands them."""
    zone = writer(root, name, format=form)
    for start in range(first, first + rows, ROWS_A_BATCH):
        count = min(ROWS_A_BATCH, first + rows - start)
        values = (
            (b'{"id":%010d,"customer":"%x","pad":"' % (i, i * 2654435761)).ljust(148, b"x") + b'"}'
            for i in range(start, start + count)
        )
        zone.land(Batch(1, "paid", [part([Sent(start + i, b"k%d" % i, value) for i, value in enumerate(values)])]))
    zone.close()


def compare(
    title: str, rows: int, ways: dict[str, Callable[[], DataFrame]], runs: int, folder: Path, wanted: float
) -> None:
    """Print CPU time a row of two ways, in turn, and the ratios of the first to the second."""
    print(title)
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):  # the first one warms up, and does not count
        for name, way in ways.items():
            clock, wall_s = CpuClock(), time.perf_counter()
            stream = (
                way().writeStream.format("noop").option("checkpointLocation", str(folder / f"{title}-{name}-{run}"))
            )
            query = stream.trigger(availableNow=True).start()
            query.awaitTermination()
            read = sum(progress["numInputRows"] for progress in query.recentProgress)
            assert read >= rows, (name, read)
            cpu_us, wall_s = clock.seconds() / rows * 1e6, time.perf_counter() - wall_s
            print(
                f"  {name:<28} {cpu_us:6.2f} us CPU a row   {rows / wall_s / 1e6:.2f} M rows/s"
                + " (warm-up)" * (run == 0)
            )
            spent[name] += [cpu_us] * (run > 0)
    ratios = sorted(ours / theirs for ours, theirs in zip(*spent.values(), strict=True))
    found = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"  ratio: median {statistics.median(ratios):.2f} of {found} (at most {wanted} wanted)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--consumed", type=int, default=50_000)
    parser.add_argument("--polls-only", action="store_true")
    wanted = parser.parse_args()
    print("polls")
    few, many = polls([100, wanted.consumed])
    idle, busy = many.idle_ms / few.idle_ms, many.busy_ms / few.busy_ms
    print(f"  ratio: {idle:.2f} and {busy:.2f} (about 1 wanted)")
    if wanted.polls_only:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        zone, parquet, twice = folder / "zone", folder / "parquet", folder / "twice"
        land(zone, "a", 0, wanted.rows)
        land(parquet, "a", 0, wanted.rows, "parquet")
        land(twice, "a", 0, wanted.rows)
        land(twice, "b", wanted.rows * 9 // 10, wanted.rows // 10)
        spark = session(folder, settings={"spark.sql.streaming.stateStore.providerClass": ROCKSDB})
        schema = spark.read.parquet(str(parquet / "data/*/*")).schema
        compare(
            "reading",
            wanted.rows,
            {
                "sidecar": lambda: read_stream(spark, zone),
                "readStream.parquet": lambda: spark.readStream.schema(schema).parquet(str(parquet / "data/*/*")),
            },
            wanted.runs,
            folder,
            1.1,
        )
        key = ["topic", "partition", "offset"]
        compare(
            "dropping duplicates",
            wanted.rows,
            {
                "sidecar with dedup": lambda: read_stream(spark, twice),
                "dropDuplicates on RocksDB": lambda: read_stream(spark, twice, dedup=False).dropDuplicates(key),
            },
            wanted.runs,
            folder,
            0.25,
        )
        spark.stop()


if __name__ == "__main__":
    main()
