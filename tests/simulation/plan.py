"""What one schedule looks like: its logs, limits and kinds of faults, all drawn from the seed. Nothing runs here."""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.records import TopicPartition

TPS = [TopicPartition("t", number) for number in range(3)]
MANY_GROUPS = 70

Row = tuple[int, int, int | None, bytes | None]
"""Offset, tag, message id, value; None stands for a value that cannot be framed."""


@dataclass(frozen=True, slots=True)
class Log:
    """What was produced to one partition; the offset is the index."""

    messages: list[Row]
    wanted: frozenset[int]
    poison: frozenset[int]
    """Offsets that the receiver refuses for ever."""
    odd: frozenset[int]
    """Offsets that cannot be framed."""
    twins: dict[int | None, list[int]]
    """Message id to the wanted offsets that carry it."""

    def twins_of(self, offset: int) -> Sequence[int]:
        """The wanted offsets that carry the message id of this one, itself among them."""
        return self.twins.get(self.messages[offset][2], ())


@lru_cache(maxsize=4096)
def make_log(number: int, length: int, groups: int, *, ids: bool, odd: bool) -> Log:
    """A log; few different ones serve many schedules."""
    r = random.Random(f"{number} {length} {groups} {ids} {odd}")
    messages: list[Row] = []
    wanted, poison, strange = set(), set(), set()
    twins: dict[int | None, list[int]] = {}
    for offset in range(length):
        tag = r.randrange(groups + 1)
        number_of = r.randrange(length * 2 // 3) if ids and r.random() < 0.8 else None
        fits = not (odd and r.random() < 0.08)
        messages.append((offset, tag, number_of, b"%d" % offset if fits else None))
        if tag < groups:
            wanted.add(offset)
            if not fits:
                strange.add(offset)
            elif r.random() < 0.05:
                poison.add(offset)
            if number_of is not None:
                twins.setdefault(number_of, []).append(offset)
    return Log(messages, frozenset(wanted), frozenset(poison), frozenset(strange), twins)


def refilled(log: Log, at: int, number: int, groups: int, *, odd: bool) -> Log:
    """The same log up to an offset, and other messages from there on; `number` must be a new one."""
    other = make_log(number % 40, len(log.messages), groups, ids=False, odd=odd)
    fresh: list[Row] = [(o, tag, number, value) for o, tag, _, value in other.messages[at:]]

    def joined(ours: frozenset[int], theirs: frozenset[int]) -> frozenset[int]:
        return frozenset(o for o in ours if o < at) | frozenset(o for o in theirs if o >= at)

    return Log(
        log.messages[:at] + fresh,
        joined(log.wanted, other.wanted),
        joined(log.poison, other.poison),
        joined(log.odd, other.odd),
        {},
    )


def digest_of(row: Row) -> int:
    """What tells a row from any other at its offset."""
    return zlib.crc32(repr(row).encode())


class Columns:
    """Reads the rows of a log."""

    def offsets(self, messages: Any) -> Any:
        return array("q", [message[0] for message in messages])

    def values(self, messages: Any) -> Any:
        return [message[3] for message in messages]

    keys = headers = values

    def timestamps(self, messages: Any) -> Any:
        return [None for _ in messages]


class LineFramer:
    """One value a line; None cannot be framed."""

    separator = b"\n"

    def frame(self, tp: TopicPartition, messages: Any) -> tuple[bytes, Any]:
        values = [message[3] for message in messages]
        if None in values:
            odd = [i for i, value in enumerate(values) if value is None]
            return b"\n".join([value for value in values if value is not None]), odd
        return b"\n".join(values), ()


def read_tags(tp: TopicPartition, messages: Any) -> Any:
    """The tags of rows: small numbers."""
    return [message[1] for message in messages]


def read_ids(tp: TopicPartition, messages: Any) -> Any:
    """The message ids of rows."""
    return [message[2] for message in messages]


def key_of(number: int, row: Row) -> bytes:
    """The key of a row of a partition: one without an id has its own."""
    return b"p%07d%08d" % (number, row[0]) if row[2] is None else b"i%015d" % row[2]


def read_keys(tp: TopicPartition, messages: Any) -> bytes:
    """The business keys of rows."""
    return b"".join([key_of(tp.partition, message) for message in messages])


GROUPS = {count: {tag: f"g{tag}" if tag < count else None for tag in range(count + 1)} for count in range(1, 100)}
COLUMNS, FRAMER = Columns(), LineFramer()
READINGS: dict[tuple[int, bool], ReadingRules] = {
    (count, ids): ReadingRules(COLUMNS, FRAMER, read_tags, GROUPS[count], read_ids if ids else None)  # type: ignore[arg-type]
    for count in GROUPS
    for ids in (False, True)
}


@dataclass(slots=True)
class Plan:
    """One schedule's circumstances."""

    seed: int
    logs: list[Log]
    length: int
    groups: int
    ids: bool
    processes: int
    batching: BatchRules
    rules: DeliveryRules
    compaction: float
    """How likely an event is that some message is compacted away."""
    faults: float
    """How likely an event is a crash, a takeover, a revocation or a planned stop."""
    partial: bool
    """The receiver answers 207 where it could answer 400."""
    flaky: float
    """How likely a row fails for the moment, with `partial`."""
    rows_max: int
    """More rows than that are answered with 413."""
    run_max: int
    """Messages read at once."""
    codec: bool
    """The state travels as the real commit metadata."""
    odd: bool
    """Some messages cannot be framed."""
    answers: int = 1
    """Sends that are answered at once."""
    resets: float = 0.0
    """How likely an event is a reset of a partition's offset, or a topic made again."""
    claim_ms: int = 0
    """How long a claim in the ledger holds; 0 without a ledger."""
    rewinds: float = 0.0
    """How likely an event is that the broker forgets its newest commits, and at times the end of a log with them."""
    reloads: float = 0.0
    """How likely an event is that the configuration is changed and read again."""
    reading: ReadingRules = field(init=False)

    def __post_init__(self) -> None:
        self.reading = READINGS[self.groups, self.ids]

    def rewind(self) -> None:
        """Let the broker forget commits."""
        self.rewinds = 0.02
        self.reading = replace(self.reading, digest=digest_of)

    def version(self, number: int) -> tuple[ReadingRules, BatchRules, DeliveryRules]:
        """The rules of a version of the configuration: all messages stay wanted, and go to other groups."""
        if not number:
            return self.reading, replace(self.batching), replace(self.rules)
        count = self.groups
        groups = {tag: f"g{(tag + number) % count}" if tag < count else None for tag in range(count + 1)}
        batching = replace(self.batching, linger_ms=(0, 30, 300)[number % 3], by_group=number % 2 == 0)
        rules = replace(self.rules, concurrency=1 + number % 4, backoff=Backoff(10, 20 + 100 * (number % 3)))
        reading = replace(self.reading, groups=groups, sorting=groups if self.is_sorted else None)  # type: ignore[arg-type]
        return reading, batching, rules

    @property
    def is_sorted(self) -> bool:
        """Whether runs sort themselves."""
        return self.reading.sorting is not None

    @property
    def gives_up(self) -> bool:
        """Whether a dead letter may be of a message that the receiver has."""
        return self.rules.give_up_attempts is not None or self.rules.give_up_ms is not None


def make_plan(
    seed: int, *, newer: bool = True, ledger: bool = False, reloads: bool = False, lane: bool = False
) -> Plan:
    """The circumstances of a seed; `newer` ones are drawn apart, so that older seeds keep their meaning."""
    plan = _plan_of(seed, newer=newer, ledger=ledger, reloads=reloads)
    if lane:
        plan.reading = replace(plan.reading, sorting=plan.reading.groups)
    return plan


def _plan_of(seed: int, *, newer: bool, ledger: bool, reloads: bool) -> Plan:
    plan = _make_plan(seed)
    if reloads:
        plan.ids, plan.reloads = False, random.Random(seed ^ 0x4E10AD).choice((0.01, 0.03, 0.1))
        plan.reading = READINGS[plan.groups, False]
        return plan
    if ledger:
        newer = True
        plan.ids = False
    if newer:
        r = random.Random(seed ^ 0x5EED)
        if plan.ids and r.random() < 0.4:
            plan.processes = 1  # its journal of ids never moves
        if plan.groups == MANY_GROUPS:  # so many senders that cuts for all groups are on their way when something fails
            plan.rules = replace(plan.rules, concurrency=r.choice((1, 40, 40)))
            plan.answers, plan.faults, plan.length, plan.run_max = 20, 0.03, 400, 100
            plan.processes = 3 if seed % 3 == 0 else 1
            plan.logs = [make_log(r.randrange(40), plan.length, plan.groups, ids=plan.ids, odd=plan.odd)]
        plan.resets = r.choice((0.0, 0.0, 0.0, 0.02))
        attempts, failing_ms = r.choice(((None, None),) * 4 + ((3, None), (5, None), (None, 200), (None, 1000)))
        plan.rules = replace(plan.rules, give_up_attempts=attempts, give_up_ms=failing_ms)
        if seed % 4 == 1 and not ledger:
            plan.rewind()
        if plan.ids and plan.processes == 1:
            capacity = random.Random(seed ^ 0xF0C6E7).choice((100_000_000, 100_000_000, 8, 20, 60))
            plan.reading = replace(plan.reading, capacity=capacity)
    return _with_ledger(plan) if ledger else plan


def _with_ledger(plan: Plan) -> Plan:
    """Twins over all partitions, told by one ledger."""
    r = random.Random(plan.seed ^ 0x1ED6E2)
    partitions = 1 if plan.groups == MANY_GROUPS else r.choice((1, 2, 3, 3))
    plan.logs = [make_log(r.randrange(40), plan.length, plan.groups, ids=True, odd=plan.odd) for _ in range(partitions)]
    plan.claim_ms = r.choice((900, 30_000, 30_000))
    plan.rules = replace(plan.rules, lease_ms=plan.claim_ms // 3)
    plan.reading = replace(READINGS[plan.groups, False], keys=read_keys)
    return plan


def _make_plan(seed: int) -> Plan:
    r = random.Random(seed)
    chance = r.random
    many = chance() < 0.04
    ids, odd = chance() < 0.3, chance() < 0.2
    length = 260 if many else r.choice((40, 60))
    groups = MANY_GROUPS if many else r.randrange(1, 5)
    partitions = 1 if many else r.randrange(1, 4)
    logs = [make_log(r.randrange(40), length, groups, ids=ids, odd=odd) for _ in range(partitions)]
    ordered = chance() < 0.3
    partial = chance() < 0.3
    batching = BatchRules(
        by_group=chance() < 0.5,
        limits=Limits(40, 1000) if many else Limits(r.choice((1, 3, 6, 12, 40)), r.choice((6, 30, 1000))),
        linger_ms=300 if many else r.choice((0, 30, 300)),
        span_max=1000 if many else r.choice((10, 30, 1000)),
        held_max_bytes=2_000_000 if many else r.choice((5_000, 20_000, 2_000_000)),
    )
    rules = DeliveryRules(Backoff(10, r.choice((20, 300))), 1 if many else r.choice((1, 2, 4)), ordered, b"\n")
    return Plan(
        seed=seed,
        logs=logs,
        length=length,
        groups=groups,
        ids=ids,
        processes=1 if chance() < 0.2 else 3,
        batching=batching,
        rules=rules,
        compaction=r.choice((0.0, 0.02)),
        faults=r.choice((0.0, 0.02, 0.06)),
        partial=partial,
        flaky=0.1 if partial and not ordered else 0.0,
        rows_max=r.choice((2, 5, 1000)),
        run_max=40 if many else 8,
        codec=many or chance() < 0.1,
        odd=odd,
    )
