"""When freed memory goes back to the kernel."""

from __future__ import annotations

import pytest

from sidecar.daemon.lifecycle import FEW, MANY, Heap


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> tuple[Heap, list[int]]:
    """A heap, and what it was trimmed to."""
    heap, trimmed = Heap(), list[int]()
    monkeypatch.setattr(heap, "_trim", trimmed.append)
    return heap, trimmed


def test_it_is_trimmed_twice_when_reading_rests(heap: tuple[Heap, list[int]]) -> None:
    """While much is read memory is in use again at once; when it rests the heap is trimmed, a second later again."""
    one, trimmed = heap
    for second in range(5):
        one.tend(float(second), MANY * (second + 1))
    assert not trimmed
    for second in range(5, 9):
        one.tend(float(second), 5 * MANY)
    assert trimmed == [0, 0]


def test_a_trickle_does_not_keep_it_from_being_trimmed(heap: tuple[Heap, list[int]]) -> None:
    """Few messages a second are rest enough."""
    one, trimmed = heap
    one.tend(0.0, MANY)
    one.tend(1.0, MANY + FEW - 1)
    assert trimmed == [0]


def test_a_platform_without_it_is_left_alone(heap: tuple[Heap, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every C library can trim."""
    one, trimmed = heap
    monkeypatch.setattr(one, "_trim", None)
    one.tend(0.0, MANY)
    one.tend(1.0, MANY)
    assert not trimmed
