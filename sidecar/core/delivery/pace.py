"""The pace of requests to the destination: when the next one may be sent. Time and chance are inputs."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from sidecar.core.delivery.output import Output
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.records import Answer, Verdict

A_SENDER, A_PAUSE = "a free sender", "the receiver, which asked for a pause"
"""What a request waits for."""
SINGLE_GROUPS = 2
"""Number of groups that may be refused at once, each for itself, before that counts as the destination's state."""
RETURN_STEP = 0.25
"""Part of a sender that each accepted request adds after a pause: requests return one after the other."""
_EVALUATED = (Verdict.ACK, Verdict.PARTIAL, Verdict.REJECT, Verdict.TOO_LARGE)


class _Pauses:
    """Closes the destination while it answers that it is busy, and lets requests return one after the other.

    A group that is refused waits by itself. After a second one, one request at a time tests the others. After a third
    one, without an accepted request in between, all wait for as long as the latest answer asks.
    """

    def __init__(self, rules: DeliveryRules, jitter: Callable[[], float], output: Output) -> None:
        self._rules, self._jitter, self._output = rules, jitter, output
        self._refused: set[str] = set()
        """Groups that were refused since a request was accepted."""
        self._since_ms = -inf
        """Time of the first of these refusals: the destination may have accepted earlier requests before."""
        self._pauses = 0
        self._until_ms = -inf
        """End of the pause; infinitely early if no destination is returning from one."""
        self._at_once = inf

    def is_over(self, busy: int, now_ms: float) -> bool:
        """Whether one more request may be sent, beside so many."""
        return now_ms >= self._until_ms and busy + 1 <= self._at_once

    def refused(self, group: str, answer: Answer, now_ms: float) -> None:
        """Record that the destination is too busy for a request of this group."""
        if not self._refused:
            self._since_ms = now_ms
        self._refused.add(group)
        if len(self._refused) < SINGLE_GROUPS:
            return
        if len(self._refused) == SINGLE_GROUPS:
            self._until_ms, self._at_once = -inf, 1.0
            return
        if now_ms >= self._until_ms:  # else the request was sent before the pause
            self._pauses += 1
            if self._pauses == 1:
                self._output.report("receiver.paused", "warning", reason=answer.reason, status=answer.status)
        wait_ms = self._rules.backoff.wait_ms(self._pauses, self._jitter(), answer.retry_after_ms)
        self._until_ms, self._at_once = max(self._until_ms, now_ms + wait_ms), 1.0

    def accepted(self, began_ms: float, now_ms: float) -> None:
        """Record that the destination evaluated a request that was sent at `began_ms`."""
        if began_ms < self._since_ms:
            return
        self._refused.clear()
        self._since_ms, self._pauses = -inf, 0
        if self._until_ms == -inf or now_ms < self._until_ms:  # it is open, but for single groups
            self._until_ms, self._at_once = -inf, inf
        else:
            self._at_once += RETURN_STEP


class Pace:
    """Decides when the next request may be sent to the destination.

    Args:
        jitter: Uniform in [0, 1).
    """

    def __init__(self, rules: DeliveryRules, jitter: Callable[[], float], output: Output) -> None:
        self._rules, self._jitter, self._output = rules, jitter, output
        self.restart()

    def restart(self) -> None:
        """Forget what was learned: the destination may be another one."""
        self._pauses = _Pauses(self._rules, self._jitter, self._output)

    def waits_for(self, busy: int, now_ms: float) -> str:
        """What the next request waits for, while so many are being sent; empty if it may be sent now."""
        if busy >= self._rules.concurrency:
            return A_SENDER
        return "" if self._pauses.is_over(busy, now_ms) else A_PAUSE

    def answered(self, group: str, answer: Answer, now_ms: float) -> None:
        """Learn from an answer."""
        if answer.verdict in _EVALUATED:
            self._pauses.accepted(now_ms - answer.elapsed_ms, now_ms)
        elif _is_busy(answer):
            self._pauses.refused(group, answer, now_ms)


def _is_busy(answer: Answer) -> bool:
    """Whether the destination itself answered that it has no time; who cannot be connected asks for nothing."""
    asks = answer.verdict is Verdict.BUSY and answer.status is not None
    return asks or (answer.verdict.is_retry and answer.retry_after_ms is not None)
