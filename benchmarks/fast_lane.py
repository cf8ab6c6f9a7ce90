"""The fast lane beside the Python way and a bare consume loop: CPU time of a message, in turns on one broker.

`ways` (the default): `ndjson`, `envelope` and ids, as many rounds as asked for: bare loop, lane, Python, in changing
order. `table`: the same for numbers of partitions and tags, sizes, compression and TLS, two rounds each. `long`: the
memory of 10 million messages, both ways. The receiver throws everything away; 5 of 8 messages are wanted where there
are 8 tags, else all, in one group.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.throughput import TAGS, WANTED, Ran, bare, daemon
from tests.scenarios.exactly_once import configuration
from tests.support.kafka import KafkaBroker, Outgoing, produce

WAYS = ("lane", "Python")
RUNS = ("bare", *WAYS)


@dataclass(frozen=True)
class Case:
    """What flows, and how it is read."""

    name: str
    messages: int
    partitions: int = 4
    tags: int = 8
    size: int = 200
    compression: str = "none"
    form: str = "ndjson"
    ids: str = ""
    """`header` or `key`; empty for positions."""
    tls: bool = False

    def stream(self) -> Iterator[Outgoing]:
        """Its messages: tags in turn, partitions in turn of a thousand."""
        names = TAGS if self.tags == len(TAGS) else [b"tag%d" % i for i in range(self.tags)]
        # Those behind `messages` are not counted: the last batches that are need not wait for `batch.linger`.
        for i in range(self.messages + min(200_000, self.messages // 2)):
            value = (b'{"id":%010d,"pad":"' % i).ljust(self.size - 2, b"x") + b'"}' if self.size > 30 else b"%020d" % i
            text = b"order-%012d" % i
            more = [("id", text)] if self.ids == "header" else []
            key = text if self.ids == "key" else None
            yield Outgoing(i // 1000 % self.partitions, value, key, [("tag", names[i % self.tags]), *more])

    @property
    def kept(self) -> float:
        """Share of the messages that is wanted."""
        return 5 / 8 if self.tags == len(TAGS) else 1.0

    def config(self, broker: KafkaBroker, topic: str, port: int, way: str) -> dict[str, Any]:
        """The daemon's configuration."""
        tags = {"subscribe": WANTED} if self.kept < 1 else {"groups": {"all": "*"}}
        config = configuration(broker, [topic], f"http://127.0.0.1:{port}/", tags={})
        config["tags"] = {"from": {"header": "tag"}, **tags}
        config["batch"] = {"linger": "5s"}
        config["sink"]["http"]["format"] = self.form
        kafka = config["source"]["kafka"]
        kafka |= {"lane": "on" if way == "lane" else "off", **self.security(broker)}
        if self.ids:
            config["dedup"] = {"by": "key" if self.ids == "key" else {"header": "id"}}
        return config

    def security(self, broker: KafkaBroker) -> dict[str, Any]:
        """Changes of `source.kafka`."""
        if not self.tls:
            return {}
        assert broker.certificates is not None
        properties = {"security.protocol": "SSL", "ssl.ca.location": str(broker.certificates.ca)}
        return {"bootstrap_servers": broker.address("SSL"), "properties": properties}


BASE = Case("", 1_000_000)
TABLE = [
    replace(BASE, name="1 partition", partitions=1),
    replace(BASE, name="8 partitions", partitions=8),
    replace(BASE, name="64 partitions", partitions=64),
    replace(BASE, name="8 tags"),
    replace(BASE, name="300 tags", tags=300),
    replace(BASE, name="10,000 tags", tags=10_000),
    replace(BASE, name="20 B", size=20, messages=2_000_000),
    replace(BASE, name="200 B"),
    replace(BASE, name="1 KB", size=1_000, messages=500_000),
    replace(BASE, name="20 KB", size=20_000, messages=50_000),
    replace(BASE, name="lz4", compression="lz4"),
    replace(BASE, name="zstd", compression="zstd"),
    replace(BASE, name="TLS", tls=True),
]


