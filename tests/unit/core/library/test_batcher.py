"""The batcher that a consumer uses alone."""

from __future__ import annotations

import doctest
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sidecar
from sidecar import Backoff, Batcher, BatchState, MessageBatch
from sidecar.core.library import batcher as module
from sidecar.core.library.batcher import BATCH_BYTES, MESSAGE_BYTES


class Calls:
    """Remembers every callback."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, MessageBatch[str, bytes]]] = []
        self.retries: list[tuple[str, float]] = []

    def batcher(self, **options: object) -> Batcher[str, bytes]:
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
    batcher: Batcher[str, bytes] = Batcher(max_messages=3, max_bytes=10, linger_ms=100)
    for message in (b"a", b"b"):
        batcher.add("count", message, 0)
    batcher.add("bytes", b"x" * 10, 0)
    batcher.add("linger", b"y", 0)
    assert [batch.group for batch in batcher.poll(0)] == ["bytes"]
    batcher.add("count", b"c", 50)
    assert [batch.messages for batch in batcher.poll(50)] == [[b"a", b"b", b"c"]]
    assert [batch.group for batch in batcher.poll(99)] == []
    assert [batch.group for batch in batcher.poll(100)] == ["linger"]


def test_limits_are_upper_bounds() -> None:
    """A message that does not fit waits for the next batch; one larger than a batch travels alone."""
    batcher: Batcher[str, bytes] = Batcher(max_messages=2, max_bytes=10, linger_ms=0)
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
    batcher: Batcher[str, bytes] = Batcher(linger_ms=0)
    batcher.add("g", b"m", 0)
    [batch] = batcher.poll(0)
    batcher.failed(batch, "503", 0)
    verdicts: list[Callable[[], object]] = [lambda: batcher.delivered(batch), lambda: batcher.rejected(batch, "x")]
    for verdict in verdicts:
        with pytest.raises(ValueError, match="not in flight: it waits for its retry"):
            verdict()
    [again] = batcher.poll(10_000)
    batcher.delivered(again)
    with pytest.raises(ValueError, match="not in flight: it was delivered"):
        batcher.failed(again, "late", 10_001)
    assert batcher.held_bytes == 0


def test_the_budget_bounds_what_is_held() -> None:
    """Messages beyond the budget are not taken until something has ended; short of memory, all is due."""
    one = BATCH_BYTES + MESSAGE_BYTES + 100
    batcher: Batcher[str, bytes] = Batcher(linger_ms=10_000, held_max_bytes=2 * one)
    taken = [batcher.add(group, b"x" * 100, 0) for group in "abc"]
    assert taken == [True, True, False]
    assert batcher.held_bytes == 2 * one
    first, _ = batcher.poll(0)
    assert not batcher.add("c", b"", 0)
    batcher.delivered(first)
    assert batcher.add("c", b"x" * 100, 0)
    with pytest.raises(ValueError, match="beyond held_max_bytes"):
        batcher.add("d", b"x" * 2 * one, 0)


@pytest.mark.parametrize(("size", "groups"), [(0, 1), (1, 1), (200, 1), (10_000, 1), (1, 3_000), (200, 3_000)])
def test_what_is_counted_is_what_it_takes(size: int, groups: int) -> None:
    """Messages of any size, in one group or in thousands, take at most a quarter more memory than `held_bytes` says."""
    count = min(30_000, 20_000_000 // (size + 1))
    batcher: Batcher[str, bytes] = Batcher(linger_ms=10_000, held_max_bytes=1 << 30)
    tracemalloc.start()
    try:
        for i in range(count):
            assert batcher.add(f"group {i % groups}", i.to_bytes(4) + bytes(size), 0)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batcher.held_bytes / 2 < taken_bytes < 1.25 * batcher.held_bytes


def test_one_batch_of_a_group_at_a_time() -> None:
    """A group's next batch grows while one is outstanding; other groups do not wait for it."""
    batcher: Batcher[str, bytes] = Batcher(max_messages=2, linger_ms=0)
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
    batcher: Batcher[str, bytes] = Batcher(linger_ms=10_000)
    batcher.add("a", b"1", 0)
    assert batcher.poll(0) == []
    [batch] = batcher.drain(0)
    assert not batcher.idle
    batcher.delivered(batch)
    assert batcher.idle


def test_a_message_can_be_any_object() -> None:
    """With a `size` function messages and groups are what the caller has, and come back as the same objects."""
    batcher: Batcher[tuple[str, int], list[str]] = Batcher(size=lambda words: sum(map(len, words)), max_bytes=6)
    messages = [["abc"], ["d", "ef"], ["g"]]
    for message in messages:
        batcher.add(("orders", 0), message, 0)
    [batch] = batcher.poll(0)
    assert batch.group == ("orders", 0)
    assert [id(one) for one in batch.messages] == [id(one) for one in messages[:2]]
    assert batch.size_bytes == 6


