"""The pace of requests to the destination: when the next one may be sent. Time and chance are inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from sidecar.core.delivery.output import Output
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict

if TYPE_CHECKING:
    from sidecar.core.delivery.concurrency import LearnedConcurrency

A_SENDER, A_PAUSE, A_RATE = "a free sender", "the receiver, which asked for a pause", "sink.http.rate"
"""What a request waits for."""
SINGLE_GROUPS = 2
"""Number of groups that may be refused at once, each for itself, before that counts as the destination's state."""
RETURN_STEP = 0.25
"""Part of a sender that each accepted request adds after a pause: requests return one after the other."""
BODY_TOO_LARGE = 413
SIZE_STEP = 1.1
"""Factor between sizes that were accepted and refused at which the limit is known well enough."""
ABOUT = 1.04
"""Factor between sizes that count as the same; if it were more than half of a step, the next size would be refused."""
TRIED = 0.95
"""Part of the size to be tried that an accepted body must have: batches end with a row."""
MORE = 1e-9
"""More than no token."""
SIZE_TRIAL_MS = 600_000
"""Time after which a larger body is tried again."""
TOO_MANY_REQUESTS = 429
RATE_CUT, RATE_GROWTH, RATE_SEARCH = 0.95, 0.005, 0.3
"""Factor of the learned rate at a 429, at most once a second; its growth in a second, and that until the second 429."""
USED_MS = 100.0
"""Time for which a rate counts as used up after a request had to wait."""
LEARNED_BURST = 0.03
"""Seconds of a learned rate that may be saved up: an API may count in any window."""
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


