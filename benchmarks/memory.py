"""What the daemon's memory grows by while the receiver never answers, beside what `status` says is held.

For each point (tags, bytes of a value, partitions, format, ids, compression) the topic is filled, the daemon reads
until memory stops it, and its anonymous memory is taken: at its peak, and once it has come to rest, both less that of a
daemon that holds one message of as many partitions. A point whose memory is beyond the bounds is marked.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.core.batching import ID_BYTES, OFFSET_BYTES
from sidecar.daemon.taken import MEMORY_BYTES as IDS_BYTES
from tests.support.kafka import Broker, KafkaBroker, Outgoing, produce
from tests.support.process import Daemon, wait_until

MIB = 1 << 20
ENVELOPE_BYTES = 150
GROWTH_MAX, BUDGET_MAX, REST_MIB = 1.25, 1.3, 60
"""Growth is at most 1.25 of what is held; all anonymous memory at most 1.3 of the budget and 60 MiB."""
SETTLED_S = 3.0


class Point(NamedTuple):
    """One configuration and its messages."""

    tags: int
    value_bytes: int
    partitions: int
    format: str = "ndjson"
    ids: bool = False
    compression: str = "none"
    by: str = "partition"
    packed: str = "none"
    """Compression of the topic's batches."""

    def messages(self) -> Point:
        """What two points that are read from the same topic have in common."""
        return self._replace(format="ndjson", compression="none", by="partition")

    def enough(self, budget: int) -> int:
        """More messages than fit, whatever else a message takes."""
        row = self.value_bytes + (ENVELOPE_BYTES if self.format == "envelope" else 1)
        return int(0.7 * budget // (row + OFFSET_BYTES + (ID_BYTES if self.ids else 0)))

    def __str__(self) -> str:
        more = [
            self.format,
            *(["ids"] if self.ids else []),
            *([self.compression] if self.compression != "none" else []),
        ]
        more += ["by group"] if self.by == "group" else []
        more += [f"topic {self.packed}"] if self.packed != "none" else []
        return f"{self.tags:5} tags {self.value_bytes:6} B {self.partitions:4} partitions {' '.join(more):24}"


class Found(NamedTuple):
    """What a point came to, in bytes."""

    budget: int
    base: int
    peak: int
    rest: int
    held: int
    """Of messages, and of the fast lane itself."""
    ids: int
    """Of message ids in memory."""
    rows: int

    @property
    def growth(self) -> int:
        """Since the daemon was ready."""
        return self.rest - self.base

    @property
    def ratio(self) -> float:
        """Growth for each byte held."""
        return self.growth / max(1, self.held + self.ids)

    @property
    def keeps_bounds(self) -> bool:
        """Whether both bounds hold."""
        whole = BUDGET_MAX * self.budget + REST_MIB * MIB + (IDS_BYTES if self.ids else 0)
        return self.ratio <= GROWTH_MAX and self.peak <= whole

    def __str__(self) -> str:
        held = self.held + self.ids
        told = f"{self.rows:9,} rows, held {held / MIB:5.1f} MiB, {self.ids / MIB:.1f} of it ids, grown "
        told += f"{self.growth / MIB:6.1f} MiB = {self.ratio:5.2f} x; "
        told += f"from {self.base / MIB:.1f}, peak {self.peak / MIB:6.1f} MiB"
        return f"{told} {'' if self.keeps_bounds else '  BEYOND'}"


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that no file is behind."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def stream(point: Point, count: int) -> Iterator[Outgoing]:
    """Tags in turn, partitions in turn, ids that are all different."""
    value = json.dumps("x" * (point.value_bytes - 2)).encode() if point.value_bytes > 2 else b"1" * point.value_bytes
    tags = [b"tag-%d" % i for i in range(point.tags)]
    for i in range(count):
        headers: list[tuple[str, bytes | None]] = [("tag", tags[i % point.tags])]
        if point.ids:
            headers.append(("id", b"id-%016d" % i))
        # Not the same tags in the same partitions for ever.
        yield Outgoing(partition=(i + i // point.tags) % point.partitions, value=value, headers=headers)


@contextmanager
def silence() -> Iterator[int]:
    """The port of a receiver that reads what it is sent and never answers."""
    held: list[socket.socket] = []

    def read(connection: socket.socket) -> None:
        buffer = bytearray(1 << 16)
        try:
            while connection.recv_into(buffer):
                pass
        except OSError:
            pass

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            threading.Thread(target=read, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        for connection in held:
            connection.close()


def settings(broker: Broker, topic: str, port: int, point: Point, budget: int) -> dict[str, Any]:
    """The configuration of a point."""
    kafka = {"bootstrap_servers": broker.bootstrap, "group_id": f"memory-{time.monotonic_ns()}", "topics": [topic]}
    return {
        "source": {"kafka": kafka},
        "tags": {"from": {"header": "tag"}, "subscribe": "*"},
        **({"dedup": {"by": {"header": "id"}}} if point.ids else {}),
        "batch": {"by": point.by, "max_bytes": f"{min(4 * MIB, budget // 8) // 1024}KiB"},
        "memory": {"budget": f"{budget // MIB}MiB"},
        "sink": {
            "http": {
                "url": f"http://127.0.0.1:{port}/",
                "format": point.format,
                "compression": point.compression,
            }
        },
    }


@contextmanager
def filled(broker: Broker, point: Point, count: int) -> Iterator[str]:
    """The name of a topic with so many messages of a point."""
    topic = f"memory-{time.monotonic_ns()}"
    broker.create_topic(topic, point.partitions)
    produce(broker.bootstrap, topic, stream(point, count), **{"compression.type": point.packed, "batch.size": 1 << 20})
    yield topic
    broker.delete_topic(topic)


def measure(broker: Broker, port: int, folder: Path, point: Point, budget: int, topic: str) -> Found:
    """Run one point.

    Args:
        broker: A real one.
        port: Of a receiver that never answers.
        folder: For configuration, state and log.
        point: What is measured.
        budget: `memory.budget` in bytes.
        topic: With more of its messages than fit.
    """
    with (
        filled(broker, point, 1) as first,
        Daemon(folder, settings(broker, first, port, point, budget), name=first) as sidecar,
    ):
        sidecar.wait_ready()
        wait_until(lambda: sidecar.status()["in_flight"] == 1, 30, "the first message")
        time.sleep(1.0)
        base = anonymous_bytes(sidecar.pid)
        sidecar.kill9()
    with Daemon(folder, settings(broker, topic, port, point, budget), name=f"{first}-full") as sidecar:
        sidecar.wait_ready(60)
        found = _watch(sidecar, budget, base)
        sidecar.kill9()
    return found


def _watch(sidecar: Daemon, budget: int, base: int) -> Found:
    peak = 0
    last, since_s = -1, time.monotonic()
    told: dict[str, Any] = {}

    def rests() -> bool:
        nonlocal peak, last, since_s, told
        peak = max(peak, anonymous_bytes(sidecar.pid))
        told = sidecar.status()
        if told["consumed"] != last:
            last, since_s = told["consumed"], time.monotonic()
        return last > 0 and time.monotonic() - since_s > SETTLED_S

    wait_until(rests, 300, "nothing more is read")
    return Found(
        budget,
        base,
        peak,
        anonymous_bytes(sidecar.pid),
        told["held_bytes"] + told["lane"]["memory_bytes"],
        told["ids"]["memory_bytes"],
        told["in_flight"],
    )


WORST = [
    Point(8, 1, 8),
    Point(450, 30, 8),
    Point(3000, 1, 8),
    Point(3000, 30, 500),
    Point(8, 200, 8, "envelope"),
    Point(3000, 1, 8, "ndjson", ids=True),
    Point(8, 10_000, 8, "ndjson"),
]


def every() -> list[Point]:
    """All points of the table."""
    table = itertools.product(
        (8, 3000), (1, 30, 200, 10_000), (1, 8, 500), (False, True), ("ndjson", "envelope", "json_array")
    )
    return [Point(tags, size, many, form, ids) for tags, size, many, ids, form in table]


def measured(broker: Broker, folder: Path, points: list[Point], budget: int) -> Iterator[tuple[Point, Found]]:
    """Run points one after the other; those in a row that read the same messages share a topic."""
    with silence() as port:
        for messages, same in itertools.groupby(points, Point.messages):
            with filled(broker, messages, messages.enough(budget)) as topic:
                for point in same:
                    yield point, measure(broker, port, folder, point, budget, topic)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-mib", type=int, default=64)
    parser.add_argument("--all", action="store_true", help="the whole table, not the worst points alone")
    parser.add_argument("--points", help="JSON list of lists: the fields of each point")
    wanted = parser.parse_args()
    budget = wanted.budget_mib * MIB
    points = every() if wanted.all else WORST
    if wanted.points:
        points = [Point(*one) for one in json.loads(wanted.points)]
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        for point, found in measured(broker, Path(name), points, budget):
            print(point, found, flush=True)


if __name__ == "__main__":
    main()
