"""Ranges with a ledger: whatever ends attempts or runs them side by side, each key arrives once, under one name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.batching import pick_keys
from sidecar.core.claims import DUPLICATE, HELD, ClaimEnd, ClaimState, Want, place_of
from sidecar.core.delivery.output import Carried
from sidecar.core.intake.intake import fragment_of
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, FailedRow, TopicPartition, Verdict
from tests.simulation.plan import Row, key_of
from tests.support.memory_ledger import MemoryLedger
from tests.support.ranges import CLAIM_MS, Attempt, KilledError, Receiver
from tests.support.shell import ACK, REJECT, RETRY

EARLIER = place_of(TopicPartition("t", 99))


@dataclass
class World:
    """A micro-batch of some partitions, which share keys, and all that happens to it."""

    chance: random.Random
    may_fail: bool = True
    receiver: Receiver = field(default_factory=Receiver)
    ledger: MemoryLedger = field(default_factory=lambda: MemoryLedger(lambda: 0.0))
    logs: dict[TopicPartition, list[Row]] = field(default_factory=dict)
    begun: set[TopicPartition] = field(default_factory=set)
    beside: int = 0
    earlier: list[ClaimEnd] = field(default_factory=list)
    """Dead letters of the micro-batch before, of which the ledger is not told yet."""
    partial: bool = False
    max_messages: int = 1

    def make(self) -> None:
        """Some messages: a third have keys that others have too, some of them in other partitions, some are poison."""
        for number in range(self.chance.randrange(1, 4)):
            offsets = sorted(self.chance.sample(range(200), self.chance.randrange(1, 60)))
            rows = list[Row]()
            for offset in offsets:
                key = self.chance.choice([None, None, self.chance.randrange(20)])
                kind = b"poison" if self.chance.random() < 0.15 else b"good"
                body = b"%d-%d" % (number, offset) if key is None else b"k%d" % key
                rows.append((offset, self.chance.choice([-1, 0, 0, 1]), key, b"%s %s" % (body, kind)))
            self.logs[TopicPartition("t", number)] = rows
        keys = [key_of(0, (0, 0, one, None)) for one in range(20) if self.chance.random() < 0.5]
        for offset, name in enumerate(keys):
            self.ledger.claim([Want(EARLIER, [offset], name, 1)], CLAIM_MS)
        self.earlier = [ClaimEnd(EARLIER, ClaimState.ERROR, [offset], name) for offset, name in enumerate(keys)]
        self.partial = self.chance.random() < 0.3
        self.max_messages = self.chance.choice([1, 3, 50])

    def attempt(self, tp: TopicPartition, *, again: bool) -> Attempt:
        """One attempt at a partition."""
        poison = {row[0] for row in self.logs[tp] if row[3] is not None and row[3].endswith(b"poison")}

        def asked(batch: Batch, offsets: list[int]) -> Answer:
            if self.may_fail and self.chance.random() < 0.1:
                return RETRY
            if not poison.intersection(offsets):
                return ACK
            if not self.partial or len(offsets) == 1:
                return REJECT
            self.receiver.store(batch, without=poison)
            failed = [FailedRow(i, retry=False, reason="bad") for i, o in enumerate(offsets) if o in poison]
            return Answer(Verdict.PARTIAL, "207", 207, failed=tuple(failed))

        return Attempt(
            self.receiver, asked, set(), self.kill, max_messages=self.max_messages, chance=self.chance.random,
            again=again, ledger=self.ledger, tp=tp,
        )  # fmt: skip

    def kill(self) -> None:
        """Tell of a dead letter of the micro-batch before, end the attempt, or run another one beside it."""
        if self.earlier and self.chance.random() < 0.05:
            self.ledger.settle([self.earlier.pop()])
        if self.may_fail and self.chance.random() < 0.02:
            raise KilledError
        if self.may_fail and self.beside < 2 and self.chance.random() < 0.02:
            self.beside += 1
            self.task(self.chance.choice(list(self.logs)))
            self.beside -= 1

    def task(self, tp: TopicPartition) -> Attempt | None:
        """Deliver a range; None if the attempt was killed."""
        attempt = self.attempt(tp, again=tp in self.begun)
        self.begun.add(tp)
        try:
            attempt.read(self.logs[tp], self.chance.choice([1, 7, 100]))
            attempt.finish(2_000)
        except KilledError:
            return None
        assert attempt.pipeline.idle
        return attempt

    def until_done(self, work: Callable[[], bool]) -> None:
        """Try again, at last without faults."""
        for left in range(15, -1, -1):
            self.may_fail = left > 0
            if work():
                break
        else:
            raise AssertionError("it does not end")
        self.may_fail = True

    def settle(self, carried: list[Carried], errors: list[ClaimEnd]) -> bool:
        """What the driver does after the commit; whether nothing is left."""
        try:
            for _ in range(4):
                self.ledger.settle(errors)
                errors.clear()
                for rows in list(carried):
                    rest, more = self.settle_rows(rows)
                    carried.remove(rows)  # at once with what is left of it: the driver replaces a file
                    carried += rest
                    errors += more
        except KilledError:
            return False
        return not carried and not errors

    def settle_rows(self, rows: Carried) -> tuple[list[Carried], list[ClaimEnd]]:
        """Claim rows, and deliver those that are owned."""
        want = Want(place_of(rows.tp), rows.offsets, rows.keys, 1 + self.chance.getrandbits(50))
        (verdict,) = self.ledger.claim([want], CLAIM_MS)
        errors = list[ClaimEnd]()
        left = [picked(rows, [i for i, one in enumerate(verdict) if one == HELD])]
        ours = [i for i, one in enumerate(verdict) if one not in (HELD, DUPLICATE)]
        if ours:
            attempt = self.attempt(rows.tp, again=True)
            found = [row for row in self.logs[rows.tp] if row[0] in {rows.offsets[i] for i in ours}]
            fragment = fragment_of(attempt.reading, rows.tp, found, 0.0, {})
            attempt.pipeline.take_up(rows.group, rows.first, rows.last, fragment)
            attempt.finish(2_000)
            assert attempt.pipeline.idle and not attempt.pipeline.books.in_flight - sum(
                len(one.offsets) for one in attempt.pipeline.carried
            )
            left += attempt.pipeline.carried
            errors = attempt.errors
        return [one for one in left if one.offsets], errors


def picked(rows: Carried, chosen: list[int]) -> Carried:
    """Some of the rows."""
    return rows._replace(offsets=[rows.offsets[i] for i in chosen], keys=pick_keys(rows.keys, chosen))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_attempts_side_by_side_and_killed_anywhere(seed: int) -> None:
    """The driver settles what twins kept back, killed too: each key arrives once if any message with it can."""
    world = World(random.Random(seed))
    world.make()
    won = dict[TopicPartition, Attempt]()
    for tp in world.logs:

        def run(tp: TopicPartition = tp) -> bool:
            attempt = world.task(tp)
            if attempt is not None:
                won[tp] = attempt
            return attempt is not None

        world.until_done(run)
    carried = [rows for attempt in won.values() for rows in attempt.pipeline.carried]
    errors = [mark for attempt in won.values() for mark in attempt.errors]
    world.ledger.settle(world.earlier)
    world.earlier.clear()
    world.beside = 2  # no task of a committed micro-batch runs again
    world.until_done(lambda: world.settle(carried, errors))
    assert not world.receiver.differing
    arrived = Counter(row.split()[0] for part in world.receiver.rows.values() for row in part)
    wanted = [row[3] for log in world.logs.values() for row in log if row[1] != -1 and row[3] is not None]
    assert arrived == Counter({body.split()[0] for body in wanted if body.endswith(b"good")})
