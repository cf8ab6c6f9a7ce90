"""What every `State` does, checked on the one in memory and on the one on disk; nothing of either's inside."""

from __future__ import annotations

import resource
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.records import Attempt, DeadLetter, TopicPartition
from sidecar.core.windows.idruns import unmixed
from sidecar.errors import ConfigError, StateError
from sidecar.state.interface import IdSegment, PartitionSnapshot, ProgressKey, State, StoredIds, StoredLetter
from sidecar.state.store import Store
from tests.support.memory_state import MemoryState

ORDERS = TopicPartition("orders", 3)
OTHER = TopicPartition("orders", 4)
QUEUE = ProgressKey("orders", 3, "b0")
LETTERS_BYTES_MAX = 20_000


class World:
    """A state, its next life, and a disk that can be full."""

    def __init__(self, open_: Callable[[], State], full: Callable[[State], AbstractContextManager[None]]) -> None:
        self._open = open_
        self._full = full
        self.state = open_()

    def restart(self) -> State:
        self.state.close()
        self.state = self._open()
        return self.state

    def full_disk(self) -> AbstractContextManager[None]:
        return self._full(self.state)


@contextmanager
def _memory_fails(state: State) -> Iterator[None]:
    assert isinstance(state, MemoryState)
    state.failing = "full"
    yield
    state.failing = ""