def test_the_size_of_bytes_is_known() -> None:
    """Bytes-like messages need no `size`; what has a length in other units is refused, and nothing is taken."""
    assert module.byte_length(memoryview(b"12345678").cast("Q")) == 8
    assert module.byte_length(bytearray(b"123")) == 3
    batcher: Batcher[str, str] = Batcher()
    with pytest.raises(TypeError, match="type str has no size in bytes"):
        batcher.add("g", "text", 0)
    assert batcher.idle


def test_options_that_cannot_be_are_refused() -> None:
    """A limit below 1, a time below 0 and a negative size are told by name."""
    for name in ("max_messages", "max_bytes", "held_max_bytes", "give_up_after"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            Batcher(**cast(Any, {name: 0}))
    with pytest.raises(ValueError, match="linger_ms must be at least 0, not -1"):
        Batcher(linger_ms=-1)
    batcher: Batcher[str, bytes] = Batcher(size=lambda _: -1)
    with pytest.raises(ValueError, match="size said -1"):
        batcher.add("g", b"", 0)


def test_after_drain_nothing_is_taken() -> None:
    """A message after `drain` is refused with an error, and a second `drain` is as `poll`."""
    batcher: Batcher[str, bytes] = Batcher()
    batcher.add("g", b"1", 0)
    assert len(batcher.drain(0)) == 1
    with pytest.raises(RuntimeError, match="drain"):
        batcher.add("g", b"2", 0)
    assert batcher.drain(0) == []


def test_flush_makes_due_what_is_open() -> None:
    """What was added before goes out whatever its age, of a busy group when it can; what comes later lingers."""
    batcher: Batcher[str, bytes] = Batcher(max_messages=1_000, linger_ms=10_000)
    batcher.add("busy", b"1", 0)
    batcher.flush()
    [busy] = batcher.poll(0)
    batcher.add("busy", b"2", 0)
    batcher.add("free", b"3", 0)
    batcher.flush()
    batcher.add("new", b"4", 0)
    assert [batch.group for batch in batcher.poll(0)] == ["free"]
    batcher.delivered(busy)
    assert [batch.messages for batch in batcher.poll(0)] == [[b"2"]]
    assert batcher.counts().batches_filling == 1


def test_poll_gives_no_more_than_asked_for() -> None:
    """Batches beyond `batches_max` stay open and grow."""
    batcher: Batcher[str, bytes] = Batcher(linger_ms=0)
    for group in "abc":
        batcher.add(group, b"1", 0)
    assert [batch.group for batch in batcher.poll(0, 1)] == ["a"]
    batcher.add("b", b"2", 0)
    assert batcher.poll(0, 0) == []
    assert [batch.messages for batch in batcher.poll(0)] == [[b"1", b"2"], [b"1"]]


def test_the_next_wait_is_known() -> None:
    """`wait_ms` is the time until something is due by age or for its retry: 0 when it is, None when nothing will."""
    batcher: Batcher[str, bytes] = Batcher(max_messages=2, linger_ms=100, backoff=Backoff(30, 30))
    assert batcher.wait_ms(0) is None
    batcher.add("a", b"1", 10)
    assert batcher.wait_ms(50) == 60
    assert batcher.wait_ms(500) == 0
    batcher.add("a", b"2", 50)
    assert batcher.wait_ms(50) == 0
    [batch] = batcher.poll(50)
    assert batcher.wait_ms(50) is None
    batcher.failed(batch, "503", 50)
    batcher.add("a", b"3", 50)
    assert batcher.wait_ms(60) == 20
    batcher.delivered(*batcher.poll(80))
    batcher.drain(90, 0)
    assert batcher.wait_ms(90) == 0


def test_every_message_is_told_its_end_once() -> None:
    """`on_message` has each message with the end of its batch, before the batch's own callback."""
    told: list[object] = []
    batcher: Batcher[str, bytes] = Batcher(
        max_messages=2,
        linger_ms=0,
        on_message=lambda message, batch: told.append((message, batch.state, batch.reason)),
        on_delivered=lambda batch: told.append(batch.group),
        on_dead_lettered=lambda batch, reason: told.append(batch.group),
        on_released=lambda batch: told.append(batch.group),
    )
    for group, message in [("a", b"1"), ("a", b"2"), ("b", b"3"), ("c", b"4")]:
        batcher.add(group, message, 0)
    a, b, _ = batcher.poll(0)
    batcher.delivered(a)
    batcher.rejected(b, "422")
    assert batcher.release() == [b"4"]
    delivered, dead, released = BatchState.DELIVERED, BatchState.DEAD_LETTERED, BatchState.RELEASED
    assert told[:3] == [(b"1", delivered, ""), (b"2", delivered, ""), "a"]
    assert told[3:] == [(b"3", dead, "422"), "b", (b"4", released, ""), "c"]


def test_release_hands_back_one_group() -> None:
    """All messages of the groups come back, open or outstanding; a late answer is an error; other groups go on."""
    batcher: Batcher[str, bytes] = Batcher(max_messages=1, linger_ms=0, backoff=Backoff(10, 10))
    for group, message in [("a", b"1"), ("a", b"2"), ("b", b"3"), ("c", b"4"), ("c", b"5")]:
        batcher.add(group, message, 0)
    a, b, c = batcher.poll(0)
    batcher.failed(c, "503", 0)
    batcher.failed(b, "503", 0)
    assert sorted(batcher.release(lambda group: group in "ac")) == [b"1", b"2", b"4", b"5"]
    with pytest.raises(ValueError, match="not in flight: it was released"):
        batcher.delivered(a)
    assert batcher.counts().released == 4
    assert batcher.poll(10) == [b]
    batcher.add("a", b"6", 10)
    assert [batch.messages for batch in batcher.poll(10)] == [[b"6"]]


def test_a_batch_of_another_batcher_is_refused() -> None:
    """Only what this batcher handed out can be answered here."""
    mine: Batcher[str, bytes] = Batcher(linger_ms=0)
    other: Batcher[str, bytes] = Batcher(linger_ms=0)
    other.add("g", b"1", 0)
    [batch] = other.poll(0)
    for wrong, why in ((batch, "with another batcher"), (MessageBatch("g", [b"1"]), "was never handed out")):
        with pytest.raises(ValueError, match=why):
            mine.delivered(wrong)
    assert mine.idle


def test_a_callback_that_raises_loses_nothing() -> None:
    """All the others are called, the batch has its end, and the errors come out together."""
    told: list[bytes] = []

    def tell(message: bytes, _: MessageBatch[str, bytes]) -> None:
        told.append(message)
        if message == b"1":
            raise OSError("disk full")

    batcher: Batcher[str, bytes] = Batcher(max_messages=2, linger_ms=0, on_message=tell)
    for message in (b"1", b"2", b"3"):
        batcher.add("g", message, 0)
    [batch] = batcher.poll(0)
    with pytest.raises(ExceptionGroup) as raised:
        batcher.delivered(batch)
    assert [str(error) for error in raised.value.exceptions] == ["disk full"]
    assert told == [b"1", b"2"]
    batcher.add("h", b"1", 0)
    with pytest.raises(ExceptionGroup):
        batcher.release()
    assert (told, batcher.idle) == ([b"1", b"2", b"3", b"1"], True)


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "add", "poll", "deliver", "fail", "reject", "release"]), st.integers(0, 40)),
        max_size=120,
    )
)
def test_the_books_of_a_batcher_balance(steps: list[tuple[str, int]]) -> None:
    """Whatever happens: each message ends once, batches keep their limits, and a group's order stays."""
    ends: Counter[int] = Counter()
    orders: dict[int, list[int]] = defaultdict(list)
    batcher: Batcher[int, tuple[int, int]] = Batcher(
        size=lambda message: message[1],
        max_messages=4,
        max_bytes=50,
        linger_ms=5,
        held_max_bytes=6 * BATCH_BYTES,
        backoff=Backoff(4, 16),
        give_up_after=3,
        on_message=lambda message, batch: ends.update([message[0]]),
    )
    sending: list[MessageBatch[int, tuple[int, int]]] = []
    added = 0
    for now_ms, (step, number) in enumerate([*steps, ("drain", 0)]):
        if step == "add":
            added += batcher.add(number % 3, (added, number), now_ms)
        elif step == "poll":
            sending += (new := batcher.poll(now_ms, number % 3 + 1))
            for batch in new:
                assert len(batch.messages) <= 4
                assert sum(size for _, size in batch.messages) == batch.size_bytes <= 50
                if batch.attempt == 1:
                    orders[batch.group] += [name for name, _ in batch.messages]
        elif step == "release" and number < 5:
            batcher.release((number % 3).__eq__)
            sending = [batch for batch in sending if batch.state is BatchState.IN_FLIGHT]
        elif step in ("deliver", "fail", "reject") and sending:
            batch = sending.pop(number % len(sending))
            if step == "deliver":
                batcher.delivered(batch)
            elif step == "fail":
                batcher.failed(batch, "503", now_ms)
            else:
                batcher.rejected(batch, "422")
        counts = batcher.counts()
        assert counts.added == added
        assert counts.added == counts.delivered + counts.dead_lettered + counts.released + counts.held_messages
        assert counts.held_messages == added - ends.total()
        assert counts.batches_in_flight == len(sending)
        assert counts.held_bytes <= 6 * BATCH_BYTES
    for batch in sending:
        batcher.delivered(batch)
    for now_ms in range(1_000, 2_000, 20):
        for batch in batcher.drain(now_ms):
            batcher.delivered(batch)
    assert batcher.idle
    assert batcher.wait_ms(0) is None
    assert ends == Counter(range(added))
    assert all(order == sorted(order) for order in orders.values())
