"""The store of several partitions beside plain dictionaries, through crashes of the process and of the machine."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import NAME_HEADER
from sidecar.delay import partition, partitions, stored
from sidecar.delay.database import SyncJob
from sidecar.delay.headers import pack_headers
from sidecar.delay.offline.local import OfflineStore
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import Held, Kind
from sidecar.errors import StateError
from tests.support.failing_rows import BROKEN, FULL, failing
from tests.support.partition_store import flushed, killed, log_sizes, power_cut

HOUR_MS = 3_600_000
START_MS = 500_000 * HOUR_MS
END = START_MS + 1_000 * HOUR_MS << 20
ACTIONS = (
    *("put",) * 5, *("adopt",) * 4, *("take",) * 6, *("keep",) * 4, *("begin",) * 3, *("run",) * 3, *("ended",) * 3,
    "drop", "cancel", "named", "named", "rewind", "find", "flush", "sync", "full", "fail", "kill", "power", "strike",
    "close",
)  # fmt: skip
SMALL = {(partition, "COUNTS_MAX"): 5, (stored, "COUNTS_MAX"): 5, (partitions, "FOUND_AT_ONCE"): 3}
"""Bounds so small that all that they bound happens."""


def name_of(origin: int) -> bytes | None:
    """The name of a message; many have the same, and some none."""
    return b"n%d" % (origin % 5) if origin % 3 else None


def tags_of(origin: int) -> bytes:
    """The entry of a message's tags."""
    return origin.to_bytes(12, "little")


def headers_of(origin: int) -> bytes:
    """The headers of a message."""
    name = name_of(origin)
    return b"" if name is None else pack_headers([("tag", b"a"), (NAME_HEADER, name)])


def size_of(origin: int, value: bytes | None) -> int:
    """Bytes of a message."""
    return len(headers_of(origin)) + len(value or b"")


