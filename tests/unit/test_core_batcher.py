"""The batcher that a consumer uses alone."""

from __future__ import annotations

import doctest

import pytest

import sidecar
from sidecar import Backoff, Batcher, MessageBatch
from sidecar.core import batcher as module


class Calls:
    """Remembers every callback."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, MessageBatch]] = []
        self.retries: list[tuple[str, float]] = []

    def batcher(self, **options: object) -> Batcher:
        """A batcher that calls these."""
        return Batcher(
            on_delivered=lambda batch: self.ends.append(("delivered", batch)),
            on_retry=lambda batch, reason, wait_ms: self.retries.append((reason, wait_ms)),
            on_dead_lettered=lambda batch, reason: self.ends.append((reason, batch)),
            **options,  # type: ignore[arg-type]
        )


def test_documented_example_runs() -> None:
    """The example in the docstring does what it says."""
    done = doctest.testmod(module)
    assert done.attempted
    assert not done.failed


def test_library_exports() -> None:
    """The library's names are there, others are not."""
    assert {name: getattr(sidecar, name).__name__ for name in sidecar.__all__} == {n: n for n in sidecar.__all__}
    with pytest.raises(AttributeError, match="Nothing"):
        sidecar.Nothing  # noqa: B018


def test_a_batch_is_due_by_count_bytes_or_linger() -> None:
    """Each limit makes a batch due, and none before."""
    batcher = Batcher(max_messages=3, max_bytes=10, linger_ms=100)
    for message in (b"a", b"b"):
        batcher.add("count", message, 0)
    batcher.add("bytes", b"x" * 9, 0)
    batcher.add("linger", b"y", 0)
    assert [batch.group for batch in batcher.poll(0)] == ["bytes"]
    batcher.add("count", b"c", 50)
    assert [batch.messages for batch in batcher.poll(50)] == [[b"a", b"b", b"c"]]
    assert [batch.group for batch in batcher.poll(99)] == []
    assert [batch.group for batch in batcher.poll(100)] == ["linger"]


def test_limits_are_upper_bounds() -> None:
    """A message that does not fit waits for the next batch; one larger than a batch travels alone."""
    batcher = Batcher(max_messages=2, max_bytes=10, linger_ms=0)
    for message in (b"1\n2\n3", b"x" * 50, b"4", b"5", b"6"):
        batcher.add("g", message, 0)
    found = []
    while not batcher.idle:
        [batch] = batcher.poll(0)
        found.append(batch.messages)
        batcher.delivered(batch)
    assert found == [[b"1\n2\n3"], [b"x" * 50], [b"4", b"5"], [b"6"]]


def test_n_retries_are_n_plus_1_sends_and_one_end() -> None:
    """A batch is sent until it is taken; each wait is twice the last."""
    calls = Calls()
    batcher = calls.batcher(linger_ms=0, backoff=Backoff(100, 1_000))
    batcher.add("g", b"m", 0)
    sends, now_ms = 0, 0.0
    while not batcher.idle:
        for batch in batcher.poll(now_ms):
            sends += 1
            assert batch.attempt == sends
            if sends < 4:
                batcher.failed(batch, "503", now_ms)
            else:
                batcher.delivered(batch)
        now_ms += 50
    assert (sends, [end for end, _ in calls.ends]) == (4, ["delivered"])
    assert calls.retries == [("503", 100), ("503", 200), ("503", 400)]


def test_giving_up_is_the_one_end() -> None:
    """After the last allowed failure the batch is dead-lettered with the reason, and the group goes on."""
    calls = Calls()
    batcher = calls.batcher(linger_ms=0, give_up_after=2, backoff=Backoff(10, 10))
    batcher.add("g", b"m", 0)
    batcher.failed(batcher.poll(0)[0], "first", 0)
    batcher.failed(batcher.poll(10)[0], "last", 10)
    assert [end for end, _ in calls.ends] == ["last"]
    assert batcher.idle
    batcher.add("g", b"n", 20)
    assert batcher.poll(20)[0].messages == [b"n"]


def test_a_rejected_batch_is_dead_lettered() -> None:
    """A refusal for good is an end, without a retry."""
    calls = Calls()
    batcher = calls.batcher(linger_ms=0)
    batcher.add("g", b"m", 0)
    batcher.rejected(batcher.poll(0)[0], "422")
    assert [end for end, _ in calls.ends] == ["422"]
    assert not calls.retries
    assert batcher.held_bytes == 0


def test_an_ended_batch_cannot_end_again() -> None:
    """A second verdict, or one while the batch waits, is the caller's mistake and changes nothing."""
    batcher = Batcher(linger_ms=0)
    batcher.add("g", b"m", 0)
    [batch] = batcher.poll(0)
    batcher.failed(batch, "503", 0)
    for verdict in (lambda: batcher.delivered(batch), lambda: batcher.rejected(batch, "x")):
        with pytest.raises(ValueError, match="not being sent"):
            verdict()
    [again] = batcher.poll(10_000)
    batcher.delivered(again)
    with pytest.raises(ValueError, match="not being sent"):
        batcher.failed(again, "late", 10_001)
    assert batcher.held_bytes == 0


def test_the_budget_bounds_what_is_held() -> None:
    """Messages beyond the budget are not taken until something has ended; short of memory, all is due."""
    batcher = Batcher(linger_ms=10_000, held_max_bytes=100)
    taken = [batcher.add("g", b"12345678901", 0) for _ in range(6)]
    assert taken == [True] * 5 + [False] * 1 or sum(taken) == 4
    assert batcher.held_bytes <= 100
    [batch] = batcher.poll(0)
    assert not batcher.add("g", b"x" * 60, 0)
    batcher.delivered(batch)
    assert batcher.add("g", b"x" * 60, 0)
    with pytest.raises(ValueError, match="beyond held_max_bytes"):
        batcher.add("g", b"x" * 92, 0)


def test_one_batch_of_a_group_at_a_time() -> None:
    """A group's next batch grows while one is outstanding; other groups do not wait for it."""
    batcher = Batcher(max_messages=2, linger_ms=0)
    batcher.add("a", b"1", 0)
    [first] = batcher.poll(0)
    batcher.add("a", b"2", 0)
    batcher.add("a", b"3", 0)
    batcher.add("b", b"4", 0)
    assert [batch.group for batch in batcher.poll(1)] == ["b"]
    batcher.delivered(first)
    assert [batch.messages for batch in batcher.poll(1)] == [[b"2", b"3"]]


def test_drain_makes_everything_due() -> None:
    """What is open is handed out whatever its age."""
    batcher = Batcher(linger_ms=10_000)
    batcher.add("a", b"1", 0)
    assert batcher.poll(0) == []
    [batch] = batcher.drain(0)
    assert not batcher.idle
    batcher.delivered(batch)
    assert batcher.idle
