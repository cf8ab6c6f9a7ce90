"""What it costs to restore delayed messages from their changelog in Kafka, beside a bare loop that only reads it.

Messages of 200 bytes are due within 29 days, in 4 partitions. The daemon holds them and is killed; its local files are
deleted, and it starts again, in turns with the loop: the same client and the same records. CPU is of the whole process
from the moment at which it is ready, when the restore begins.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient

from benchmarks.throughput import bare, cpu_seconds, memory_mib
from tests.support.kafka import KafkaBroker, Outgoing, produce
from tests.support.process import Daemon

PARTITIONS, VALUE = 4, b"x" * 200
HOUR_MS = 3_600_000


def stream(messages: int) -> Iterator[Outgoing]:
    """Messages that are due an hour from now at the earliest."""
    begin_ms, chance = int(time.time() * 1_000) + HOUR_MS, random.Random(1)
    for i in range(messages):
        due = begin_ms + chance.randrange(29 * 24 * HOUR_MS)
        yield Outgoing(i % PARTITIONS, VALUE, None, [("tag", b"a"), ("sidecar-deliver-at", b"%d" % due)])


def held(daemon: Daemon, messages: int) -> None:
    """Wait until all are held; asking costs the daemon time too."""
    deadline_s = time.monotonic() + 900
    while daemon.status()["delayed"] != messages:
        assert time.monotonic() < deadline_s, daemon.log_tail()
        time.sleep(0.5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay_restore", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        measure(broker, Path(name), wanted.messages, wanted.pairs)


def measure(broker: KafkaBroker, folder: Path, messages: int, pairs: int) -> None:
    """Fill a changelog, then restore from it and read it in turns."""
    topic = broker.create_topic("bench", PARTITIONS)
    kafka = {"bootstrap_servers": broker.bootstrap, "group_id": "bench", "topics": [topic]}
    config = {
        "source": {"kafka": kafka},
        "tags": {"from": {"header": "tag"}, "subscribe": "a"},
        "delay": {},
        "sink": {"http": {"url": "http://127.0.0.1:9/"}},
    }
    with Daemon(folder, config) as daemon:
        daemon.wait_ready()
        produce(broker.bootstrap, topic, stream(messages))
        held(daemon, messages)
        daemon.kill9()
    names = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    (changelog,) = (name for name in names if name != topic and not name.startswith("__"))
    ratios = []
    for _ in range(pairs):
        yardstick = bare(broker, changelog, messages)
        for cache in folder.rglob("delay-cache"):
            shutil.rmtree(cache)
        with Daemon(folder, config) as daemon:
            daemon.wait_ready()
            begun_s, cpu_s = time.perf_counter(), cpu_seconds(daemon.pid)
            held(daemon, messages)
            wall_s, cpu_s = time.perf_counter() - begun_s, cpu_seconds(daemon.pid) - cpu_s
            ratios.append(messages / cpu_s / yardstick)
            print(
                f"  restored   {messages / cpu_s / 1e6:6.3f} M/CPU-s   {messages / wall_s / 1e6:6.3f} M/s   "
                f"peak RSS {memory_mib(daemon.pid, 'VmHWM'):.0f} MiB   ratio {ratios[-1]:.3f}"
            )
            daemon.kill9()
    print(f"ratio: min {min(ratios):.3f}, median {statistics.median(ratios):.3f}, max {max(ratios):.3f}")


if __name__ == "__main__":
    main()
