"""The destination is driven at its own pace. Time is virtual."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from sidecar.core.backoff import Backoff
from sidecar.core.delivery.output import Output
from sidecar.core.delivery.pace import Pace
from sidecar.core.delivery.rules import DeliveryRules, Rates
from sidecar.core.partition.room import StateBudget
from sidecar.core.parts import Batch, Intent
from sidecar.core.records import Answer, Fragment, Run, Verdict
from tests.support.shell import ACK, FRESH, TP, Shell, rows

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
                    answer.retry_after_ms, elapsed_ms=after_ms, sent_bytes=answer.sent_bytes), at_ms, 0)  # fmt: skip
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


TOO_LARGE = Answer(Verdict.TOO_LARGE, "too large", 413)


class Limited:
    """A receiver with a limit of a body's size.

    Args:
        most: The limit in bytes as sent.
        packed: Size of a body as sent, per byte before compression.
    """

    def __init__(self, most: float, packed: float = 1.0) -> None:
        self.most, self.packed = most, packed
        self.shell = Slow(self.answer, max_messages=5_000, max_bytes=4 << 20, held=1 << 30, span_max=1 << 30)
        self.bodies: list[tuple[int, bool]] = []
        """Size as sent, and whether it was accepted."""
        self._next = 0

    def answer(self, batch: Batch) -> tuple[Answer, float]:
        """Accept what is small enough."""
        size = round(batch.nbytes * self.packed)
        self.bodies.append((size, size <= self.most))
        return replace(ACK if size <= self.most else TOO_LARGE, sent_bytes=size), 20

    def deliver(self, nbytes: int, row_bytes: int = 1_000, seconds: float = 30.0) -> list[tuple[int, bool]]:
        """Deliver so many bytes; return the bodies that were sent."""
        before = len(self.bodies)
        for _ in range(10):
            count = nbytes // row_bytes // 10
            value = b"x" * (row_bytes - 1)
            self.shell.read(*[(self._next + i, 0, None, value) for i in range(count)])
            self._next += count
            self.shell.until(self.shell.now_ms + seconds * 100)
        assert self.shell.pipeline.idle
        return self.bodies[before:]


def refusals(bodies: list[tuple[int, bool]]) -> int:
    """Number of bodies that were refused."""
    return sum(not taken for _, taken in bodies)


@pytest.mark.parametrize(("most", "packed"), [(100_000, 1.0), (1_000_000, 1.0), (100_000, 0.2)])
def test_the_size_that_is_refused_is_learned(most: int, packed: float) -> None:
    """At most 15 requests are refused in 20 MB, and 1 % later; the bodies are as large as may be."""
    receiver = Limited(most, packed)
    first = receiver.deliver(20_000_000)
    later = receiver.deliver(20_000_000)
    assert refusals(first) <= 15
    assert refusals(later) <= len(later) / 100
    assert sum(size for size, _ in later) / len(later) >= 0.6 * most
    assert receiver.shell.letters == []


def test_a_limit_that_changes_is_learned_again() -> None:
    """A lower one by its refusals; a higher one is tried every ten minutes."""
    receiver = Limited(1_000_000)
    receiver.deliver(20_000_000)
    receiver.most = 100_000
    assert refusals(receiver.deliver(20_000_000)) <= 15
    for _ in range(3):
        receiver.shell.until(receiver.shell.now_ms + 601 * SECOND, 1_000)
        assert refusals(receiver.deliver(2_000_000)) <= 1, "a tenth more is tried"
    receiver.most = 4 << 20
    receiver.shell.until(receiver.shell.now_ms + 601 * SECOND, 1_000)
    receiver.deliver(2_000_000)
    bodies = receiver.deliver(20_000_000)
    assert max(size for size, _ in bodies) > 1_500_000
    assert refusals(bodies) == 0


def test_a_single_message_that_is_too_large_teaches_nothing_about_batches() -> None:
    """Nor does an answer of a sink that has no bodies."""
    receiver = Limited(500)
    receiver.deliver(10_000, 1_000)
    receiver.shell.asked = lambda batch: (ACK, 20)
    receiver.deliver(10_000, 1_000)
    assert len(receiver.shell.letters) == 10
    assert receiver.shell.pipeline.status().pace.body_bytes is None


def test_a_message_that_is_too_large_limits_no_other() -> None:
    """Larger bodies are accepted beside it: the size is not the reason."""
    receiver = Limited(4 << 20)
    receiver.deliver(20_000_000)
    poison = receiver._next + 17
    limited = receiver.answer

    def asked(batch: Batch) -> tuple[Answer, float]:
        answer, after_ms = limited(batch)
        is_there = any(poison in fragment.offsets for fragment in batch.fragments())
        return (replace(TOO_LARGE, sent_bytes=answer.sent_bytes) if is_there else answer), after_ms

    receiver.shell.asked = asked
    receiver.deliver(20_000_000)
    assert [letter.offset for letter in receiver.shell.letters] == [poison]
    assert receiver.shell.pipeline.delivery.pace.body_max_bytes(receiver.shell.now_ms) == inf


@pytest.mark.parametrize(
    ("answer", "copied"), [(busy(503), False), (TOO_LARGE, True)], ids=["another answer", "a task on Spark"]
)
def test_nothing_is_learned_from_what_says_nothing_of_the_size(answer: Answer, *, copied: bool) -> None:
    """Nor where cuts follow from the rows alone."""
    shell = Slow(lambda batch: (replace(answer, sent_bytes=batch.nbytes), 20), copied=copied)
    many_groups(shell, 2, 20)
    shell.until(SECOND)
    assert shell.pipeline.status().pace.body_bytes is None


def test_a_batch_of_several_parts_is_divided_between_them() -> None:
    """Before it is sent, once such a body was refused."""
    shell = Slow(
        lambda batch: (replace(TOO_LARGE if batch.nbytes > 5_000 else ACK, sent_bytes=batch.nbytes), 20),
        by_group=True, max_messages=100, linger_ms=1_000,
    )  # fmt: skip
    other = TP._replace(partition=1)
    shell.pipeline.assign(other, "0ther000", FRESH)
    for start in range(0, 120, 4):
        batch = [(start + i, 0, None, b"x" * 999) for i in range(4)]
        shell.read(*batch)
        shell.pipeline.read(Run(other, batch, start, start + 3), shell.now_ms)
        shell.until(shell.now_ms + 500)
    shell.until(shell.now_ms + 10_000)
    assert shell.pipeline.idle
    assert sum(verdict is Verdict.TOO_LARGE for _, _, verdict in shell.times) <= 12


def test_without_room_for_halves_the_batch_waits() -> None:
    """As one that was refused."""
    size = [9_000]
    shell = Slow(
        lambda batch: (replace(TOO_LARGE if batch.nbytes > size[0] else ACK, sent_bytes=batch.nbytes), 20),
        room=StateBudget(extra_bytes=80),
    )  # fmt: skip
    for group in range(12):
        shell.read(*[(group * 20 + i, group, None, b"x" * 499) for i in range(20)])
    shell.until(60 * SECOND)
    assert shell.pipeline.idle
    assert sum(verdict is Verdict.TOO_LARGE for _, _, verdict in shell.times) <= 5


class Line:
    """Requests without end at a pace, in virtual time.

    Args:
        asked: Whether a request is accepted at a time.
        rtt_ms: Time to the answer.
    """

    def __init__(self, asked: Callable[[float], bool], rates: Rates, concurrency: int = 16, rtt_ms: float = 30) -> None:
        self._chance = random.Random(1).random
        rules = DeliveryRules(Backoff(200, 5_000), concurrency, ordered=False, separator=b"\n", rates=rates)
        self.pace = Pace(rules, self._chance, Output())
        self._asked, self._rtt_ms = asked, rtt_ms
        self.accepted: list[float] = []
        self.refused: list[float] = []
        self.reasons: set[str] = set()
        self.now_ms = 0.0
        self._later: list[tuple[float, int, bool]] = []

    def until(self, end_ms: float, *, count: int = 500, idle: bool = False) -> None:
        """Let time pass: one step in five milliseconds, as in the main loop.

        Args:
            end_ms: Virtual time.
            count: Rows of a batch.
            idle: Whether there is nothing to send.
        """
        rows = Fragment(range(count), b"x" * (count * 100))
        batch = Batch(1, "g", [Intent(1, 0, count).new_part(TP, "s", "s", "g", [rows])])
        while self.now_ms < end_ms:
            while self._later and self._later[0][0] <= self.now_ms:
                at_ms, _, taken = heapq.heappop(self._later)
                (self.accepted if taken else self.refused).append(at_ms)
                self.pace.answered(batch, replace(ACK if taken else busy(429), elapsed_ms=self._rtt_ms), at_ms)
            while not idle:
                self.reasons.add(reason := self.pace.waits_for(len(self._later), self.now_ms))
                if reason or not self.pace.begin(batch):
                    break
                at_ms = self.now_ms + self._rtt_ms * (0.7 + self._chance())
                heapq.heappush(self._later, (at_ms, random.getrandbits(60), self._asked(self.now_ms)))
            self.now_ms += 5

    def share(self, since_ms: float) -> float:
        """Share of the requests since a time that were refused."""
        late = [len([at for at in times if at >= since_ms]) for times in (self.accepted, self.refused)]
        return late[1] / sum(late)


def bucket(limit: int) -> Callable[[float], bool]:
    """An API with a bucket that holds a second of requests."""
    tokens, at = float(limit), 0.0

    def asked(now_ms: float) -> bool:
        nonlocal tokens, at
        tokens, at = min(limit, tokens + limit * (now_ms - at) / SECOND), now_ms
        taken = tokens >= 1
        tokens -= taken
        return taken

    return asked


def window(limit: int) -> Callable[[float], bool]:
    """An API that counts requests in each second of the clock."""
    counts: Counter[int] = Counter()

    def asked(now_ms: float) -> bool:
        counts[int(now_ms // SECOND)] += 1
        return counts[int(now_ms // SECOND)] <= limit

    return asked


@pytest.mark.parametrize("limit", [10, 100])
@pytest.mark.parametrize("kind", [bucket, window])
def test_the_rate_of_an_api_is_learned(kind: Callable[[int], Callable[[float], bool]], limit: int) -> None:
    """At least 95 % of the limit is used, and at most 1 % of the requests are refused after 30 seconds."""
    line = Line(kind(limit), Rates(learned=True))
    line.until(300 * SECOND)
    late = [at for at in line.accepted if at >= 30 * SECOND]
    assert len(late) / 270 >= 0.95 * limit
    assert line.share(30 * SECOND) <= 0.01
    assert line.pace.status().requests_per_second == pytest.approx(limit, rel=0.1)


def test_an_api_without_a_limit_is_not_limited() -> None:
    """Nothing is limited before the first 429."""
    line = Line(lambda _: True, Rates(learned=True))
    line.until(3 * SECOND)
    assert line.pace.status().requests_per_second is None
    assert line.reasons == {"", "a free sender"}


def test_a_rate_that_is_not_used_does_not_grow() -> None:
    """After an hour of rest, requests come as before."""
    line = Line(bucket(10), Rates(learned=True))
    line.until(60 * SECOND)
    before = line.pace.status().requests_per_second
    line.until(62 * SECOND, idle=True)
    line.now_ms += 3_600 * SECOND
    line.until(line.now_ms + 20, idle=False)
    assert line.pace.status().requests_per_second == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize(
    ("rates", "requests"),
    [(Rates(requests=10), 10), (Rates(rows=5_000), 10), (Rates(nbytes=500_010), 10), (Rates(rows=250), 0.5)],
)
def test_what_is_sent_has_limits(rates: Rates, requests: float) -> None:
    """A second's worth goes at once; a batch that is larger than that goes too, and the next one waits longer."""
    line = Line(lambda _: True, rates)
    line.until(60 * SECOND)
    assert 60 * requests <= len(line.accepted) <= 60 * requests + requests + 1
    assert line.reasons == {"", "sink.http.rate"}