@contextmanager
def _no_file_may_grow(_: State) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=["memory", "store"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Each state with its next lives."""
    memory = MemoryState(dead_letters_bytes_max=LETTERS_BYTES_MAX)
    if request.param == "memory":
        made = World(lambda: memory, _memory_fails)
    else:
        made = World(lambda: Store(tmp_path, dead_letters_bytes_max=LETTERS_BYTES_MAX), _no_file_may_grow)
    yield made
    made.state.close()


def snapshot(tp: TopicPartition = ORDERS, watermark: int = 1200) -> PartitionSnapshot:
    """A snapshot of a partition."""
    return PartitionSnapshot(tp, "1x-topic-id", 2**64 - 1, watermark, 7, (b"\x00young\xff" * 100, b""))


def letter(offset: int, row: bytes | None = b"row") -> StoredLetter:
    """A dead letter of a given offset."""
    return StoredLetter(
        topic="orders",
        partition=3,
        offset=offset,
        scope="9f3ac2d1",
        group_name="paid",
        reason="bad amount",
        status=400,
        attempts=(Attempt(1_700_000_000_000, 400, 2.5, "bad amount"),),
        first_at_ms=1_700_000_000_000,
        row=row,
        envelope=b'{"value":"x"}',
    )


def ids(*values: int) -> bytes:
    """An array of ids as bytes."""
    return array("q", values).tobytes()


def loaded(state: State, tp: TopicPartition = ORDERS) -> dict[int, list[int]]:
    """The ids of a partition by generation."""
    found: dict[int, list[int]] = defaultdict(list)
    for generation, data in state.ids.load(tp):
        assert generation >= max(found, default=generation)
        found[generation].extend(array("q", data))
    return {generation: sorted(values) for generation, values in found.items()}


def test_snapshots_come_back_as_they_were(world: World) -> None:
    """A partition's snapshot outlives the process bit for bit, the newest of each partition only."""
    world.state.save_partitions([snapshot(watermark=1), snapshot(OTHER)])
    world.state.save_partitions([snapshot(watermark=2)])
    assert world.restart().load_partitions() == {ORDERS: snapshot(watermark=2), OTHER: snapshot(OTHER)}


def test_progress_comes_back_as_it_was(world: World) -> None:
    """How far a queue is outlives the process, the newest of each; two brokers' queues of one number are two."""
    elsewhere = QUEUE._replace(label="b1")
    world.state.save_progress({QUEUE: "1", elsewhere: "é\x00"})
    world.state.save_progress({QUEUE: "2"})
    assert world.restart().load_progress() == {QUEUE: "2", elsewhere: "é\x00"}
    world.state.save_progress({QUEUE: "", elsewhere: "3"})
    assert world.restart().load_progress() == {elsewhere: "3"}


def test_ids_are_kept_by_generation(world: World) -> None:
    """Every appended id is loaded once, under its partition and generation, until that is dropped."""
    world.state.ids.append([IdSegment(OTHER, 1, ids(1))])
    for generation in (1, 2, 3):
        for start in range(0, 300, 3):
            world.state.ids.append([IdSegment(ORDERS, generation, ids(start, start + 1, -start - 2))])
    world.state.ids.append([IdSegment(ORDERS, 3, b"")])
    expected = sorted(value for start in range(0, 300, 3) for value in (start, start + 1, -start - 2))
    assert loaded(world.restart()) == {1: expected, 2: expected, 3: expected}
    world.state.ids.drop_before(ORDERS, 3)
    state = world.restart()
    assert (loaded(state), loaded(state, OTHER)) == ({3: expected}, {1: [1]})


def test_ids_that_are_no_array_are_refused_whole(world: World) -> None:
    """A segment of a wrong length is the caller's mistake, and none of its transaction is kept."""
    with pytest.raises(ValueError, match="64-bit"):
        world.state.ids.append([IdSegment(ORDERS, 1, ids(1)), IdSegment(ORDERS, 1, b"odd")])
    assert loaded(world.state) == {}


def numbers(stored: StoredIds) -> dict[int, list[int]]:
    """Sorted ids by generation."""
    return {
        generation: sorted(number for run in runs for number in unmixed(run.keys).tolist())
        for generation, runs in stored.runs.items()
    }


@pytest.mark.parametrize("count", [5, 3_000])
def test_sorted_ids_are_all_that_was_appended(world: World, count: int) -> None:
    """Few or many, sorted before or not, in this life or the next: each id is found in a run of its generation."""
    world.state.ids.append([IdSegment(OTHER, 1, ids(7))])
    for generation, start in ((4, 0), (5, count), (5, 0)):
        world.state.ids.append([IdSegment(ORDERS, generation, ids(*range(start, start + count)))])
    expected = {4: [*range(count)], 5: [*range(2 * count)]}
    assert numbers(world.state.ids.sort(ORDERS)) == expected
    world.state.ids.append([IdSegment(ORDERS, 5, ids(-1))])
    expected[5] = [-1, *expected[5]]
    assert numbers(world.state.ids.sort(ORDERS)) == numbers(world.restart().ids.sort(ORDERS)) == expected
    assert loaded(world.state) == expected
    world.state.ids.drop_before(ORDERS, 5)
    assert numbers(world.state.ids.sort(ORDERS)) == {5: expected[5]}
    assert numbers(world.restart().ids.sort(ORDERS)) == {5: expected[5]}
    assert numbers(world.state.ids.sort(OTHER)) == {1: [7]}


def test_a_generation_knows_when_it_began(world: World) -> None:
    """The time of a generation's first ids outlives the process, and goes with the generation."""
    before_ms = time.time_ns() // 1_000_000
    world.state.ids.append([IdSegment(ORDERS, 1, ids(1)), IdSegment(ORDERS, 2, ids(2))])
    begun = world.state.ids.sort(ORDERS).begun_at_ms
    assert all(before_ms <= begun[generation] <= time.time_ns() / 1e6 for generation in (1, 2))
    world.state.ids.append([IdSegment(ORDERS, 2, ids(3))])
    assert world.restart().ids.sort(ORDERS).begun_at_ms == begun
    world.state.ids.drop_before(ORDERS, 2)
    assert world.restart().ids.sort(ORDERS).begun_at_ms == {2: begun[2]}


@pytest.mark.parametrize("count", [5, 3_000])
def test_copied_ids_take_the_place_of_others(world: World, count: int) -> None:
    """A copy has the ids and the ages of its source, nothing of what was there, and lives on without the source."""
    world.state.ids.append([IdSegment(ORDERS, 1, ids(*range(count))), IdSegment(OTHER, 3, ids(*range(9, count + 9)))])
    for tp in (ORDERS, OTHER):
        world.state.ids.sort(tp)
    world.state.ids.append([IdSegment(ORDERS, 2, ids(7))])
    source = world.state.ids.sort(ORDERS)
    world.state.ids.copy(ORDERS, OTHER)
    world.state.ids.drop_before(ORDERS, 9)
    copied = world.restart().ids.sort(OTHER)
    assert (numbers(copied), copied.begun_at_ms) == ({1: [*range(count)], 2: [7]}, source.begun_at_ms)
    assert numbers(world.state.ids.sort(ORDERS)) == {}


def test_ids_of_another_cluster_are_dropped(world: World) -> None:
    """No sorted id of one cluster's topics tells a duplicate in another's; a cluster that learns its id keeps them."""
    world.state.bind("", "g")
    world.state.ids.append([IdSegment(ORDERS, 1, ids(*range(3_000)))])
    world.state.ids.sort(ORDERS)
    world.state.bind("c1", "g")
    world.restart().bind("c1", "g")
    assert numbers(world.state.ids.sort(ORDERS)) == {1: [*range(3_000)]}
    world.state.bind("c2", "g")
    assert numbers(world.state.ids.sort(ORDERS)) == numbers(world.restart().ids.sort(ORDERS)) == {}


def test_dead_letters_are_kept_once(world: World) -> None:
    """A letter put again, in the same call, a later one or a later life, is the same letter."""
    assert world.state.letters.put([letter(1), letter(2), letter(1)]) == 2
    assert world.state.letters.put([letter(2), letter(3)]) == 1
    state = world.restart()
    assert state.letters.put([letter(3, row=b"other")]) == 0
    assert state.letters.count() == 3
    kept = state.letters.load(10)
    assert [replace(found, id=0) for found in kept] == [letter(1), letter(2), letter(3)]
    assert [found.offset for found in state.letters.load(1, after=kept[0].id)] == [2]
    assert state.letters.load(10, after=kept[-1].id) == []


@pytest.mark.parametrize(
    "odd",
    [
        replace(letter(1), row=None, envelope=None, status=None, attempts=()),
        replace(letter(1), row=b"", envelope=b"\x00\xff\n"),
        replace(letter(1), group_name="caf\udce9", reason="nul \x00 and \ud800 and é"),
        replace(letter(2**62), attempts=(Attempt(0, None, 0.25, "\udcff"),) * 50),
    ],
)
def test_odd_dead_letters_come_back_as_they_were(world: World, odd: StoredLetter) -> None:
    """Null, empty and non-UTF-8 parts of a letter are kept as they are."""
    world.state.letters.put([odd])
    (kept,) = world.restart().letters.load(1)
    assert replace(kept, id=0) == odd


def test_dead_letters_beyond_the_bound_are_refused_not_dropped(world: World) -> None:
    """What would pass the bound is refused whole with the cure; what is kept stays, and known ones stay welcome."""
    world.state.letters.put([letter(1, b"x" * 10_000)])
    with pytest.raises(StateError, match="limit is 20000") as caught:
        world.state.letters.put([letter(2), letter(3, b"x" * 10_000)])
    assert caught.value.exit_code == 73
    assert "dead-letters list, purge" in caught.value.hint
    assert world.state.letters.put([letter(1)]) == 0
    assert world.state.letters.put([letter(2)]) == 1
    assert [kept.offset for kept in world.restart().letters.load(10)] == [1, 2]


def test_a_letter_of_the_core_is_kept_with_its_story() -> None:
    """The stored form carries the last status and the first time; one never sent carries the given time."""
    tries = (Attempt(5, 500, 1.0, "down"), Attempt(9, 422, 1.0, "bad"))
    given_up = DeadLetter(ORDERS, 8, "scope", "paid", "bad", b"row", tries)
    sent = StoredLetter.of(given_up, at_ms=99, envelope=b"e")
    unsent = StoredLetter.of(replace(given_up, attempts=(), row=None), at_ms=99, envelope=b"e")
    assert (sent.status, sent.first_at_ms, sent.identity) == (422, 5, ("scope", "orders", 3, "", 8))
    assert (unsent.status, unsent.first_at_ms, unsent.row) == (None, 99, None)


def test_member_id_is_remembered_until_it_left(world: World) -> None:
    """The member id of the last life is there, unless that life forgot it."""
    assert world.state.member() is None
    world.state.save_member(("g", "rdkafka-1"))
    world.state.save_member(("g", "rdkafka-2"))
    assert world.restart().member() == ("g", "rdkafka-2")
    world.state.save_member(None)
    assert world.restart().member() is None


def test_another_group_is_refused(world: World) -> None:
    """A state used for one group is refused to another, naming both."""
    assert world.state.bind("c1", "orders-sidecar")
    with pytest.raises(ConfigError, match="'orders-sidecar', not to consumer group 'other'") as caught:
        world.restart().bind("c1", "other")
    assert caught.value.exit_code == 78
    assert world.state.bind("c1", "orders-sidecar")


def test_another_cluster_drops_what_is_not_its_own(world: World) -> None:
    """With another cluster's id all of the old one goes but the dead letters; then it is the other's."""
    world.state.bind("c1", "g")
    world.state.save_partitions([snapshot()])
    world.state.ids.append([IdSegment(ORDERS, 1, ids(1))])
    world.state.save_member(("g", "m"))
    world.state.save_progress({QUEUE: "1"})
    world.state.letters.put([letter(1)])
    assert not world.restart().bind("c2", "g")
    state = world.restart()
    assert (state.load_partitions(), state.load_progress(), loaded(state), state.member()) == ({}, {}, {}, None)
    assert state.letters.count() == 1
    assert state.bind("c2", "g")


def test_an_unknown_cluster_is_taken_as_the_same(world: World) -> None:
    """A broker that does not tell its cluster id costs nothing, and the known id is not forgotten over it."""
    world.state.save_partitions([snapshot()])
    assert world.state.bind("", "g")
    assert world.state.bind("c1", "g")
    assert world.state.bind("", "g")
    assert list(world.restart().load_partitions()) == [ORDERS]
    assert not world.state.bind("c2", "g")


def test_a_failed_write_changes_nothing_and_heals(world: World) -> None:
    """With a full disk a write raises, the old content stays whole, and it works again when there is room."""
    world.state.save_partitions([snapshot(watermark=1)])
    world.state.save_progress({QUEUE: "1"})
    world.state.letters.put([letter(1)])
    with world.full_disk():
        for write in (
            lambda: world.state.letters.put([letter(2, b"x" * 9_000)]),
            lambda: world.state.save_partitions([snapshot(watermark=2)]),
            lambda: world.state.ids.append([IdSegment(ORDERS, 1, ids(*range(900)))]),
            lambda: world.state.save_member(("g", "m")),
            lambda: world.state.save_progress({QUEUE: "2"}),
        ):
            with pytest.raises(StateError):
                write()
        assert world.state.letters.count() == 1
    assert world.state.letters.put([letter(2)]) == 1
    world.state.save_partitions([snapshot(OTHER)])
    state = world.restart()
    assert state.load_partitions() == {ORDERS: snapshot(watermark=1), OTHER: snapshot(OTHER)}
    assert state.load_progress() == {QUEUE: "1"}
    assert [kept.offset for kept in state.letters.load(10)] == [1, 2]
    assert (loaded(state), state.member(), state.take_damages()) == ({}, None, [])


def test_a_state_is_where_it_was(world: World) -> None:
    """As long as nobody touches it, a state is in place, in its next life too."""
    world.state.save_member(("g", "m"))
    world.state.check_in_place()
    world.restart().check_in_place()
