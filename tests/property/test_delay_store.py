"""The store of delayed messages beside a dictionary, through crashes of the process and of the machine."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from sidecar.delay import partition, stored
from sidecar.delay.rows import Kind
from sidecar.delay.store import DelayedMessage, DelayStore
from sidecar.errors import StateError
from tests.support.failing_rows import BROKEN, failing
from tests.support.partition_store import flushed, killed, log_sizes, power_cut

HOUR_MS = 3_600_000
START_MS = 500_000 * HOUR_MS
ACTIONS = (
    *("put",) * 4, *("due",) * 4, *("settle",) * 2, *("cancel",) * 2, "flush", "sync", "fail", "kill", "power", "close"
)  # fmt: skip
SMALL = {(partition, "COUNTS_MAX"): 5, (stored, "COUNTS_MAX"): 5}
"""Bounds so small that all that they bound happens."""


class World:
    """A store, what it must hold, and what of its folder is durable.

    Args:
        folder: The store's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ms = START_MS
        self.held: dict[int, bytes | None] = {}
        """What is held for certain, by position."""
        self.doubtful: dict[int, bytes | None] = {}
        """What may be held after a crash: put or ended since the last `sync`."""
        self.out: dict[int, DelayedMessage] = {}
        self.ever: set[int] = set()
        """Positions that stood for a message."""
        self.open()

    def open(self) -> None:
        """Open the store, and find out what became of the doubtful."""
        self.store = DelayStore(self.folder)
        assert not self.store.damages
        listed = {entry.position for entry in self.store.list(limit=1 << 30)}
        assert self.held.keys() - self.doubtful.keys() <= listed <= self.held.keys() | self.doubtful.keys()
        everything = self.held | self.doubtful
        self.held, self.doubtful = {position: everything[position] for position in listed}, {}
        self.out = {}
        self.durable: dict[str, int] = {}
        self.ever |= listed

    def step(self, action: str, number: int) -> None:
        """Do something, and compare."""
        getattr(self, action)(number)
        assert len(self.store) == len(self.held)
        assert [entry.position for entry in self.store.list(limit=1 << 30)] == sorted(self.held)

    def put(self, number: int) -> None:
        """Put some, at times from an hour ago to in three hours, many of them close to now."""
        span_ms = (50, 3_000, HOUR_MS, 4 * HOUR_MS)[number % 4]
        dues = [self.now_ms + (number * 7919 + i * 1_000_003) % span_ms - span_ms // 4 for i in range(number % 7)]
        values = [None if due % 5 == 0 else b"%d" % due * (due % 9) for due in dues]
        positions = self.store.put_many(dues, values)
        assert len({*positions} - self.ever) == len(dues)
        assert all(position >> 20 >= due for position, due in zip(positions, dues, strict=True))
        self.held |= zip(positions, values, strict=True)
        self.doubtful |= zip(positions, values, strict=True)

    def due(self, number: int) -> None:
        """Some time passes."""
        self.now_ms += number % (20, 2_000, HOUR_MS // 2)[number % 3]
        limit = 1 + number % 9
        messages = self.store.due(self.now_ms, limit)
        waiting = sorted(position for position in self.held.keys() - self.out.keys() if position >> 20 <= self.now_ms)
        assert [message.position for message in messages] == waiting[:limit]
        assert all(message.value == self.held[message.position] for message in messages)
        self.out |= {message.position: message for message in messages}
        following, rest = self.store.next_ms(), sorted(self.held.keys() - self.out.keys())
        assert not rest or (following is not None and following <= rest[0] >> 20)

    def settle(self, number: int) -> None:
        """End some of those that are out, and some that are not, which is ignored."""
        ended = sorted(self.out)[number % 3 :: 2]
        self.store.settle([*ended, *sorted(self.held.keys() - self.out.keys())[:1]])
        for position in ended:
            del self.out[position]
            self.doubtful[position] = self.held.pop(position)

    def cancel(self, number: int) -> None:
        """End one before it is due; what is out, unknown or ended cannot be."""
        waiting = sorted(self.held.keys() - self.out.keys())
        assert not self.store.cancel(START_MS << 20 | 1 << 19)
        assert not any(map(self.store.cancel, list(self.out)[:1]))
        if waiting:
            position = waiting[number % len(waiting)]
            assert self.store.cancel(position)
            assert not self.store.cancel(position)
            self.doubtful[position] = self.held.pop(position)

    def sync(self, _: int) -> None:
        """All is certain."""
        self.store.sync()
        self.doubtful = {}
        self.ever |= self.held.keys()
        self.durable = log_sizes(self.store._store)

    def flush(self, _: int) -> None:
        """Rows go to a file."""
        flushed(self.store._store)

    def fail(self, _: int) -> None:
        """A write cannot be made durable: the store is opened again."""
        with failing(self.store._store, "flush_wal", error=BROKEN), pytest.raises(StateError):
            self.store.sync()
        self.kill(0)

    def kill(self, _: int) -> None:
        """The process dies: what it wrote is there."""
        self.folder = killed(self.store._store)
        self.open()

    def power(self, number: int) -> None:
        """The machine dies: of what was not durable there is some, or something in its place."""
        self.folder = power_cut(self.store._store, self.durable, Random(number))
        self.open()

    def close(self, _: int) -> None:
        """An orderly end, and another start."""
        self.store.close()
        self.doubtful = {}
        self.open()


@pytest.mark.parametrize("seeds", [range(first, first + 8) for first in range(0, 16, 8)])
def test_what_is_held_is_what_was_put_and_not_ended(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was durable is lost or comes again, nothing is early, and all that is due comes in order."""
    for (module, bound), value in SMALL.items():
        monkeypatch.setattr(module, bound, value)
    for seed in seeds:
        random = Random(seed)
        world = World(tmp_path / f"{seed}" / "store")
        for _ in range(250):
            world.step(random.choice(ACTIONS), random.randrange(1 << 24))
        world.kill(0)
        while messages := world.store.due(world.now_ms + 4 * HOUR_MS):
            for message in messages:
                assert world.held.pop(message.position) == message.value
            world.store.settle(message.position for message in messages)
        assert not world.held
        assert not [*world.store._store._database.under(Kind.ROW)]
        world.store.close()
