"""The rows of a changelog on the local disk beside plain dictionaries, through crashes of process and machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay import partition, stored
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import Point
from sidecar.delay.database import SyncJob
from sidecar.delay.rows import Held
from tests.support.partition_store import flushed, killed, log_sizes, power_cut

HOUR_MS = 3_600_000
START_MS = 500_000 * HOUR_MS
END = START_MS + 1_000 * HOUR_MS << 20
ACTIONS = (
    *("put",) * 6, *("adopt",) * 3, *("take",) * 5, *("keep",) * 3, *("begin",) * 4, *("run",) * 4, *("ended",) * 4,
    *("point",) * 4, *("vouch",) * 4, "cancel", "remove", "release", "drop", "flush", "kill", "power",
)  # fmt: skip
SMALL = {(partition, "COUNTS_MAX"): 5, (stored, "COUNTS_MAX"): 5}
"""Bounds so small that all that they bound happens."""


@dataclass
class Model:
    """What a partition must have."""

    held: dict[int, tuple[int, bytes | None]] = field(default_factory=dict)
    """Origin and value by position."""
    known: set[int] = field(default_factory=set)
    state: bytes | None = None
    watermark: int = 0
    cursor: int = 0

    def copy(self) -> Model:
        """The model as it is now."""
        return Model(dict(self.held), set(self.known), self.state, self.watermark, self.watermark)


@dataclass
class Vouched:
    """What a later process may find."""

    number: int
    models: dict[int, Model]


class World:
    """A cache, what it holds, and what was vouched for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers, self.origins = count(), count()
        self.past: list[Vouched] = []
        """What the next process may find, oldest first."""
        self.is_certain = False
        """Whether it must find something."""
        self.found = 0
        """Number of starts that found something."""
        self.open()

    def open(self) -> None:
        """Start, and find what was vouched for last, or later, or nothing if that was never durable."""
        self.cache = LocalCache(self.folder)
        self.job: SyncJob | None = None
        self.is_run = False
        self.durable: dict[str, int] = {}
        self.points: list[tuple[Point, Vouched]] = []
        self.written: list[tuple[int, Point, Vouched]] = []
        """What was vouched for, each with the number of changes that make it durable."""
        self.models: dict[int, Model] = {}
        table = self.cache.vouched
        if table is None:
            assert not self.is_certain, "what is durable was lost"
            self.past = []
            self.cache.retain([])
        else:
            (vouched,) = [each for each in self.past if each.number == int(table)] or [Vouched(-1, {})]
            assert vouched.number >= 0, "it is older than what is durable"
            self.models = {number: model.copy() for number, model in vouched.models.items()}
            self.cache.retain(self.models)
            self.past, self.found, self.is_certain = [vouched], self.found + 1, True
        self.compare()

    def compare(self) -> None:
        """The cache has what the models have."""
        for number, model in self.models.items():
            assert self.cache.held(number) == len(model.held)
            assert (self.cache.state(number), set(self.cache.known(number))) == (model.state, model.known)

    def pick(self, random: Random) -> tuple[int, Model]:
        """A partition, perhaps a new one."""
        if not self.models or (len(self.models) < 3 and random.random() < 0.2):
            self.models[self.cache.begin_partition(b"p")] = Model()
        return random.choice(list(self.models.items()))

    def put(self, random: Random) -> None:
        """Put some."""
        number, model = self.pick(random)
        dues = [START_MS + random.randrange((50, 3_000, 4 * HOUR_MS)[i % 3]) for i in range(random.randrange(1, 6))]
        rows = [
            Held(due << SEQUENCE_BITS, next(self.origins), 0, None, NO_TAGS, None, b"", b"%d" % due * (due % 9))
            for due in dues
        ]
        positions = self.cache.put(number, rows)
        model.held |= {position: (row[1], row[7]) for position, row in zip(positions, rows, strict=True)}
        model.known |= {row[1] for row in rows}

    def adopt(self, random: Random) -> None:
        """Hold some that have positions."""
        number, model = self.pick(random)
        low, new = 1 << 18, {START_MS + random.randrange(4 * HOUR_MS) << 20 for _ in range(random.randrange(1, 6))}
        rows = [Held(p | low + next(self.numbers), next(self.origins), 7, None, NO_TAGS, None, b"", b"x") for p in new]
        self.cache.adopt(number, rows)
        model.held |= {row[0]: (row[1], row[7]) for row in rows if row[0] >= model.watermark}

    def take(self, random: Random) -> None:
        """Take some, in order."""
        number, model = self.pick(random)
        waiting = sorted(position for position in model.held if position >= model.cursor)
        taken = self.cache.take_due(number, END, random.randrange(1, 6), 1 << 30)
        assert [held.position for held in taken] == waiting[: len(taken)]
        assert all(model.held[held.position] == (held.origin, held.value) for held in taken)
        cursor = taken[-1].position + 1 if taken else model.cursor
        past = self.cache._partitions[number].cursor  # further, if what follows is cancelled
        assert not any(cursor <= position < past for position in model.held)
        model.cursor = max(cursor, past)

    def keep(self, random: Random) -> None:
        """The watermark rises, at most to the cursor."""
        number, model = self.pick(random)
        model.watermark = random.choice([model.watermark, *(p for p in model.held if p < model.cursor), model.cursor])
        model.state = b"%d" % next(self.numbers)
        self.cache.keep(number, model.state, model.watermark, model.watermark)
        model.held = {position: row for position, row in model.held.items() if position >= model.watermark}

    def cancel(self, random: Random) -> None:
        """Cancel one that was not taken."""
        number, model = self.pick(random)
        if waiting := [position for position in model.held if position >= model.cursor]:
            position = random.choice(waiting)
            assert self.cache.cancel(number, position)
            del model.held[position]

    def remove(self, random: Random) -> None:
        """One of two messages at a position is removed."""
        number, model = self.pick(random)
        position = START_MS + random.randrange(4 * HOUR_MS) << 20 | 1 << 18 | 1 + next(self.numbers)
        if position >= model.cursor:
            for epoch in (3, 5):
                self.cache.adopt(number, [Held(position, 1, epoch, None, NO_TAGS, None, b"", b"%d" % epoch)])
            assert self.cache.remove(number, position, 3)
            model.held[position] = 1, b"5"

    def release(self, random: Random) -> None:
        """Bring one forward that was not taken."""
        number, model = self.pick(random)
        if waiting := [position for position in model.held if position >= model.cursor]:
            position = random.choice(waiting)
            earlier = self.cache.release(number, position, START_MS)
            assert earlier is not None
            model.held[earlier] = model.held.pop(position)

    def drop(self, random: Random) -> None:
        """A partition leaves."""
        number, _ = self.pick(random)
        self.cache.drop(number)
        del self.models[number]

    def point(self, _: Random) -> None:
        """Note the present state."""
        copies = {number: model.copy() for number, model in self.models.items()}
        self.points.append((self.cache.point(), Vouched(next(self.numbers), copies)))

    def vouch(self, _: Random) -> None:
        """Vouch for a state that is durable."""
        if self.points and self.cache.writes.synced >= self.points[0][0].changes:
            point, vouched = self.points.pop(0)
            self.cache.vouch(point, b"%d" % vouched.number)
            self.written.append((self.cache.writes.changes, point, vouched))
            self.past.append(vouched)

    def begin(self, _: Random) -> None:
        """A job begins."""
        if self.job is None:
            self.job, self.is_run = self.cache.writes.begin_sync(), False

    def run(self, _: Random) -> None:
        """It runs."""
        if self.job is not None and not self.is_run:
            sizes = log_sizes(self.cache)
            self.job.run()
            self.is_run, self.durable = True, sizes

    def ended(self, _: Random) -> None:
        """The main thread hears of it: what was vouched for before is too old now."""
        if self.job is not None and self.is_run:
            self.cache.writes.ended_sync(self.job, None)
            self.job = None
        while self.written and self.written[0][0] <= self.cache.writes.synced:
            vouched = self.written.pop(0)[2]
            self.past, self.is_certain = self.past[self.past.index(vouched) :], True

    def flush(self, _: Random) -> None:
        """Rows go to a file."""
        flushed(self.cache)

    def kill(self, _: Random) -> None:
        """The process dies."""
        self.folder = killed(self.cache)
        self.open()

    def power(self, random: Random) -> None:
        """The machine dies."""
        self.folder = power_cut(self.cache, self.durable, random)
        self.open()


@pytest.mark.parametrize("seeds", [range(first, first + 16) for first in range(0, 80, 16)])
def test_a_start_finds_what_was_vouched_for(seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was then: nothing that was put, taken, cancelled or moved later, and never something older."""
    for (module, name), value in SMALL.items():
        monkeypatch.setattr(module, name, value)
    found = 0
    for seed in seeds:
        random = Random(seed)
        world = World(tmp_path / f"{seed}" / "cache")
        for _ in range(300):
            getattr(world, random.choice(ACTIONS))(random)
            world.compare()
        world.kill(random)
        for number, model in world.models.items():
            taken = world.cache.take_due(number, END, 1 << 30, 1 << 40)
            assert {held.position: (held.origin, held.value) for held in taken} == model.held
        found += world.found
        world.cache.close()
    assert found > 15
