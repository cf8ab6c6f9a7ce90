"""Windows of numbers that were seen."""

from __future__ import annotations

import doctest

import pytest

from sidecar.core import dedup
from sidecar.core.dedup import Deduplicator, RotatingBitmap, RotatingSet


def test_documented_examples_run() -> None:
    """The examples in the docstrings do what they say."""
    assert doctest.testmod(dedup) == (0, 2) or not doctest.testmod(dedup).failed
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


def test_a_dump_has_only_what_is_below() -> None:
    """A snapshot leaves out what is not settled; loaded, it remembers the rest."""
    window = RotatingBitmap(1_000)
    window.update([1, 5, 9])
    other = RotatingBitmap(1_000)
    other.load(window.dump(below=9))
    assert [number for number in (1, 5, 9) if number in other] == [1, 5]
    with pytest.raises(ValueError):
        other.load((b"no bitmap", b""))


def test_keys_are_apart() -> None:
    """A number seen under one key is new under another; a forgotten key begins anew."""
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
