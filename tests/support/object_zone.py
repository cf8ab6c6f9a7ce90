"""A zone in an object store under lost answers and crashes, by a seed: writers, their zombies, and a reader."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable

from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition
from sidecar.errors import ZoneError
from sidecar.zone import Entry, Tail, acknowledge, read
from sidecar.zone.entry import parse
from sidecar.zone.retention import Retention
from sidecar.zone.writer import ZoneFullError, ZoneWriter
from tests.support.bucket import MemoryBucket, Objects, Odds, storage
from tests.support.landing import ProcessDied, batch, entries

BATCHES = 4
"""Of each writer."""
ROWS = 2
"""Of a batch."""
STEPS_MAX = 2_000
Place = tuple[int, int]


class Shipper:
    """A daemon: lands the batches of its partition in order, and again from its commit on after a crash.

    Args:
        world: Where.
        partition: Its partition.
    """

    def __init__(self, world: ObjectZone, partition: int) -> None:
        self._world = world
        self._partition = partition
        self._zone: ZoneWriter | None = None
        self.committed = 0
        self.next = 0

    @property
    def done(self) -> bool:
        """Whether all is landed."""
        return self.committed == BATCHES

    def batch(self, number: int) -> Batch:
        """One of its batches, always the same."""
        return batch(number * ROWS, ROWS, tp=TopicPartition("orders", self._partition))

    def step(self) -> None:
        """Start, or land one batch."""
        zombie = self._zone
        try:
            if self._zone is None:
                self._zone = self._world.open("ab"[self._partition])
                self.next = max(self.committed - 1, 0)
            number = self.next
            self._zone.land(self.batch(number))
            self._world.landed(self._partition, number)
            self.next = number + 1
            self.committed = max(self.committed, self.next)
        except (OSError, ZoneFullError):
            pass
        except (ProcessDied, ZoneError):
            self._zone = None
        if self._world.chance.random() < self._world.zombies:
            # A second process begins as the same writer, and this one goes on now and then.
            self._world.zombie(self._partition, zombie)
            self._zone = None

    def finish(self, odds: Odds) -> None:
        """Land all of it without trouble."""
        self._zone = None
        for _ in range(4 * BATCHES):
            if not self.done:
                self.step()
        assert self.done, "recovers when the store does"


class ObjectZone:
    """The store, two daemons and a reader.

    Args:
        seed: Of all that happens.
        odds: Of a request.
        zombies: Of a second process, in each step.
    """

    def __init__(self, seed: int, odds: Odds, zombies: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.zombies = zombies
        self._odds = odds
        self._objects = Objects()
        self._shippers = [Shipper(self, 0), Shipper(self, 1)]
        self._zombies: list[tuple[int, ZoneWriter]] = []
        self._clock_ms = 0
        self._reader = storage(self._bucket(Odds(fails=odds.fails)))
        self._tail: Tail | None = None
        self._read: dict[str, int] = {}
        self._seen: dict[tuple[str, int], Entry] = {}
        self.got: Counter[Place] = Counter()
        self.told: list[str] = []

    def _bucket(self, odds: Odds) -> MemoryBucket:
        return MemoryBucket(self._objects, self.chance, odds)

    def open(self, name: str) -> ZoneWriter:
        """A process that writes as this writer."""
        return ZoneWriter(
            storage(self._bucket(self._odds)),
            name,
            retention=Retention(1_000, 1 << 30),
            report=self.told.append,
            clock_ms=self._now,
        )

    def _now(self) -> int:
        self._clock_ms += 400
        return self._clock_ms

    def zombie(self, partition: int, zone: ZoneWriter | None) -> None:
        """Keep a process that another one took the place of."""
        if zone is not None:
            self._zombies.append((partition, zone))

    def landed(self, partition: int, number: int) -> None:
        """Check that what was acknowledged is stored, or was read."""
        places = {(partition, number * ROWS + i) for i in range(ROWS)}
        missing = places - self.got.keys()
        if missing:
            stored = self._objects.stored
            lines = [_line(data) for key, data in stored.items() if key.endswith(".line")]
            found = {place for file, places in lines if f"zone/{file}" in stored for place in places}
            assert missing <= found, "not visible when it is acknowledged"

    def run(self) -> int:
        """Let all happen, then heal, and check that each row arrived once, as it was sent; return their number."""
        acknowledge(storage(self._bucket(Odds())), "reader", {})
        for _ in range(STEPS_MAX):
            if all(one.done for one in self._shippers):
                break
            self.chance.choice(self._actors())()
        self._odds, self.zombies = Odds(), 0.0
        self._reader = storage(self._bucket(Odds()))
        for late in self._objects.late:
            late()
        self._objects.late.clear()
        for shipper in self._shippers:
            shipper.finish(Odds())
        self._tail = None
        self.follow()
        wanted = {(partition, offset) for partition in range(2) for offset in range(BATCHES * ROWS)}
        assert self.got == Counter(wanted), "each row once"
        for name in "ab":
            self.open(name).close()
            orphans = {key for key in self._objects.stored if f"data/{name}/" in key}
            assert orphans <= {f"zone/{entry.file}" for entry in self._seen.values()}, "orphans are removed"
            self.told.clear()
            self.open(name).close()
            assert not self.told, "set right once"
        heads = {name: max(seq for writer, seq in self._seen if writer == name) for name in "ab"}
        assert Tail(self._reader).heads() == heads, "a new reader knows the end"
        assert {entry.writer: entry.seq for entry in entries(self._reader)} == heads, "and gets there"
        return self.got.total()

    def _actors(self) -> list[Callable[[], None]]:
        live = [one.step for one in self._shippers if not one.done]
        return [*live * 3, self.follow, *([self._resume] if self._zombies else [])]

    def _resume(self) -> None:
        """A zombie lands something that another process has landed, or not yet."""
        partition, zone = self.chance.choice(self._zombies)
        shipper = self._shippers[partition]
        number = self.chance.randrange(max(shipper.next - 2, 0), min(shipper.next + 1, BATCHES))
        try:
            zone.land(shipper.batch(number))
            self.landed(partition, number)
        except (OSError, ZoneFullError):
            pass
        except (ProcessDied, ZoneError):
            self._zombies.remove((partition, zone))

    def follow(self) -> None:
        """Read what is new, and acknowledge it."""
        try:
            if self._tail is None or self.chance.random() < 0.1:
                self._tail = Tail(self._reader, self._read)
            for writer, new in self._tail.poll().items():
                for entry in new:
                    self._take(writer, entry)
            acknowledge(self._reader, "reader", self._read)
        except OSError:
            self._tail = None

    def _take(self, writer: str, entry: Entry) -> None:
        assert entry.seq == self._read.get(writer, -1) + 1, "in order, without a gap"
        tables = list(read(self._reader, entry, ["partition", "offset"]))
        self._seen[writer, entry.seq] = entry
        self._read[writer] = entry.seq
        for table in tables:
            self.got.update(zip(*(column.to_pylist() for column in table.columns), strict=True))


@functools.cache
def _line(data: bytes) -> tuple[str, list[Place]]:
    """The file of a line, and its rows."""
    entry = parse(data.rstrip())
    return entry.file, [(cover.partition, offset) for cover in entry.covers for offset in cover.offsets()]
