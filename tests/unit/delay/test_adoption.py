"""A `PartitionStore` as a cache: messages with positions that another host gave out, and partitions that leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import HOUR_MS, NO_TIMESTAMP, POSITION_MAX, Held
from tests.support.held_store import ModelStore
from tests.support.partition_store import END, START_HOUR, START_MS, TAGS, killed, origins, reopened, rows

START = START_MS << SEQUENCE_BITS


def placed(*positions: int, first: int = 0, value: bytes = b"") -> list[Held]:
    """Rows at these positions, with origins in rising order."""
    return [Held(position, first + i, 7, None, NO_TAGS, None, b"", value) for i, position in enumerate(positions)]


def at(due_ms: int, sequence: int = 0) -> int:
    """A position that is due so long after the start."""
    return START + (due_ms << SEQUENCE_BITS) + sequence


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    """A new store; it is not closed."""
    return PartitionStore(tmp_path)


def adopted(store: PartitionStore, name: bytes, *positions: int, first: int = 0) -> int:
    """The number of a partition that has durable messages at these positions."""
    number = store.number(name)
    store.adopt(number, placed(*positions, first=first))
    store.writes.sync()
    return number


def test_both_stores_adopt_and_drop(store: PartitionStore) -> None:
    """The one on the disk, and that of the simulator."""
    caches: list[PartitionStore | ModelStore] = [store, ModelStore()]
    for cache in caches:
        number = cache.number(b"a")
        cache.adopt(number, placed(at(1), at(0)))
        cache.learn(number, [5])
        cache.writes.sync()
        assert [held.position for held in cache.take_due(number, END, 9, 9)] == [at(0), at(1)]
        assert (cache.held(number), list(cache.known(number))) == (2, [5])
        cache.drop(number)
        assert not sum(cache.hours().values())


def test_an_adopted_message_is_as_it_was_given(store: PartitionStore) -> None:
    """Each column, in memory, after a kill from the log, and after another start from the file."""
    number = store.number(b"a")
    given: list[Held] = [
        Held(at(5, 3), 2, 9, None, TAGS, b"", b"h", None),
        Held(at(0), 1, 8, START_MS, TAGS, None, b"", b"value"),
        Held(at(2 * HOUR_MS), 3, 7, 0, NO_TAGS, b"key", b"headers", b""),
    ]
    store.adopt(number, given)
    store.writes.sync()
    for _ in range(3):
        assert store.take_due(number, END, 9, 1 << 30) == sorted(given)
        store = reopened(store)


def test_origins_are_learned_apart(store: PartitionStore) -> None:
    """Those at or above the floor, through a kill and a start; adopting teaches none."""
    number = adopted(store, b"a", at(0))
    assert not store.known(number)
    store.floor(number, 3)
    store.keep(number, b"", 0, 0)
    store.learn(number, [2, 3, 1 << 40])
    store.writes.sync()
    for _ in range(3):
        assert list(store.known(number)) == [3, 1 << 40]
        store = reopened(store)


def test_messages_below_the_watermark_are_not_adopted(store: PartitionStore) -> None:
    """They are ended; a call with nothing else changes nothing."""
    number = store.number(b"a")
    store.keep(number, b"", at(5), 0)
    changes = store.writes.changes
    store.adopt(number, placed(at(4), -1))
    assert store.writes.changes == changes
    store.adopt(number, placed(at(4), at(5)))
    store.writes.sync()
    assert store.held(number) == 1
    assert origins(store, number) == [1]


def test_adopted_messages_come_in_their_order(store: PartitionStore) -> None:
    """Between those that are there, and in an hour before the last one."""
    number = adopted(store, b"a", at(0), at(9), at(2 * HOUR_MS), at(2 * HOUR_MS + 9))
    assert origins(store, number, limit=1) == [0]
    store.adopt(number, placed(at(5), at(12), first=4))
    store.writes.sync()
    assert origins(store, number, at(2 * HOUR_MS, 1)) == [4, 1, 5, 2]
    other = adopted(store, b"b", at(2 * HOUR_MS))
    assert store.next(other) == at(2 * HOUR_MS)
    store.adopt(other, placed(at(3), at(HOUR_MS), first=1))
    store.writes.sync()
    assert origins(store, other) == [1, 2, 0]


def test_what_is_adopted_below_the_cursor_comes_after_a_rewind(store: PartitionStore) -> None:
    """Until then it counts as taken: it is held, and a watermark ends it."""
    number = adopted(store, b"a", at(5), at(2 * HOUR_MS))
    origins(store, number)
    store.adopt(number, placed(at(HOUR_MS), at(3), at(1), first=2))
    store.writes.sync()
    assert (origins(store, number), store.held(number)) == ([], 5)
    store.keep(number, b"", at(2), 0)
    assert store.held(number) == 4
    store.rewind(number)
    assert origins(store, number) == [3, 0, 2, 1]


def test_partitions_have_messages_at_one_position(store: PartitionStore) -> None:
    """Each finds, cancels and takes its own; a cancel stays with its partition through a kill."""
    a, b = adopted(store, b"a", at(0), at(1)), adopted(store, b"b", at(0), at(1), first=10)
    assert [held and held.origin for held in (store.find(a, at(1)), store.find(b, at(1)))] == [1, 11]
    assert store.cancel(b, at(0))
    assert store.cancel(a, at(1))
    store.writes.sync()
    for _ in range(3):
        assert (store.held(a), store.held(b)) == (1, 1)
        assert (origins(store, a), origins(store, b)) == ([0], [11])
        store = reopened(store)


@pytest.mark.parametrize("sequence", [5, (1 << SEQUENCE_BITS) - 1])
def test_no_message_is_put_at_a_position_that_was_adopted(store: PartitionStore, sequence: int) -> None:
    """Whatever the hour's last sequence number is, after kills and starts."""
    positions = [at(0, sequence - i) for i in range(3)]
    number = adopted(store, b"a", *positions)
    for _ in range(3):
        new = store.put(number, rows(*[0] * 5))
        assert not {*new} & {*positions}
        positions += new
        store.writes.sync()
        store = reopened(store)


