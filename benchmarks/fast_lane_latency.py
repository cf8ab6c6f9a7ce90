"""From produce to receiver: milliseconds, with the fast lane and without, in turns, at steady rates.

Kafka's own performance producer sends messages of 200 bytes to 4 partitions, each at once (`linger.ms=0`). The daemon
reads them with `batch.linger: 20ms` and sends rows of `envelope`, whose timestamps the receiver compares with its
clock. The first quarter is left out: Java compiles the producer meanwhile. All share the
machine; the share of its CPU time that was in use is printed too.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.delay_lateness import Figures, child, first_line, last_line
from tests.scenarios.exactly_once import configuration
from tests.support.jars import executable, jars
from tests.support.kafka import KafkaBroker
from tests.support.process import Daemon

PARTITIONS, SIZE = 4, 200
RATES = (10_000, 50_000, 100_000)
SECONDS = 20
WAYS = {"lane": "on", "Python": "off"}


def produce(broker: KafkaBroker, topic: str, messages: int, rate: int) -> None:
    """Send so many messages at this rate."""
    options = f"--topic {topic} --num-records {messages} --throughput {rate} --record-size {SIZE}"
    properties = f"bootstrap.servers={broker.bootstrap} linger.ms=0 acks=1"
    java = [executable("java"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars()}/*"]
    command = [*java, "org.apache.kafka.tools.ProducerPerformance", *options.split()]
    subprocess.run([*command, "--producer-props", *properties.split()], check=True, stdout=subprocess.DEVNULL)


def measured(broker: KafkaBroker, folder: Path, way: str, rate: int) -> Figures:
    """What one run took."""
    topic, messages = broker.create_topic(f"latency-{time.monotonic_ns()}", PARTITIONS), rate * SECONDS
    wanted = str(messages), "--field", "timestamp", "--warm-up", str(messages // 4)
    with child("delay_receiver", *wanted) as receiver:
        url = f"http://127.0.0.1:{first_line(receiver)}/"
        config = configuration(broker, [topic], url, "*", batch={"linger": "20ms"})
        config["source"]["kafka"]["lane"] = WAYS[way]
        with Daemon(folder, config, name=topic) as daemon:
            daemon.wait_ready()
            psutil.cpu_percent()
            produce(broker, topic, messages, rate)
            busy = psutil.cpu_percent()
            figures = last_line(receiver, 120)
            daemon.stop()
    broker.delete_topic(topic)
    return figures | {"busy": busy}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print("| messages a second | way | p50 | p99 | p99.9 | CPU in use |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        for rate in RATES:
            found: dict[str, list[Figures]] = {way: [] for way in WAYS}
            for number in range(rounds):
                for way in list(WAYS)[:: 1 if number % 2 else -1]:
                    found[way].append(measured(broker, Path(name), way, rate))
            for way, runs in found.items():
                p50, p99, p999, busy = (
                    statistics.median(run[key] for run in runs) for key in ("p50", "p99", "p999", "busy")
                )
                print(f"| {rate:,} | {way} | {p50:.0f} ms | {p99:.0f} ms | {p999:.0f} ms | {busy:.0f} % |")


if __name__ == "__main__":
    main()
