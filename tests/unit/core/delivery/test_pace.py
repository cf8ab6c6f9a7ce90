"""The destination is driven at its own pace. Time is virtual."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from tests.support.shell import ACK, Shell, rows

SECOND = 1_000.0


class Slow(Shell):
    """A shell whose receiver answers after some time.

    Args:
        asked: What it answers to a request, and after how many milliseconds.
    """

    def __init__(self, asked: Callable[[Batch], tuple[Answer, float]], **rules: Any) -> None:
        super().__init__(jitter=random.Random(1).random, **rules)
        self.asked = asked
        self.times: list[tuple[float, str, Verdict]] = []
        """When each request was sent, its group, and what became of it."""
        self._later: list[tuple[float, int, int, Answer, float]] = []

    def answer(self, batch: Batch, offsets: list[int]) -> None:
        """Answer later."""
        answer, after_ms = self.asked(batch)
        self.times.append((self.now_ms, batch.group, answer.verdict))
        heapq.heappush(self._later, (self.now_ms + after_ms, len(self.times), batch.id, answer, after_ms))

    def until(self, end_ms: float, by_ms: float = 20) -> None:
        """Let time pass."""
        while self.now_ms < end_ms:
            while self._later and self._later[0][0] <= self.now_ms:
                at_ms, _, number, answer, after_ms = heapq.heappop(self._later)
                self.pipeline.answered(number, Answer(answer.verdict, answer.reason, answer.status,
                    answer.retry_after_ms, elapsed_ms=after_ms), at_ms, 0)  # fmt: skip
            self.run(1, by_ms)


def busy(status: int = 429, retry_after_ms: int | None = None) -> Answer:
    """The receiver has no time."""
    return Answer(Verdict.BUSY, "busy", status, retry_after_ms)


def many_groups(shell: Shell, groups: int, messages: int = 1) -> None:
    """Messages of many groups."""
    shell.read(*[row for i in range(groups * messages) for row in rows(i, i, i % groups)])


def test_a_wait_that_all_groups_are_asked_for_is_waited_once() -> None:
    """Of 50 groups one tests the destination in each window of 30 s, and they return one after the other."""
    shell = Slow(lambda batch: (busy(429, 30_000), 20) if shell.now_ms < 120 * SECOND else (ACK, 20))
    many_groups(shell, 50)
    shell.until(240 * SECOND)
    windows = Counter(int(at // 30_000) for at, _, verdict in shell.times if verdict is Verdict.BUSY)
    assert windows[0] <= 5
    assert all(windows[window] <= 2 for window in range(1, 5))
    taken = [at for at, _, verdict in shell.times if verdict is Verdict.ACK]
    assert len(taken) == 50
    assert taken[0] <= 153 * SECOND, "a tenth later at most"
    assert sum(at < taken[0] + 60 for at in taken) <= 3
    assert shell.events().count("receiver.paused") == 1


def test_without_a_wait_the_backoff_closes_the_destination() -> None:
    """However many groups there are, there are few requests while it is down, and delivery within backoff_max."""
    shell = Slow(lambda batch: (busy(503), 20) if shell.now_ms < 60 * SECOND else (ACK, 20))
    many_groups(shell, 50)
    shell.until(70 * SECOND)
    assert sum(verdict is Verdict.BUSY for _, _, verdict in shell.times) <= 2 * 60
    assert min(at for at, _, verdict in shell.times if verdict is Verdict.ACK) <= 62 * SECOND
    assert sum(verdict is Verdict.ACK for _, _, verdict in shell.times) == 50


def test_a_group_that_is_refused_alone_closes_nothing() -> None:
    """The others go on while it waits."""
    shell = Slow(lambda batch: (busy(429, 30_000) if batch.group == "g3" else ACK, 20))
    many_groups(shell, 10, 10)
    shell.until(5 * SECOND)
    assert sorted({group for _, group, verdict in shell.times if verdict is Verdict.ACK}) == sorted(
        f"g{i}" for i in range(10) if i != 3
    )


def test_two_groups_that_are_refused_at_once_close_nothing() -> None:
    """The next request of another group tests whether it is the destination's state."""
    shell = Slow(lambda batch: (busy(429, 30_000), 20) if batch.group in ("g0", "g2") else (ACK, 60))
    many_groups(shell, 10, 10)
    shell.until(2 * SECOND)
    assert sum(verdict is Verdict.ACK for _, _, verdict in shell.times) == 8


def test_an_answer_to_an_earlier_request_opens_nothing() -> None:
    """A destination that closes may still be at work on what it had accepted."""
    shell = Slow(lambda batch: (ACK, 500) if batch.group in ("g0", "g1") else (busy(503, 5_000), 20))
    many_groups(shell, 20)
    shell.until(4 * SECOND)
    assert len(shell.times) == 5, "one more tested whether that was the two groups' alone"
    assert {what for what, group, _ in shell.pipeline.held_up(shell.now_ms)} == {
        "the receiver, which asked for a pause"
    }


def test_three_groups_that_are_refused_close_nothing_for_long() -> None:
    """A request that was sent after the first refusal, and is accepted, shows that the destination is open."""
    shell = Slow(lambda batch: (busy(429, 30_000), 10 * int(batch.group[1:])) if batch.group < "g4" else (ACK, 60))
    many_groups(shell, 10, 10)
    shell.until(2 * SECOND)
    assert sum(verdict is Verdict.ACK for _, _, verdict in shell.times) == 6


def test_a_failure_of_another_kind_asks_for_no_pause() -> None:
    """Each group has its own backoff then."""
    shell = Slow(lambda batch: (Answer(Verdict.FAILED, "raised", 500), 20))
    many_groups(shell, 12)
    shell.until(SECOND)
    assert len({group for _, group, _ in shell.times}) == 12
    assert "receiver.paused" not in shell.events()


def test_changed_rules_end_a_pause() -> None:
    """Another destination may be meant."""
    shell = Slow(lambda batch: (busy(503, 60_000), 20))
    many_groups(shell, 9)
    shell.until(SECOND)
    sent = len(shell.times)
    shell.pipeline.change(shell.pipeline._batching, shell.pipeline._rules)
    shell.until(2 * SECOND)
    assert len(shell.times) > sent