def us(ran: Ran) -> float:
    """Microseconds of CPU a message."""
    return ran.cpu_s / ran.messages * 1e6


def speed(ran: Ran) -> float:
    """Messages a second."""
    return ran.messages / ran.wall_s


class Bench:
    """A broker, and a receiver that throws everything away.

    Args:
        broker: The broker.
        port: Of the receiver.
        folder: For the daemons' files.
    """

    def __init__(self, broker: KafkaBroker, port: int, folder: Path) -> None:
        self._broker, self._port, self._folder = broker, port, folder

    def filled(self, case: Case) -> str:
        """A topic with the messages of a case."""
        topic = self._broker.create_topic(f"bench-{time.monotonic_ns()}", case.partitions)
        produce(self._broker.bootstrap, topic, case.stream(), compression_type=case.compression)
        return topic

    def run(self, case: Case, topic: str, way: str, early: int = 1) -> Ran:
        """One run of one way."""
        if way == "bare":
            rate = bare(self._broker, topic, case.messages, case.security(self._broker))
            return Ran(case.messages, case.messages / rate, 1.0)
        config = case.config(self._broker, topic, self._port, way)
        return daemon(config, case.messages, self._folder, early=early, kept=case.kept)

    def rounds(self, case: Case, rounds: int) -> dict[str, list[Ran]]:
        """Runs of all ways, in changing order."""
        print(f"{case.name}, {case.messages:,} messages")
        topic, found = self.filled(case), dict[str, list[Ran]]()
        for number in range(rounds):
            for way in RUNS[:: 1 if number % 2 else -1]:
                print(f"  {way:<7}", end="")
                found.setdefault(way, []).append(self.run(case, topic, way))
        self._broker.delete_topic(topic)
        return found


def spread(values: list[float]) -> str:
    """Median, and the range."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def ways(bench: Bench, messages: int, rounds: int) -> None:
    """CPU time of the three by format and ids, how cheap the lane is beside the bare loop, how fast beside Python."""
    base = replace(BASE, messages=messages)
    for case in (
        replace(base, name="ndjson"),
        replace(base, name="envelope", form="envelope"),
        replace(base, name="ndjson, ids in a header", ids="header"),
        replace(base, name="ndjson, ids in the key", ids="key"),
    ):
        found = bench.rounds(case, rounds)
        cheap = [us(bare) / us(lane) for bare, lane in zip(found["bare"], found["lane"], strict=True)]
        fast = [speed(lane) / speed(python) for lane, python in zip(found["lane"], found["Python"], strict=True)]
        cells = [*([us(ran) for ran in found[way]] for way in RUNS), cheap, fast]
        print(" | ".join(["", case.name, *map(spread, cells), ""]).strip())


def table(bench: Bench, rounds: int) -> None:
    """CPU time of the three for other kinds of topics."""
    for case in TABLE:
        found = bench.rounds(case, rounds)
        print(" | ".join(["", case.name, *(spread([us(ran) for ran in found[way]]) for way in RUNS), ""]).strip())


def long(bench: Bench) -> None:
    """What memory grows by, both ways."""
    case = replace(BASE, messages=10_000_000)
    topic = bench.filled(case)
    for way in WAYS:
        ran = bench.run(case, topic, way, early=2_000_000)
        print(f"| {way} | {ran.rss_mib:.0f} MiB | {ran.grown_mib:+.1f} MiB from 2 to 10 million messages |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=("ways", "table", "long", []), default=["ways"])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka", secure=True) as broker:
        receiver = subprocess.Popen([sys.executable, "-m", "benchmarks.discard"], stdout=subprocess.PIPE, text=True)
        try:
            assert receiver.stdout is not None
            bench = Bench(broker, int(receiver.stdout.readline()), Path(name))
            if "ways" in wanted.what:
                ways(bench, wanted.messages, wanted.rounds)
            if "table" in wanted.what:
                table(bench, 2)
            if "long" in wanted.what:
                long(bench)
        finally:
            receiver.kill()


if __name__ == "__main__":
    main()
