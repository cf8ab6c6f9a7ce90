"""Messages of many tags into a landing zone or a Delta table: rows a second, rows a file, bytes a row; a tag read.

Messages of 200 bytes, a tag each, no groups configured, so that each tag is a group. With as many tags as asked for and
with a single one, in turn: the ratio of the two is what many tags cost. With `--read`, Spark then reads the last zone:
all rows, those of one tag by option and by filter, and all rows with a filter that Spark does not report, in turn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.spark_session import CpuClock, session
from benchmarks.throughput import whole_cpu_seconds
from sidecar.spark import read
from tests.support.kafka import KafkaBroker, Outgoing, produce
from tests.support.process import Daemon, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4
SINKS: dict[str, str] = {"spark": "landing", "delta": "path"}


def stream(count: int, tags: int) -> Iterator[Outgoing]:
    """Messages of 200 bytes, tags in turn, partitions in turn of a thousand."""
    names = [b"tag%d" % i for i in range(tags)]
    for i in range(count):
        value = b'{"id":%010d,"pad":"' % i
        tag = names[i * 7919 % tags]
        yield Outgoing(i // 1000 % PARTITIONS, value.ljust(198, b"x") + b'"}', headers=[("tag", tag)])


def run(broker: KafkaBroker, sink: str, topic: str, count: int, folder: Path, keys: dict[str, Any]) -> Path:
    """Deliver a topic, print what it took, and return the zone or table."""
    at = folder / f"{sink}-{topic}"
    kafka = {"bootstrap_servers": broker.bootstrap, "group_id": f"bench-{time.monotonic_ns()}", "topics": [topic]}
    config: dict[str, Any] = {
        "source": {"kafka": kafka},
        "tags": {"from": {"header": "tag"}},
        "sink": {sink: {SINKS[sink]: str(at), **keys}},
    }
    with Daemon(folder, config, name=f"bench-{time.monotonic_ns()}") as sidecar:
        sidecar.wait_ready()
        wait_until(lambda: int(sidecar.status()["consumed"]) > 0, 30, "the first message")
        begun_s, cpu_s = time.perf_counter(), whole_cpu_seconds(sidecar.pid)
        while int(sidecar.status()["delivered"]) < count:
            time.sleep(0.2)
        wall_s, cpu_s = time.perf_counter() - begun_s, whole_cpu_seconds(sidecar.pid) - cpu_s
        sidecar.terminate()
        sidecar.wait(0)
    files = [path for path in at.rglob("*") if path.suffix in (".arrow", ".parquet") and "_delta_log" not in str(path)]
    size, lines = (sum(path.stat().st_size for path in some) for some in (files, at.rglob("*.log")))
    print(
        f"{sink} {topic:10} {count / wall_s:9,.0f} rows/s {cpu_s / count * 1e6:6.1f} us CPU a row {len(files):6} files "
        f"{count / len(files):9,.0f} rows a file {size / count:6.1f} + {lines / count:.1f} bytes a row",
        flush=True,
    )
    return at


def compare(zone: Path, count: int, tags: int, runs: int, folder: Path) -> None:
    """Print CPU time a row of the zone of reading all rows and one tag, and the ratios to the former."""
    spark, condition = session(folder), "tag = 'tag7'"
    ways: dict[str, tuple[bool, Callable[[], DataFrame], int]] = {
        "all rows": (False, lambda: read(spark, zone), count),
        "option tags": (False, lambda: read(spark, zone, tags=["tag7"]), count // tags),
        "where, reported": (True, lambda: read(spark, zone).where(condition), count // tags),
        "where, not reported": (False, lambda: read(spark, zone).where(condition), count // tags),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs + 1):  # the first one warms up, and does not count
        for name, (reported, frame, rows) in ways.items():
            spark.conf.set("spark.sql.python.filterPushdown.enabled", str(reported).lower())
            clock, wall_s = CpuClock(), time.perf_counter()
            frame().write.format("noop").mode("overwrite").save()
            cpu_us, wall_s = clock.seconds() / count * 1e6, time.perf_counter() - wall_s
            spent[name] += [cpu_us] * (number > 0)
            print(f"{name:20} {cpu_us:6.2f} us CPU a row of the zone {wall_s:6.2f} s", flush=True)
            if number == 0:
                assert frame().count() == rows, name
    for name, found in spent.items():
        ratios = sorted(one / every for one, every in zip(found, spent["all rows"], strict=True))
        print(f"{name:20} ratio: median {statistics.median(ratios):.2f} of {', '.join(f'{one:.2f}' for one in ratios)}")
    spark.stop()


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--tags", type=int, default=2_000)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--sink", choices=SINKS, default="spark")
    parser.add_argument("--partition-by", nargs="+", help="for a Delta table: its partitions, such as tag")
    parser.add_argument("--read", type=int, default=0, help="number of turns in which Spark reads the last zone")
    asked = parser.parse_args()
    keys = {"partition_by": asked.partition_by} if asked.partition_by else {}
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "broker") as broker:
        for tags in (1, asked.tags):
            topic = broker.create_topic(f"tags-{tags}", PARTITIONS)
            produce(broker.bootstrap, topic, stream(asked.messages, tags))
        for pair in range(asked.pairs):
            for tags in (1, asked.tags):
                folder = Path(name) / f"{pair}-{tags}"
                folder.mkdir()
                zone = run(broker, asked.sink, f"tags-{tags}", asked.messages, folder, keys)
        if asked.read:
            compare(zone, asked.messages, asked.tags, asked.read, Path(name))


if __name__ == "__main__":
    main()