class Knee:
    """Requests without end to a receiver that becomes slower above a number of concurrent ones, in virtual time.

    Args:
        knee: That number.
        time_ms: Time of a request of 500 rows below it.
        sizes: Rows of a batch, any of them.
        refuses: Whether it answers 503 above twice the knee.
        concurrency: A fixed limit; None to learn it.
    """

    def __init__(
        self, knee: int, time_ms: float = 100, sizes: tuple[int, ...] = (500,), *, refuses: bool = False,
        concurrency: int | None = None,
    ) -> None:  # fmt: skip
        self.chance = random.Random(1)
        rules = DeliveryRules(
            Backoff(200, 5_000), concurrency or 64, ordered=False, separator=b"\n", adaptive=concurrency is None
        )
        self.pace = Pace(rules, self.chance.random, Output())
        self.knee, self._time_ms, self._refuses = knee, time_ms, refuses
        self._batches = [
            Batch(1, "g", [Intent(1, 0, rows).new_part(TP, "s", "s", "g", [Fragment(range(rows), b"x" * rows)])])
            for rows in sizes
        ]
        self.done: list[tuple[float, int, float]] = []
        """Time of each accepted request, its rows, and how long it took."""
        self.refused = 0
        self.now_ms = 0.0
        self._later: list[tuple[float, int, Batch, Answer]] = []
        self._number = 0

    def until(self, end_ms: float) -> None:
        """Let time pass, as in the main loop."""
        while self.now_ms < end_ms:
            while self._later and self._later[0][0] <= self.now_ms:
                at_ms, _, batch, answer = heapq.heappop(self._later)
                if answer.verdict is Verdict.ACK:
                    self.done.append((at_ms, batch.count, answer.elapsed_ms))
                self.pace.answered(batch, answer, at_ms)
            while not self.pace.waits_for(len(self._later), self.now_ms):
                batch = self.chance.choice(self._batches)
                assert self.pace.begin(batch)
                self._send(batch, len(self._later) + 1)
            self.now_ms += 5

    def _send(self, batch: Batch, busy_: int) -> None:
        load = busy_ / self.knee
        if self._refuses and load > 2:
            self.refused += 1
            answer = replace(busy(503), elapsed_ms=5.0)
        else:
            share = 1.0 if load <= 2 else max(0.3, 1 - (load - 2) / 4)
            time_ms = self._time_ms * (0.2 + 0.8 * batch.count / 500) * max(1.0, load) / share
            answer = replace(ACK, elapsed_ms=time_ms * self.chance.lognormvariate(0, 0.25))
        self._number += 1
        heapq.heappush(self._later, (self.now_ms + answer.elapsed_ms, self._number, batch, answer))

    def rows(self, since_s: float, until_s: float) -> int:
        """Rows that were accepted between these times."""
        return sum(rows for at_ms, rows, _ in self.done if since_s * SECOND <= at_ms < until_s * SECOND)


