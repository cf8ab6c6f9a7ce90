"""Windows of numbers that were seen."""

from __future__ import annotations

import doctest
from array import array
from typing import cast

import numpy as np
import pytest
from pyroaring import BitMap64

from sidecar.core.intake.known import NoIdentities
from sidecar.core.partition.partition import Partition
from sidecar.core.records import TopicPartition
from sidecar.core.windows import dedup
from sidecar.core.windows.bitmap import IdCounts, Moment, RotatingBitmap
from sidecar.core.windows.dedup import RECENT_MIN, Deduplicator, IdRoom, RotatingSet
from sidecar.core.windows.idruns import SortedRun, mixed


def test_documented_examples_run() -> None:
    """The examples in the docstrings do what they say."""
    assert not doctest.testmod(dedup).failed
    assert doctest.testmod(dedup).attempted


@pytest.mark.parametrize("kind", [RotatingSet, RotatingBitmap])
def test_at_least_half_of_the_capacity_is_remembered(kind: type[RotatingSet]) -> None:
    """Old numbers go, the young half stays, and the capacity is never passed."""
    window = kind(10)
    for number in range(100):
        assert window.add(number)
        assert len(window) <= 10
    assert all(number in window for number in range(95, 100))
    assert 0 not in window
    assert not window.add(99)
    assert window.generation == 19


def small(capacity: int = 1_000, keep_ms: float | None = None) -> RotatingSet:
    """A window that sorts after each 64 numbers."""
    room = IdRoom(1)
    room.share(1)
    return RotatingSet(capacity, room, keep_ms)


def run_of(*numbers: int) -> SortedRun:
    """A run as the shell keeps it."""
    return SortedRun.of(np.sort(mixed(numbers)))


def test_many_are_told_at_once() -> None:
    """Of a batch the first of each number is new, what was there is not, and what has no id always is."""
    window = small()
    assert window.take([1, 2, None, 2, None, 3]) == [True, True, True, False, True, True]
    assert window.take([3, 4, 5]) == [False, True, True]
    assert window.take([]) == []
    assert len(window) == 5


@pytest.mark.parametrize("size", [1, 3, 7, 50, 1_000])
def test_answers_do_not_hang_on_batches(size: int) -> None:
    """Numbers get the same answers and the same rotations whether they come one by one or many at a time."""
    numbers = [number * number % 997 for number in range(2_000)]
    one, many = RotatingSet(100), RotatingSet(100)
    expected = [one.add(number) for number in numbers]
    found = [new for at in range(0, len(numbers), size) for new in many.take(numbers[at : at + size])]
    assert found == expected
    assert (many.generation, len(many)) == (one.generation, len(one))
    assert any(expected)
    assert not all(expected)


def test_known_numbers_rotate_nothing() -> None:
    """A full window that is asked for known numbers alone forgets none of them."""
    window = RotatingSet(10)
    window.take(range(5))
    assert window.take([*range(5), None]) == [*[False] * 5, True]
    assert window.generation == 0
    assert window.take([None, 4, 5]) == [True, False, True]
    assert window.generation == 1


def test_what_decided_an_open_message_is_kept() -> None:
    """A generation that told an unsettled message from others is not forgotten, beyond the capacity even."""
    window = RotatingSet(10)
    window.take(range(5), Moment(last=4, keep_from=0))
    window.take(range(5, 10), Moment(last=9, keep_from=0))
    window.take([0], Moment(last=10, keep_from=0))
    assert window.take(range(10, 20), Moment(last=20, keep_from=10)) == [True] * 10
    assert len(window) == 20
    assert 0 in window
    window.take([20], Moment(last=21, keep_from=11))
    assert 0 not in window
    assert 5 in window


def test_numbers_go_by_age() -> None:
    """With `keep_ms` a number is remembered as long at least, and at most twice as long."""
    window = small(keep_ms=100.0)
    window.take([1], Moment(now_ms=1_000.0))
    window.take([2], Moment(now_ms=1_099.0))
    window.take([3], Moment(now_ms=1_150.0))
    assert [n for n in range(4) if n in window] == [1, 2, 3]
    window.take([4], Moment(now_ms=1_198.0))
    assert 1 in window
    window.take([5], Moment(now_ms=1_251.0))
    assert [n for n in range(6) if n in window] == [3, 4, 5]
    window.take([6], Moment(now_ms=9_000.0))
    assert [n for n in range(7) if n in window] == [6], "after a long silence nothing of before is known"


def test_age_waits_for_open_messages() -> None:
    """Whatever its age, a generation that decided an unsettled message is not forgotten."""
    window = small(keep_ms=100.0)
    window.take([1], Moment(last=7, keep_from=0, now_ms=0.0))
    window.take([2], Moment(last=8, keep_from=0, now_ms=1_000.0))
    window.take([3], Moment(last=9, keep_from=0, now_ms=2_000.0))
    assert [n for n in range(4) if n in window] == [1, 2, 3]
    window.take([4], Moment(last=10, keep_from=8, now_ms=2_001.0))
    assert 1 not in window


def test_most_numbers_are_sorted() -> None:
    """What a window keeps unsorted is bounded, and sorted numbers take 12 bytes at most."""
    window = small(100_000)
    for at in range(0, 30_000, 100):
        window.take(range(at, at + 100))
    assert len(window.young.recent) <= RECENT_MIN
    assert window.young.nbytes < 12 * 30_000 + 8 * RECENT_MIN
    assert all(number in window for number in range(0, 30_000, 999))
    assert not any(number in window for number in range(30_000, 60_000, 999))


def test_windows_share_their_room() -> None:
    """The more windows, the fewer numbers each keeps unsorted."""
    room = IdRoom(1_000)
    assert [room.share(windows) or room.each for windows in (0, 1, 2, 10, 500)] == [1_000, 1_000, 500, 100, 64]