class _BodySize:
    """The largest body that the destination takes, learned from 413, in bytes as sent.

    A body larger than any that was accepted is sent alone: its answer decides about the others. A smaller body that is
    refused contradicts the limit, perhaps because of a single message in it, and all is forgotten.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._taken = 0.0
        """The largest body that was accepted."""
        self._refused = inf
        """The smallest body that was refused."""
        self._trial = inf
        """A size that is tried again, although it was refused before."""
        self._trial_at_ms = inf
        self._testing: int | None = None
        """The batch of the size test that is being sent."""
        self._before = self._sent = 1.0
        """Sizes of the last bodies, before compression and as sent; each weighs a tenth of the next."""
        self.target = inf
        """Size of the next bodies: halfway between accepted and refused, until these differ by less than a tenth."""

    def _aim(self) -> None:
        if self._refused == inf:
            self.target = self._trial
        elif self._refused <= SIZE_STEP * self._taken:
            self.target = self._taken
        else:
            self.target = (self._taken + self._refused) / 2

    def max_bytes(self, now_ms: float) -> float:
        """Limit of bodies that are cut now, before compression, rounded down by up to 2 %: it must not change often."""
        if now_ms >= self._trial_at_ms:
            self._refused, self._trial, self._trial_at_ms = inf, SIZE_STEP * self._taken, now_ms + SIZE_TRIAL_MS
            self._aim()
        most = int(self.target * self._before / self._sent)
        return max(1, most - most % (1 << max(0, most.bit_length() - 7)))

    def estimate(self, batch: Batch) -> float:
        """Size of the batch's body, as sent."""
        return batch.nbytes * self._sent / self._before

    def is_refused(self, batch: Batch) -> bool:
        """Whether the batch is about as large as one that was refused."""
        size = self.estimate(batch)
        return batch.count > 1 and size > self._taken and size * ABOUT >= self._refused

    def may_send(self, batch: Batch) -> bool:
        """Whether no other batch must be answered first; if so, this one may be the next to test the size."""
        if self.estimate(batch) <= self._taken:
            return True
        if self._testing is not None:
            return False
        self._testing = batch.id
        return True

    def answered(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Learn from an answer; refusals of a single message teach nothing about batches."""
        if batch.id == self._testing:
            self._testing = None
        if answer.sent_bytes is None:
            return
        size = float(answer.sent_bytes)
        if answer.verdict is Verdict.TOO_LARGE and answer.status == BODY_TOO_LARGE:
            if size <= self._taken:
                self._taken = 0.0
                self._forget()
            elif batch.count > 1 and size < self._refused:
                self._refused, self._trial, self._trial_at_ms = size, inf, now_ms + SIZE_TRIAL_MS
                self._aim()
                self._output.report(
                    "body.too_large", "warning", refused_bytes=round(size), next_bytes=round(self.target)
                )
        elif answer.verdict is Verdict.ACK:
            self._before, self._sent = self._before / 10 + batch.nbytes, self._sent / 10 + size
            self._taken = max(self._taken, size)
            if size >= min(self._refused, self._trial * TRIED):
                self._forget()
            elif self.target < inf:
                self._aim()

    def _forget(self) -> None:
        self._refused = self._trial = self._trial_at_ms = self.target = inf


class _Bucket:
    """Tokens of a limit a second; a batch may take more than there are, and the next one waits the longer.

    Args:
        rate: Limit in a second; infinite for none.
        need: Tokens that must be there for a request.
        burst_s: Seconds of the rate that may be saved up.
    """

    def __init__(self, rate: float, need: float, burst_s: float = 1.0) -> None:
        self.rate = rate
        self._need, self._burst_s = need, burst_s
        self._tokens = max(need, rate * burst_s)
        self._at_ms = -inf

    def is_empty(self, now_ms: float) -> bool:
        """Whether a request must wait."""
        if self.rate == inf:
            return False
        gained = self.rate * max(0.0, now_ms - self._at_ms) / 1_000
        self._tokens, self._at_ms = min(max(self._need, self.rate * self._burst_s), self._tokens + gained), now_ms
        return self._tokens < self._need

    def take(self, tokens: float) -> None:
        """Take the tokens of a request."""
        if self.rate < inf:
            self._tokens -= tokens


class _LearnedBucket(_Bucket):
    """A limit of requests that is learned from 429.

    Nothing is limited before the first one. Then the rate is what was accepted in the last second, and it grows fast
    until the second one. From then on, it is a saw-tooth below the limit.
    """

    def __init__(self) -> None:
        super().__init__(inf, 1.0, LEARNED_BURST)
        self._accepted: deque[float] = deque()
        """Times of answers in the last second before the first 429."""
        self._growth = RATE_SEARCH
        self._grown_ms = inf
        """Time up to which the growth is in the rate; in the future for a second after a 429."""
        self._used_ms = -inf
        """Last time at which a request had to wait: only a rate that is used up grows."""

    def is_empty(self, now_ms: float) -> bool:
        """Whether a request must wait; the rate grows meanwhile."""
        empty = super().is_empty(now_ms)
        if empty:
            self._used_ms = now_ms
        if now_ms > self._grown_ms:
            if now_ms - self._used_ms < USED_MS:
                self.rate *= 1 + self._growth * min(now_ms - self._grown_ms, USED_MS) / 1_000
            self._grown_ms = now_ms
        return empty

    def accepted(self, now_ms: float) -> None:
        """Record an answer that is no 429."""
        if self.rate == inf:
            self._accepted.append(now_ms)
            while self._accepted[0] <= now_ms - 1_000:
                self._accepted.popleft()

    def refused(self, now_ms: float) -> None:
        """Record a 429."""
        if self.rate == inf:
            self.rate = max(1.0, len([at for at in self._accepted if at > now_ms - 1_000]))
            self._accepted.clear()
            self._tokens, self._at_ms = 0.0, now_ms
        elif now_ms >= self._grown_ms:
            self.rate, self._growth = self.rate * RATE_CUT, RATE_GROWTH
        else:
            return
        self._grown_ms = now_ms + 1_000


class PaceStatus(NamedTuple):
    """The pace at present.

    Args:
        concurrency: Maximum concurrent requests.
        requests_per_second: Limit of requests in a second; None for none.
        body_bytes: Size at which bodies are cut, as sent; None if it was not learned.
    """

    concurrency: int = 0
    requests_per_second: float | None = None
    body_bytes: int | None = None


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
        self._size = _BodySize(self._output)
        self._limit: LearnedConcurrency | None = None
        if self._rules.adaptive:
            from sidecar.core.delivery.concurrency import LearnedConcurrency

            self._limit = LearnedConcurrency(self._rules.concurrency)
        rates = self._rules.rates
        self._learned = _LearnedBucket() if rates.learned else None
        self._requests = self._learned or _Bucket(rates.requests, 1.0)
        self._rows, self._bytes = _Bucket(rates.rows, MORE), _Bucket(rates.nbytes, MORE)
        buckets = (self._requests, self._rows, self._bytes)
        self._buckets = [bucket for bucket in buckets if bucket is self._learned or bucket.rate < inf]

    def waits_for(self, busy: int, now_ms: float) -> str:
        """What the next request waits for, while so many are being sent; empty if it may be sent now."""
        if busy >= self._rules.concurrency if self._limit is None else self._limit.is_full(busy):
            return A_SENDER
        if not self._pauses.is_over(busy, now_ms):
            return A_PAUSE
        return A_RATE if any(bucket.is_empty(now_ms) for bucket in self._buckets) else ""

    def status(self) -> PaceStatus:
        """The pace at present."""
        body, rate = self._size.target, self._requests.rate
        return PaceStatus(
            self.concurrency,
            None if rate == inf else round(rate, 2),
            None if body == inf else round(body),
        )

    @property
    def concurrency(self) -> int:
        """Maximum concurrent requests at present."""
        return self._rules.concurrency if self._limit is None else int(self._limit.at_once)

    def body_max_bytes(self, now_ms: float) -> float:
        """Limit of bodies that are cut now, before compression; infinite if none is known."""
        return inf if self._size.target == inf else self._size.max_bytes(now_ms)

    def is_too_large(self, batch: Batch) -> bool:
        """Whether the batch is as large as one that was refused, so that it need not be sent to be divided."""
        return self._size.target < inf and self._size.is_refused(batch)

    def begin(self, batch: Batch) -> bool:
        """Whether this batch may be sent, if any may; then it counts as sent."""
        if self._size.target < inf and not self._size.may_send(batch):
            return False
        if self._buckets:
            self._requests.take(1)
            self._rows.take(batch.count)
            self._bytes.take(self._size.estimate(batch))
        return True

    def answered(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Learn from an answer."""
        began_ms = now_ms - answer.elapsed_ms
        if answer.verdict in _EVALUATED:
            self._pauses.accepted(began_ms, now_ms)
        elif _is_busy(answer):
            self._pauses.refused(batch.group, answer, now_ms)
        if self._limit is not None and answer.verdict in (Verdict.ACK, Verdict.PARTIAL):
            self._limit.accepted(batch.count, began_ms, now_ms)
        elif self._limit is not None and (_is_busy(answer) or answer.verdict is Verdict.UNANSWERED):
            self._limit.refused(began_ms, now_ms)
        if self._learned is not None and answer.status == TOO_MANY_REQUESTS:
            self._learned.refused(now_ms)
        elif self._learned is not None:
            self._learned.accepted(now_ms)
        if not self._rules.copied:  # there, cuts follow from the rows alone
            self._size.answered(batch, answer, now_ms)


def _is_busy(answer: Answer) -> bool:
    """Whether the destination itself answered that it has no time; who cannot be connected asks for nothing."""
    asks = answer.verdict is Verdict.BUSY and answer.status is not None
    return asks or (answer.verdict.is_retry and answer.retry_after_ms is not None)