@pytest.mark.parametrize("knee", [4, 16, 64])
@pytest.mark.parametrize(
    ("time_ms", "sizes"),
    [(100, (500,)), (1_000, (500,)), (100, (5, 50, 500, 5_000))],
    ids=["100 ms", "1 s", "mixed sizes"],
)
def test_the_concurrency_is_learned(knee: int, time_ms: float, sizes: tuple[int, ...]) -> None:
    """Within ten seconds, the receiver takes at least 90 % of what it takes with the best fixed limit."""
    line, best = Knee(knee, time_ms, sizes), Knee(knee, time_ms, sizes, concurrency=knee)
    seconds = 70 if time_ms > 100 else 40  # so that there are some hundred requests
    line.until(seconds * SECOND)
    best.until(seconds * SECOND)
    assert line.rows(10, seconds) >= 0.9 * best.rows(10, seconds)


@pytest.mark.parametrize("knee", [4, 16])
def test_a_receiver_that_refuses_more_is_followed(knee: int) -> None:
    """Few requests are refused."""
    line, best = Knee(knee, refuses=True), Knee(knee, concurrency=knee)
    line.until(40 * SECOND)
    best.until(40 * SECOND)
    assert line.rows(10, 40) >= 0.9 * best.rows(10, 40)
    assert line.refused <= 0.05 * len(line.done)


