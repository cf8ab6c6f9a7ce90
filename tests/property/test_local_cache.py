"""The rows of a changelog on the local disk beside plain dictionaries, through crashes of process and machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay import partition, stored
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.database import SyncJob
from sidecar.delay.partition import Write
from sidecar.delay.rows import Held
from tests.support.partition_store import flushed, killed, log_sizes, power_cut

HOUR_MS = 3_600_000
START_MS = 500_000 * HOUR_MS
END = START_MS + 1_000 * HOUR_MS << 20
ACTIONS = (
    *("put",) * 6, *("take",) * 5, *("keep",) * 3, *("begin",) * 4, *("run",) * 4, *("ended",) * 4, *("enter",) * 16,
    "cancel", "release", "forget", "leave", "drop", "flush", "kill", "power",
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
    ended: dict[int, int] = field(default_factory=dict)
    """Origins of ended messages that are not forgotten, by position."""
    place: int = 0

    def copy(self) -> Model:
        """The model as it is now."""
        return replace(self, held=dict(self.held), known=set(self.known), ended=dict(self.ended))


class OnTheWay(NamedTuple):
    """Changes that have not entered."""

    changes: Sequence[Write]
    model: Model
    """The partition behind them."""
    lowest: int


Models = dict[int, Model]


class World:
    """A cache, what it holds, and what its files have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers, self.origins, self.places = count(), count(), count(1)
        self.written: list[Models] = [{}]
        """What the next process may find, oldest first: what is durable, and all that was written since."""
        self.found = 0
        """Number of starts that found something."""
        self.open()

    def open(self) -> None:
        """Start, and find what the files had at some moment."""
        self.cache = LocalCache(self.folder)
        self.job: SyncJob | None = None
        self.is_run = False
        self.durable: dict[str, int] = {}
        self.running = 0
        """What was written when the job began."""
        self.way: dict[int, deque[OnTheWay]] = {}
        there = {number: int(self.cache.notes(number)[b""]) for number in self.cache.names().values()}
        found = [each for each in self.written if {number: model.place for number, model in each.items()} == there]
        assert found, "it is older than what is durable, or was never there"
        self.models: Models = {number: model.copy() for number, model in found[-1].items()}
        self.written, self.found = [found[-1]], self.found + bool(there)
        for number, model in self.models.items():
            model.cursor = model.watermark
            ended = {held.position: held.origin for held in self.cache.ended(number, model.watermark)}
            assert ended == model.ended
            self.own(number)
        self.compare()

    def own(self, number: int) -> None:
        """Changes wait from now on."""
        if self.cache.is_spare(number):
            self.cache.use(number)
            self.write(number, None)
        self.cache.own(number)
        self.way[number] = deque()
        self.models[number].place = next(self.places)
        self.cache.enter(number, (), b"%d" % self.models[number].place)
        self.write(number, self.models[number].copy())

    def write(self, number: int, model: Model | None) -> None:
        """The files have this of a partition now."""
        rest = {each: there for each, there in self.written[-1].items() if each != number}
        self.written.append(rest if model is None else {**rest, number: model})

    def compare(self) -> None:
        """The cache has what the models have."""
        for number, model in self.models.items():
            assert self.cache.held(number) == len(model.held)
            assert (self.cache.state(number), set(self.cache.known(number))) == (model.state, model.known)

    def pick(self, random: Random) -> tuple[int, Model]:
        """A partition, perhaps one that was just taken over."""
        if not self.models or (len(self.models) < 3 and random.random() < 0.2):
            number = self.cache.begin_partition(b"p")
            self.models[number] = Model()
            self.adopt(number, self.models[number], random)
            self.own(number)
        return random.choice(list(self.models.items()))

    def adopt(self, number: int, model: Model, random: Random) -> None:
        """Hold some that have positions; of two at one of them, one is removed."""
        low, new = 1 << 18, {START_MS + random.randrange(4 * HOUR_MS) << 20 for _ in range(random.randrange(6))}
        rows = [Held(p | low + next(self.numbers), next(self.origins), 7, None, NO_TAGS, None, b"", b"x") for p in new]
        self.cache.adopt(number, rows)
        model.held |= {row[0]: (row[1], row[7]) for row in rows}
        for row in rows[:1]:
            self.cache.adopt(number, [row._replace(epoch=3, value=b"5")])
            assert self.cache.remove(number, row.position, 7)
            model.held[row.position] = row.origin, b"5"

    def changed(self, number: int, lowest: int = END) -> None:
        """A change waits."""
        changes = self.cache.prepared(number)
        self.way[number].append(OnTheWay(changes, self.models[number].copy(), lowest))

    def enter(self, random: Random) -> None:
        """The first change of a partition enters."""
        number, _ = self.pick(random)
        if self.way[number]:
            first = self.way[number].popleft()
            first.model.place = next(self.places)
            self.cache.enter(number, first.changes, b"%d" % first.model.place)
            self.write(number, first.model)

    def below(self, number: int) -> int:
        """The position below which nothing is on the way."""
        return min((each.lowest for each in self.way[number]), default=END)

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
        self.changed(number, min(positions))

    def take(self, random: Random) -> None:
        """Take some, in order, and none that is on the way."""
        number, model = self.pick(random)
        below = self.below(number)
        waiting = sorted(position for position in model.held if model.cursor <= position < below)
        taken = self.cache.take_due(number, below, random.randrange(1, 6), 1 << 30)
        assert [held.position for held in taken] == waiting[: len(taken)]
        assert bool(taken) == bool(waiting)
        assert all(model.held[held.position] == (held.origin, held.value) for held in taken)
        model.cursor = taken[-1].position + 1 if taken else model.cursor

    def keep(self, random: Random) -> None:
        """The watermark rises, at most to the cursor."""
        number, model = self.pick(random)
        model.watermark = random.choice([model.watermark, *(p for p in model.held if p < model.cursor), model.cursor])
        model.state = b"%d" % next(self.numbers)
        self.cache.keep(number, model.state, model.watermark, model.watermark)
        model.ended |= {position: row[0] for position, row in model.held.items() if position < model.watermark}
        model.held = {position: row for position, row in model.held.items() if position >= model.watermark}
        self.changed(number)

    def forget(self, random: Random) -> None:
        """Ended messages are forgotten."""
        number, model = self.pick(random)
        self.cache.forget_below(number, model.watermark)
        model.ended.clear()
        self.changed(number)

    def _changeable(self, number: int, random: Random) -> int | None:
        """A message that was not taken; it is found only if it is not on the way."""
        there = {each.position for each in self.cache.listed(number)}
        model, before = self.models[number], self.written[-1][number].held
        assert there == {position for position in model.held.keys() & before.keys() if position >= model.cursor}
        return random.choice(sorted(there)) if there else None

    def cancel(self, random: Random) -> None:
        """Cancel one, once."""
        number, model = self.pick(random)
        if (position := self._changeable(number, random)) is not None:
            assert [self.cache.cancel(number, position) for _ in range(2)] == [True, False]
            del model.held[position]
            self.changed(number, position)

    def release(self, random: Random) -> None:
        """Bring one forward."""
        number, model = self.pick(random)
        if (position := self._changeable(number, random)) is not None:
            earlier = self.cache.release(number, position, START_MS)
            assert earlier is not None
            model.held[earlier] = model.held.pop(position)
            self.changed(number, earlier)

    def leave(self, random: Random) -> None:
        """A partition leaves, and comes back: what was on the way is gone."""
        number, _ = self.pick(random)
        self.cache.leave(number)
        model = self.models[number] = self.written[-1][number].copy()
        model.cursor = model.watermark
        self.compare()
        self.own(number)

    def drop(self, random: Random) -> None:
        """A partition leaves."""
        number, _ = self.pick(random)
        self.cache.drop(number)
        del self.models[number], self.way[number]
        self.write(number, None)

    def begin(self, _: Random) -> None:
        """A job begins."""
        if self.job is None:
            self.job, self.is_run = self.cache.writes.begin_sync(), False

    def run(self, _: Random) -> None:
        """It runs."""
        if self.job is not None and not self.is_run:
            sizes, self.running = log_sizes(self.cache), len(self.written)
            self.job.run()
            self.is_run, self.durable = True, sizes
            self.written = self.written[self.running - 1 :]

    def ended(self, _: Random) -> None:
        """The main thread hears of it."""
        if self.job is not None and self.is_run:
            self.cache.writes.ended_sync(self.job, None)
            self.job = None

    def flush(self, _: Random) -> None:
        """Rows go to a file."""
        flushed(self.cache)

    def kill(self, _: Random) -> None:
        """The process dies: all that entered is found."""
        self.folder, self.written = killed(self.cache), self.written[-1:]
        self.open()

    def power(self, random: Random) -> None:
        """The machine dies."""
        self.folder = power_cut(self.cache, self.durable, random)
        self.open()


@pytest.mark.parametrize("seeds", [range(first, first + 16) for first in range(0, 80, 16)])
def test_a_start_finds_what_has_entered(seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is on the way, and each change as a whole with its note."""
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
