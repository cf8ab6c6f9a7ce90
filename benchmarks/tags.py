"""CPU time of a message by how many tags there are, in the fast lane and in Python: what the mask of tags saves.

Messages of 200 bytes, of which one in ten has one of the wanted tags; the others have tags of their own, in turn. It
ends with a table: microseconds of CPU a message, and the shares that the mask and the exact look refused.

Each row: `DISTINCT/WANTED`, and then, if it is not a tag of 12 bytes in a header, `split` (three tags of a message in
one header), `1B`, `300B`, `key` (the tag is the key), `json` (it is in the value), or `rest` (every message is wanted,
and those of other tags are in one group).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.throughput import PARTITIONS, daemon
from tests.support.kafka import KafkaBroker, produce
from tests.support.produce import Outgoing

ROWS = (
    "100/5", "10000/5", "900000/5", "900000/1", "900000/100", "900000/5000", "900000/5/split", "900000/5/300B",
    "900000/5/key", "900000/5/json", "900000/5/rest", "50/5/1B",
)  # fmt: skip
WANTED_OF = 10
"""One in so many messages is wanted."""


class Row(NamedTuple):
    """What the messages of a row have."""

    distinct: int
    wanted: int
    kind: str

    def tag(self, number: int) -> bytes:
        """The tag of this number; the first `wanted` are wanted."""
        if self.kind == "1B":
            return bytes([number % 50 + 65])
        return b"t%011d" % number if self.kind != "300B" else b"t%0299d" % number

    def tag_of(self, i: int) -> bytes:
        """The tag of message `i`, which is one of the wanted ones in one of `WANTED_OF`."""
        if i % WANTED_OF == 0:
            return self.tag(i // WANTED_OF % self.wanted)
        return self.tag(self.wanted + i % (self.distinct - self.wanted))

    def messages(self, count: int) -> Iterator[Outgoing]:
        """The messages."""
        for i in range(count):
            tag, partition = self.tag_of(i), i // 1000 % PARTITIONS
            value = b'{"id":%d,"tag":"%s","pad":"' % (i, tag if self.kind == "json" else b"")
            value = value.ljust(198, b"x") + b'"}'
            if self.kind == "split":
                others = (self.tag(self.wanted + (i * 7 + n) % (self.distinct - self.wanted)) for n in (1, 2))
                tag = b",".join((tag, *others))
            headers: list[tuple[str, bytes | None]] = [] if self.kind in ("key", "json") else [("tag", tag)]
            yield Outgoing(partition, value, tag if self.kind == "key" else None, headers=headers)

    def settings(self, broker: KafkaBroker, topic: str, port: int, lane: str) -> dict[str, Any]:
        """The configuration that is measured."""
        group_id = f"bench-{time.monotonic_ns()}"
        kafka = {"bootstrap_servers": broker.bootstrap, "group_id": group_id, "topics": [topic], "lane": lane}
        wanted = " || ".join(f'"{self.tag(n).decode("latin-1")}"' for n in range(self.wanted))
        place = {"key": "key", "json": {"json": "$.tag"}}.get(self.kind, {"header": "tag"})
        subscribe = {"subscribe": wanted, "groups": {"all": wanted}}
        if self.kind == "rest":
            subscribe = {"subscribe": "*", "groups": {"named": wanted, "rest": "*"}}
        return {
            "source": {"kafka": kafka},
            "tags": {"from": place, **subscribe, **({"split": ","} if self.kind == "split" else {})},
            "batch": {"linger": "5s"},
            "sink": {"http": {"url": f"http://127.0.0.1:{port}/", "format": "ndjson"}},
        }


def row_of(text: str) -> Row:
    """The row of a text such as `900000/5/split`."""
    distinct, wanted, *kind = text.split("/")
    return Row(int(distinct), int(wanted), kind[0] if kind else "")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--lanes", default="on,off")
    asked = parser.parse_args()
    found: dict[tuple[str, str], list[str]] = {}
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        receiver = subprocess.Popen([sys.executable, "-m", "benchmarks.discard"], stdout=subprocess.PIPE, text=True)
        try:
            assert receiver.stdout is not None
            port = int(receiver.stdout.readline())
            for text in asked.rows:
                row, topic = row_of(text), broker.create_topic(f"tags-{time.monotonic_ns()}", PARTITIONS)
                produce(broker.bootstrap, topic, row.messages(asked.messages))
                for lane in asked.lanes.split(","):
                    if lane == "on" and row.kind == "json":
                        continue
                    print(f"{text}, lane {lane}", flush=True)
                    kept = 1.0 if row.kind == "rest" else 1 / WANTED_OF
                    ran = daemon(row.settings(broker, topic, port, lane), asked.messages, Path(name), kept=kept)
                    us, rate = ran.cpu_s / ran.messages * 1e6, ran.messages / ran.wall_s
                    found[text, lane] = [f"{us:.2f}", f"{rate:,.0f}", f"{ran.rss_mib:.0f}"]
                broker.delete_topic(topic)
        finally:
            receiver.kill()
    print("\n| distinct/wanted | lane | us CPU a message | messages/s | RSS MiB |\n|---|---|---|---|---|")
    for (text, lane), cells in found.items():
        print(f"| {text} | {lane} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