class Model:
    """What one partition must have."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, bytes | None]] = {}
        """Origin and value by position, of what is neither ended nor cancelled."""
        self.known: set[int] = set()
        self.ever: set[int] = set()
        """Positions that stood for a message."""
        self.state: bytes | None = None
        self.watermark = self.floor = self.cursor = self.mark = 0
        self.is_dropped = False

    def copy(self) -> Model:
        """The model as it is now."""
        other = Model()
        other.__dict__ |= self.__dict__
        other.held, other.known, other.ever = dict(self.held), set(self.known), set(self.ever)
        return other


State = dict[bytes, Model]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All files."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def content(store: PartitionStore | OfflineStore) -> object:
    """All that both kinds of stores tell; a store without partitions may have no id yet."""
    names = dict(store.names())
    numbers = names.values()
    return (
        names,
        dict(store.hours()),
        store.disk_bytes(),
        [store.place(number)[:2] for number in numbers],
        [(store.state(number), store.next(number)) for number in numbers],
        [store.listed(number, 0, END, 1 << 30, None) for number in numbers],
        [store.find(number, each.position) for number in numbers for each in store.listed(number, 0, END, 5, None)],
        [*store.view(dict.fromkeys(numbers, 0), END).pieces(7)],
    )


class World:
    """A store, what it may hold, and what of its folder is durable.

    Args:
        folder: The store's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.durable: dict[str, int] = {}
        """Sizes of logs that are durable."""
        self.now_ms = START_MS
        self.models: State = {}
        self.history: list[tuple[int, State]] = [(0, {})]
        """The models after each change since the last that is durable: a crash leaves one of these."""
        self.origin = 0
        self.id: int | None = None
        self.open()

    # What is durable

    def changed(self) -> None:
        """Note the models after a change."""
        self.history.append((self.store.writes.changes, {name: model.copy() for name, model in self.models.items()}))

    def synced(self) -> None:
        """Forget what cannot come back after a crash."""
        while len(self.history) > 1 and self.history[1][0] <= self.store.writes.synced:
            self.history.pop(0)

    is_run = False

    def open(self) -> None:
        """Open the store, and find out which of the possible pasts it has.

        A reader that changes nothing has seen the same before.
        """
        seen = self.read_offline() if self.folder.exists() else None
        self.store = PartitionStore(self.folder)
        assert seen in (None, content(self.store))
        self.job: SyncJob | None = None
        assert not self.store.damages
        assert self.id in (None, self.store.id)
        self.id = self.store.id
        (self.models,) = [past for _, past in self.history[::-1] if self.is_past(past)][:1]
        self.durable = {}
        self.models = {name: model.copy() for name, model in self.models.items()}
        for model in self.models.values():
            model.cursor, model.mark = model.watermark, 0
        self.history = [(0, {name: model.copy() for name, model in self.models.items()})]

    def read_offline(self) -> object:
        """What a reader of the folder sees, which no process has open."""
        before = bytes_of(self.folder)
        offline = OfflineStore(self.folder)
        seen = content(offline)
        offline.check()
        assert bytes_of(self.folder) == before
        assert not offline.damages
        return seen

    def is_past(self, past: State) -> bool:
        """Whether the store has what these models have."""
        store, names = self.store, self.store.names()
        return {*names} == {name for name, model in past.items() if not model.is_dropped} and all(
            store.state(number) == past[name].state
            and set(store.known(number)) == past[name].known
            and store.held(number) == len(past[name].held)
            for name, number in names.items()
        )

    def step(self, action: str, number: int) -> None:
        """Do something, and compare."""
        getattr(self, action)(number)
        for name, of_name in self.store.names().items():
            assert self.store.held(of_name) == len(self.models[name].held), (action, name)
            assert self.store.state(of_name) == self.models[name].state

    def pick(self, number: int) -> tuple[int, Model]:
        """A partition, perhaps a new one; never one that was dropped."""
        names = (b"p%d.%d" % (number % 5, again) for again in count())
        name = next(name for name in names if name not in self.models or not self.models[name].is_dropped)
        is_new = name not in self.models
        of_name = self.store.number(name)
        model = self.models.setdefault(name, Model())
        if is_new:
            self.changed()
        return of_name, model

    # Messages

    def put(self, number: int) -> None:
        """Put some, at times from an hour ago to in three hours, many of them close to now."""
        of_name, model = self.pick(number)
        span_ms = (50, 3_000, HOUR_MS, 4 * HOUR_MS)[number // 5 % 4]
        dues = [self.now_ms + (number * 7919 + i * 1_000_003) % span_ms - span_ms // 4 for i in range(number // 20 % 7)]
        values = [None if due % 5 == 0 else b"%d" % due * (due % 9) for due in dues]
        origins = list(range(self.origin, self.origin + len(dues)))
        self.origin += len(dues)
        rows = [
            Held(due << SEQUENCE_BITS, origin, 0, None, tags_of(origin), None, headers_of(origin), value)
            for due, origin, value in zip(dues, origins, values, strict=True)
        ]
        positions = self.store.put(of_name, rows)
        assert all(position > model.mark for position in positions)
        assert all(position >> 20 >= due for position, due in zip(positions, dues, strict=True))
        assert not {*positions} & model.ever
        assert len({*positions}) == len(dues)
        model.held |= zip(positions, zip(origins, values, strict=True), strict=True)
        model.ever |= {*positions}
        model.known |= {origin for origin in origins if origin >= model.floor}
        if dues:
            self.changed()

    def adopt(self, number: int) -> None:
        """Hold some with positions, of which other partitions have many, in any order."""
        of_name, model = self.pick(number)
        random = Random(number)
        taken = [position for other in self.models.values() for position in other.ever]
        span_ms = (50, 3_000, HOUR_MS, 4 * HOUR_MS)[number // 5 % 4]
        positions = set()
        for _ in range(number // 20 % 7):
            low = random.choice((random.randrange(9), (1 << 19) + random.randrange(-2, 3), (1 << 20) - 1))
            new = self.now_ms + random.randrange(-span_ms, span_ms) << 20 | low
            positions.add(random.choice(taken) if taken and random.random() < 0.4 else new)
        placed = list(positions - model.ever)
        random.shuffle(placed)
        self.learn(number)  # before and after, so that the origins tell which of the changes came through a crash
        origins = range(self.origin, self.origin + len(placed))
        self.origin += len(placed)
        values = [None if position % 5 == 0 else b"%d" % position * (position % 3) for position in placed]
        columns = zip(placed, zip(origins, values, strict=True), strict=True)
        held = {position: row for position, row in columns if position >= model.watermark}
        rows = zip(placed, origins, values, strict=True)
        self.store.adopt(
            of_name,
            [Held(p, origin, 7, None, tags_of(origin), None, headers_of(origin), v) for p, origin, v in rows],
        )
        model.held |= held
        model.ever |= held.keys()
        if held:
            self.changed()
        self.learn(number)

    def learn(self, number: int) -> None:
        """Learn an origin that no message has, and one below the floor."""
        of_name, model = self.pick(number)
        self.store.learn(of_name, [model.floor - 1, self.origin] if model.floor else [self.origin])
        model.known.add(self.origin)
        self.origin += 1
        self.changed()

    def drop(self, number: int) -> None:
        """A partition leaves; its number is not used again."""
        of_name, model = self.pick(number)
        self.store.drop(of_name)
        model.held, model.known, model.state, model.is_dropped = {}, set(), None, True
        self.changed()

    def take(self, number: int) -> None:
        """Some time passes for one partition."""
        of_name, model = self.pick(number)
        self.now_ms += number % (20, 2_000, HOUR_MS // 2)[number % 3]
        until, limit = min(self.now_ms << 20, self.store.unsynced or END), 1 + number % 9
        nbytes = (1 << 30, 80, 1)[number // 7 % 3]
        messages = self.store.take_due(of_name, self.now_ms << 20, limit, nbytes)
        waiting = sorted(position for position in model.held if model.cursor <= position < until)
        assert [message.position for message in messages] == waiting[: len(messages)]
        assert [message.tags for message in messages] == [tags_of(message.origin) for message in messages]
        rows = [(message.position, (message.origin, message.value)) for message in messages]
        assert rows == [(position, model.held[position]) for position, _ in rows]
        sizes = [size_of(message.origin, message.value) for message in messages]
        assert len(messages) <= limit
        assert sum(sizes) <= nbytes or len(messages) == 1
        if len(messages) < min(limit, len(waiting)):
            following = size_of(*model.held[waiting[len(messages)]])
            assert messages and (sum(sizes) + following > nbytes or sum(sizes) >= nbytes)
        if messages:
            model.cursor = messages[-1].position + 1
        past = self.store._partitions[of_name].cursor  # further, if what follows is cancelled
        assert not any(model.cursor <= position < past for position in model.held)
        model.cursor = max(model.cursor, past)
        if messages:
            model.mark = max(model.mark, messages[-1].position)
        following_position = self.store.next(of_name)
        rest = [position for position in model.held if position >= model.cursor]
        assert not rest or (following_position is not None and following_position <= min(rest))

    def keep(self, number: int) -> None:
        """The watermark rises to the cursor or to something below; seldom above it."""
        of_name, model = self.pick(number)
        taken = sorted(position for position in model.held if position < model.cursor)
        watermark = [*taken, model.cursor][number % (len(taken) + 1)]
        if number % 41 == 0:
            watermark = max(watermark, [self.now_ms << 20, *model.held][number % (len(model.held) + 1)])
        seen = max(model.mark, watermark) if number % 3 else watermark
        floor = min(self.origin, model.floor + number % 13) if number % 29 else number % (self.origin + 1)
        self.store.floor(of_name, floor)
        if floor < model.floor:
            model.floor = floor
            self.changed()
        self.store.keep(of_name, b"%d" % number, watermark, seen)
        model.state, model.floor = b"%d" % number, floor
        model.known = {origin for origin in model.known if origin >= floor}
        model.watermark = max(model.watermark, watermark)
        model.cursor = max(model.cursor, model.watermark)
        model.held = {position: row for position, row in model.held.items() if position >= model.watermark}
        model.mark = max(model.mark, seen)
        self.changed()

    def rewind(self, number: int) -> None:
        """An ownership starts over."""
        of_name, model = self.pick(number)
        self.store.rewind(of_name)
        model.cursor = model.watermark

    def cancel(self, number: int) -> None:
        """End one that was not taken; what was taken or is unknown cannot be."""
        of_name, model = self.pick(number)
        waiting = sorted(position for position in model.held if position >= model.cursor)
        assert not any(self.store.cancel(of_name, position) for position in model.held if position < model.cursor)
        if waiting:
            position = waiting[number % len(waiting)]
            assert self.store.cancel(of_name, position)
            assert not self.store.cancel(of_name, position)
            del model.held[position]
            self.changed()

    def named(self, number: int) -> None:
        """End those with some names that were not taken, while jobs go on."""
        of_name, model = self.pick(number)
        random = Random(number)
        below = {b"n%d" % each: random.randrange(self.origin + 2) for each in random.sample(range(6), 3)}
        lowest = random.choice([0, *model.held])
        meant = {
            position
            for position, (origin, _) in model.held.items()
            if position >= max(lowest, model.cursor) and origin < below.get(name_of(origin) or b"", 0)
        }
        for ended in self.store.cancel_named(of_name, lowest, below):
            for held in ended:
                meant.remove(held.position)
                del model.held[held.position]
            if ended:
                self.changed()
            if random.random() < 0.2:
                random.choice((self.begin, self.run, self.ended))(0)
        assert not meant

    def find(self, number: int) -> None:
        """What is held is found, taken or not, by its partition alone."""
        of_name, model = self.pick(number)
        for position, row in list(model.held.items())[:3]:
            message = self.store.find(of_name, position)
            assert message is not None
            assert (message.origin, message.value, message.tags) == (*row, tags_of(message.origin))
            other = self.store.find(of_name + 1, position)
            assert other is None or other.origin != message.origin

    # Durability

    def begin(self, _: int) -> None:
        """A job begins, if none is under way."""
        job = self.store.writes.begin_sync()
        assert job is None or self.job is None
        if job is not None:
            self.job, self.is_run = job, False

    def run(self, _: int) -> None:
        """The job runs."""
        if self.job is not None and not self.is_run:
            sizes = log_sizes(self.store)
            self.job.run()
            self.is_run, self.durable = True, sizes

    def ended(self, _: int) -> None:
        """The main thread hears of it."""
        if self.job is not None and self.is_run:
            self.store.writes.ended_sync(self.job, None)
            self.job = None
            self.synced()

    def sync(self, _: int) -> None:
        """All is certain; a job that was under way comes late."""
        late, sizes = self.job, log_sizes(self.store)
        self.store.writes.sync()
        self.durable = sizes
        assert self.store.writes.synced == self.store.writes.changes
        assert self.store.unsynced is None
        if late is not None:
            late.run()
            self.store.writes.ended_sync(late, None)
        self.job = None
        self.synced()

    def flush(self, _: int) -> None:
        """Rows go to a file."""
        flushed(self.store)

    def full(self, number: int) -> None:
        """The disk is full for a while: what is refused has not happened."""
        with failing(self.store, "write", error=FULL):
            for change in self.put, self.cancel:
                with suppress(StateError):
                    change(number)

    def fail(self, _: int) -> None:
        """A write cannot be made durable: the store is opened again."""
        with failing(self.store, "flush_wal", error=BROKEN), pytest.raises(StateError):
            self.store.writes.sync()
        with pytest.raises(StateError):
            self.store.number(b"another")
        self.kill(0)

    def kill(self, _: int) -> None:
        """The process dies: what it wrote is there."""
        self.folder = killed(self.store)
        self.open()

    def power(self, number: int) -> None:
        """The machine dies: of what was not durable there is some, or something in its place."""
        self.folder = power_cut(self.store, self.durable, Random(number))
        self.open()

    def end_all(self) -> None:
        """Every message ends, and nothing of any is left."""
        for number in self.store.names().values():
            self.store.keep(number, b"", END, 0)
        assert self.store.disk_bytes() == 0
        assert [*self.store._database.under(Kind.ROW)] == [*self.store._database.under(Kind.NAME)] == []

    def strike(self, number: int) -> None:
        """Process or machine die when a job has just run, and things were done that it knows nothing of."""
        between = (self.put, self.cancel, self.keep, self.take, self.adopt, self.drop)[number % 6]
        done, told = (self.run, self.sync)[number // 12 % 2], (self.ended, self.put, self.adopt)[number // 24 % 3]
        for step in self.begin, between, done, told, (self.power, self.kill)[number // 6 % 2]:
            step(number)

    def close(self, _: int) -> None:
        """An orderly end, and another start."""
        self.store.close()
        self.history = self.history[-1:]
        self.open()


@pytest.mark.parametrize("seeds", [range(first, first + 8) for first in range(0, 16, 8)])
def test_each_partition_has_what_was_put_and_not_ended(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing durable is lost, nothing comes twice in an ownership, and all comes in order, for each partition."""
    for (module, bound), value in SMALL.items():
        monkeypatch.setattr(module, bound, value)
    for seed in seeds:
        random = Random(seed)
        world = World(tmp_path / f"{seed}" / "store")
        for _ in range(250):
            world.step(random.choice(ACTIONS), random.randrange(1 << 24))
        world.kill(0)
        for name, number in world.store.names().items():
            model, taken = world.models[name], world.store.take_due(number, END, 1 << 30, 1 << 40)
            assert len(taken) == len(model.held)
            assert all(message.tags == tags_of(message.origin) for message in taken)
            assert {message.position: (message.origin, message.value) for message in taken} == model.held
        world.end_all()
        world.store.close()