def test_a_receiver_that_becomes_slower_is_followed() -> None:
    """From a knee of 64 to one of 4, the queue is gone in 30 seconds; and back."""
    line = Knee(64)
    line.until(30 * SECOND)
    line.knee = 4
    line.until(80 * SECOND)
    times = sorted(took for at_ms, _, took in line.done if at_ms >= 60 * SECOND)
    assert times[len(times) // 2] < 200
    line.knee = 64
    line.until(100 * SECOND)
    assert line.rows(90, 100) >= 0.9 * 10 * 64 * 5_000


def test_a_limit_that_is_not_reached_stays() -> None:
    """There is nothing to learn from a receiver that has little to do."""
    line = Knee(64)
    batch = line._batches[0]
    for at in range(100):
        line.pace.answered(batch, replace(ACK, elapsed_ms=10.0), at * 100.0)
    assert line.pace.status().concurrency == 4
    assert line.pace.waits_for(0, line.now_ms) == ""
    line.pace.answered(batch, Answer(Verdict.UNANSWERED, "timed out", elapsed_ms=10.0), 10_000.0)
    line.pace.answered(batch, Answer(Verdict.UNANSWERED, "timed out", elapsed_ms=10.0), 10_001.0)
    line.pace.answered(batch, replace(ACK, elapsed_ms=10.0), 10_002.0)
    line.pace.answered(batch, Answer(Verdict.REJECT, "bad", 400), 10_020.0)
    assert line.pace.status().concurrency == 2