def test_what_is_kept_elsewhere_is_let_go() -> None:
    """Numbers that the shell's runs have are known from there alone; the others stay."""
    window = small()
    window.take(range(200))
    window.young.install([run_of(*range(150), 777)])
    assert len(window) == 201
    assert all(number in window for number in (*range(200), 777))
    assert sum(map(len, window.young.runs)) == 50
    window.young.install([run_of(*range(150), 777)])
    assert sum(map(len, window.young.runs)) == 50
    window.young.install([], [run_of(*range(200))])
    assert (len(window), window.young.runs) == (0, [])


def test_a_window_goes_on_from_what_was_kept() -> None:
    """Restored, a window knows both generations, when they began, and that they may have decided open messages."""
    window = small(capacity=20, keep_ms=100.0)
    window.restore({4: [run_of(1, 2)], 5: [run_of(3)]}, {4: 10.0, 5: 50.0}, now_ms=60.0, decided=7)
    assert [number for number in range(5) if number in window] == [1, 2, 3]
    assert (window.generation, len(window), window.old.begun_ms, window.young.begun_ms) == (5, 3, 10.0, 50.0)
    window.take([4], Moment(last=8, keep_from=5, now_ms=150.0))
    assert window.generation == 5, "what decided offset 7 is kept"
    window.take([5], Moment(last=9, keep_from=8, now_ms=150.0))
    assert (window.generation, 1 in window, 3 in window) == (6, False, True)
    window.install({5: [run_of(3, 9)], 6: [run_of(5)]})
    assert [number for number in range(10) if number in window] == [3, 4, 5, 9]
    empty = small()
    empty.restore({}, {}, now_ms=60.0, decided=-1)
    assert (empty.generation, len(empty)) == (0, 0)


@pytest.mark.parametrize("kind", [RotatingSet, RotatingBitmap])
def test_a_window_comes_back_from_its_dump(kind: type[RotatingSet]) -> None:
    """Both generations are what they were, and other bytes are refused."""
    window, other = kind(10), kind(10)
    window.take([5, 3, 9, 1, 8, 2])
    other.load(window.dump())
    assert [number for number in range(10) if number in other] == [1, 2, 3, 5, 8, 9]
    assert (len(other.young), len(other.old)) == (len(window.young), len(window.old)) == (1, 5)
    with pytest.raises(ValueError):
        other.load((b"odd", b""))


def test_a_range_is_taken_whole_or_not_at_all() -> None:
    """One known number refuses the whole range and changes nothing."""
    window = RotatingBitmap(1_000)
    assert window.add_range(10, 19)
    assert not window.add_range(19, 25)
    assert 25 not in window
    assert window.add_range(20, 25)


def test_rotation_waits_for_what_must_be_kept() -> None:
    """What stands at or above `keep_from` is never forgotten, even beyond the capacity."""
    window = RotatingBitmap(4)
    for first in range(0, 20, 2):
        window.add_range(first, first + 1, keep_from=3)
    assert all(number in window for number in range(3, 20))
    window.update([30, 31], keep_from=25)
    assert 31 in window
    assert 3 not in window


def test_a_dump_leaves_out_what_is_not_settled() -> None:
    """A snapshot has what was settled before, and not what it is told to leave out; loaded, it remembers that."""
    window = RotatingBitmap(1_000)
    window.update([1, 5, 9, 20])
    other = RotatingBitmap(1_000)
    other.load(window.dump(BitMap64([30]), without=[array("q", [9]), range(15, 25), ()]))
    assert [number for number in (1, 5, 9, 20, 30) if number in other] == [1, 5, 30]
    assert list(other.pop_from(5)) == [5, 30]
    assert (1 in other, 5 in other) == (True, False)
    with pytest.raises(ValueError):
        other.load((b"no bitmap", b""))


def test_keys_are_apart() -> None:
    """A number seen under one key is new under another; a forgotten key starts over."""
    seen: Deduplicator[str] = Deduplicator(10, bitmap=False)
    assert seen.add("a", 1)
    assert seen.deduplicate("b", [1, 1, 2]) == [1, 2]
    assert seen.duplicated("a", 1)
    assert not seen.duplicated("a", 2)
    assert not seen.duplicated("c", 1)
    assert seen.keys() == ["a", "b"]
    seen.forget("a")
    assert not seen.duplicated("a", 1)


def test_reconstruction_remembers_the_newest() -> None:
    """After a restart the window holds what the snapshot held last, and nothing of before."""
    seen: Deduplicator[str] = Deduplicator(4)
    seen.add("a", 77)
    seen.reconstruct("a", [1, 2, 3, 4, 5])
    assert seen.duplicated("a", 5)
    assert not seen.duplicated("a", 77)
    assert not seen.duplicated("a", 1)


def test_capacity_must_hold_two_generations() -> None:
    """A capacity that cannot rotate is refused by name."""
    with pytest.raises(ValueError, match="at least 2, not 1"):
        Deduplicator(1)


def test_without_ids_every_message_is_new() -> None:
    """Nothing is remembered either."""
    none, tp, partition = NoIdentities(), TopicPartition("t", 0), cast(Partition, None)
    assert none.take_ids(partition, 5, none.read(tp, ["m"]), 0.0) == []
    assert none.take_ids(partition, 5, [7, 7], 0.0) == [True, True]
    assert not none.has_copies(tp)
    assert none.take_all(partition, 5, array("q", [7, 7]), 0.0) == b"\1\1"
    assert (none.restore(tp, {}, {}, 0.0, -1), none.generation(tp), none.count()) == (0, 0, IdCounts())
