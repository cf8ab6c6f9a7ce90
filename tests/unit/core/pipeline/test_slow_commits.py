"""A broker that takes long to acknowledge commits: what that does to the latency of messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import pytest

from sidecar.core.effects import Commit, Effect, Send
from sidecar.core.parts import Batch
from tests.support.shell import ACK, Shell

EVERY_MS, STEP_MS = 100.0, 5.0


class Slow(Shell):
    """A shell whose broker and receiver answer after a while."""

    def __init__(self, commit_ms: float, send_ms: float, groups: int) -> None:
        super().__init__(linger_ms=20, span_max=1 << 30, held=1 << 30)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._commit_ms, self._send_ms, self._groups = commit_ms, send_ms, groups
        self._offset = 0
        self._read_at_ms: dict[int, float] = {}
        self.late_ms: list[tuple[float, float]] = []
        """When each message was acknowledged, and how long after it was read."""
        self.requests = 0

    def _after(self, ms: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now_ms + ms, next(self._numbers), what))

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Commit):
            self._after(self._commit_ms, lambda: Shell._do(self, effect))
        elif isinstance(effect, Send):
            self._after(self._send_ms, lambda: self._answer(effect.batch))
        else:
            super()._do(effect)

    def _answer(self, batch: Batch) -> None:
        self.requests += 1
        for fragment in batch.fragments():
            for offset in fragment.offsets:
                self.late_ms.append((self.now_ms, self.now_ms - self._read_at_ms.pop(offset)))
        self.pipeline.answered(batch.id, ACK, self.now_ms, 0)

    def flow(self, seconds: float) -> None:
        """A message of each group every 100 ms."""
        for step in range(int(seconds * 1000 / STEP_MS)):
            if step * STEP_MS % EVERY_MS == 0:
                numbers = range(self._offset, self._offset + self._groups)
                self._offset = numbers.stop
                self._read_at_ms |= dict.fromkeys(numbers, self.now_ms)
                self.read(*((number, number % self._groups, None, b"x") for number in numbers))
            while self._later and self._later[0][0] <= self.now_ms:
                heapq.heappop(self._later)[2]()
            self.run(1, STEP_MS)

    def latency_ms(self, since_s: float) -> float:
        """The longest of the messages that were acknowledged from then on."""
        return max(late for at, late in self.late_ms if at >= since_s * 1000)


@pytest.mark.parametrize(
    ("commit_ms", "send_ms", "groups", "latency_ms"),
    [(1_000, 10, 64, 4_000), (1_000, 10, 16, 3_000), (1_000, 200, 16, 4_000), (100, 10, 64, 1_000), (5, 10, 64, 500)],
)
def test_senders_are_busy_however_long_commits_take(
    commit_ms: float, send_ms: float, groups: int, latency_ms: float
) -> None:
    """A message waits for a commit under way, its own, one of others, and the sends: batches ahead of it add none."""
    shell = Slow(commit_ms, send_ms, groups)
    shell.flow(30)
    assert shell.latency_ms(15) < latency_ms


def test_batches_grow_while_the_receiver_is_slow() -> None:
    """Commits that are quicker than sends let no more be cut than before: 4 senders make 20 requests a second."""
    shell = Slow(5, 200, 64)
    shell.flow(20)
    assert shell.requests <= 20 * 20


def test_messages_are_known_from_one_wait_to_the_next() -> None:
    """While a commit lasts, open messages wait for it too, and then for their own: one wait with one time."""
    shell = Slow(7_000, 10, 1)
    waits = []
    for _ in range(22):
        shell.flow(1)
        waits.append([*shell.pipeline.held_up(shell.now_ms)])
    assert [second for second, wait in enumerate(waits) if ("a commit", "g0", 7_100.0) in wait] == [*range(7, 21)]


def test_what_waits_beside_a_free_sender_waits_for_a_commit() -> None:
    """Due messages of a group are not blamed on the receiver, unless that keeps all senders busy."""
    slow = Slow(1_000, 10, 64)
    slow.flow(5)
    assert {what for what, _, _ in slow.pipeline.held_up(slow.now_ms)} == {"a commit"}
    busy = Slow(5, 60_000, 64)
    busy.flow(5)
    assert {what for what, _, _ in busy.pipeline.held_up(busy.now_ms)} >= {"a free sender", "an answer"}
    assert "a commit" not in {what for what, _, _ in busy.pipeline.held_up(busy.now_ms)}
