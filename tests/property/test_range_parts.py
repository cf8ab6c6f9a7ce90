"""Whatever ends the attempts at a range: each message arrives once, and a name has the same rows each time."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.ranges import Halved
from sidecar.core.records import Answer, Verdict
from tests.simulation.plan import Row
from tests.support.ranges import Attempt, KilledError, Receiver
from tests.support.shell import ACK, REJECT, RETRY

TOO_LARGE = Answer(Verdict.TOO_LARGE, status=413)


def log_of(chance: random.Random) -> list[Row]:
    """Some messages, a few of them odd, with gaps in their offsets."""
    offsets = sorted(chance.sample(range(600), chance.randrange(1, 300)))
    return [
        (
            offset,
            chance.choice([-1, 0, 0, 0, 1, 2]),
            None,
            None if chance.random() < 0.02 else b"%d " % offset + b"x" * chance.choice([1, 30]),
        )
        for offset in offsets
    ]


@settings(deadline=None, max_examples=70)
@given(st.integers(0, 2**32))
def test_attempts_that_end_anywhere(seed: int) -> None:
    """Attempts are killed between any two effects, answers differ from one to the next; the last comes to its end."""
    chance = random.Random(seed)
    log, receiver, halved = log_of(chance), Receiver(), set[Halved]()
    poison = {row[0] for row in log if chance.random() < 0.02}
    max_messages, held = chance.choice([1, 3, 50]), chance.choice([2_000, 1 << 20])
    at_once = chance.choice([1, 7, 100])
    letters: set[int] = set()

    def asked(batch: object, offsets: list[int]) -> Answer:
        if poison.intersection(offsets):
            return REJECT if max(offsets) % 2 else TOO_LARGE
        return RETRY if may_fail and chance.random() < 0.2 else ACK

    def kill() -> None:
        if may_fail and chance.random() < 0.03:
            raise KilledError

    may_fail, is_done, again = True, False, False
    for left in range(20, -1, -1):
        may_fail = left > 0
        attempt = Attempt(receiver, asked, halved, kill, max_messages=max_messages, held=held, again=again)
        again = True
        try:
            attempt.read(log, at_once)
            attempt.finish(2_000)
            is_done = attempt.pipeline.idle
        except KilledError:
            is_done = False
        letters.update(letter.offset for letter in attempt.letters)
        if is_done:
            break
    assert is_done
    assert not receiver.differing
    arrived = Counter(int(row.split()[0]) for part in receiver.rows.values() for row in part)
    wanted = {row[0] for row in log if row[1] != -1}
    odd = {row[0] for row in log if row[1] != -1 and row[3] is None}
    assert arrived == Counter(wanted - odd - poison)
    assert letters == odd | (poison & wanted)
    assert attempt.pipeline.books.balanced