def test_a_full_millisecond_of_adopted_messages_moves_what_is_put(store: PartitionStore) -> None:
    """It is due with the next one."""
    number = adopted(store, b"a", at(0, (1 << SEQUENCE_BITS) - 1))
    assert store.put(number, rows(0))[0] >> SEQUENCE_BITS == START_MS + 1


def test_a_partition_that_was_dropped_has_nothing(store: PartitionStore) -> None:
    """In this process, after a kill, and after a start; the others at its positions stay."""
    a, b = adopted(store, b"a", at(0), at(HOUR_MS)), adopted(store, b"b", at(0), at(HOUR_MS), first=2)
    store.learn(a, [0])
    store.keep(a, b"state", at(0), 0)
    store.drop(a)
    store.writes.sync()
    for _ in range(3):
        assert dict(store.names()) == {b"b": b}
        assert store.find(a, at(0)) is None
        assert store.hours() == {START_HOUR: 1, START_HOUR + 1: 1}
        assert origins(store, b) == [2, 3]
        store = reopened(store)


def test_another_limit_takes_the_place_of_what_is_durable(tmp_path: Path) -> None:
    """A subclass says which messages are not taken yet."""

    class Other(PartitionStore):
        limit: int | None = None

        @property
        def unsynced(self) -> int | None:
            return self.limit

    store = Other(tmp_path)
    number = store.number(b"a")
    store.adopt(number, placed(at(0), at(1)))
    store.limit = at(1)
    assert origins(store, number) == [0]
    store.limit = None
    assert origins(store, number) == [1]
    killed(store)


@pytest.mark.parametrize(
    "row",
    [
        Held(POSITION_MAX + 1, 0, 0, 0, NO_TAGS, None, b"", b""),
        Held(0, -1, 0, 0, NO_TAGS, None, b"", b""),
        Held(0, 0, 1 << 64, 0, NO_TAGS, None, b"", b""),
        Held(0, 0, 0, NO_TIMESTAMP + 1, NO_TAGS, None, b"", b""),
    ],
)
def test_a_number_that_no_column_has_is_refused(store: PartitionStore, row: Held) -> None:
    """Nothing of the call is held."""
    number = store.number(b"a")
    with pytest.raises(ValueError, match=r"range|lie between"):
        store.adopt(number, [*placed(at(0)), row])
    assert store.held(number) == 0


def test_positions_are_bounded(store: PartitionStore) -> None:
    """The last one is taken, and none above it, nor anything that comes with it."""
    number = store.number(b"a")
    store.adopt(number, placed(POSITION_MAX))
    with pytest.raises(ValueError, match="positions lie between 0 and"):
        store.adopt(number, placed(at(0), POSITION_MAX + 1, first=1))
    assert store.find(number, POSITION_MAX) is not None
    assert store.held(number) == 0


def test_what_another_owner_has_read_is_void(store: PartitionStore) -> None:
    """Messages from the first of these origins, and below the last, end once; the others stay."""
    number = store.number(b"a")
    positions = store.put(number, rows(5, HOUR_MS, 3, 2 * HOUR_MS, 4))
    store.writes.sync()
    store.cancel(number, positions[2])
    for _ in range(2):
        store.void(number, 1, 4)
        assert store.held(number) == 2
    assert sorted(origins(store, number)) == [0, 4]
