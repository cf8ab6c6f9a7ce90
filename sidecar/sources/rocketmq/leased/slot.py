"""A numbering that the core has, and the numberings that a topic resumes from the state file. No broker, no thread."""

from __future__ import annotations

import secrets
import time
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import Assignment, ReadPast
from sidecar.sources.rocketmq.leased.columns import LeasedMessage
from sidecar.sources.rocketmq.leased.members import (
    MEMBERS,
    ROWS,
    Awaited,
    IntentMember,
    IntentMembers,
    divide,
    members_row,
    promised,
    read_members,
    read_rows,
    rows_row,
    unsettled,
)
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, Origin, encode


class Slot:
    """A numbering.

    Args:
        tp: The topic, and the slot's number for a partition.
        rules: 4 bytes, the hash of the rules.
        resumed: Whether it was in the state file.
    """

    def __init__(
        self,
        tp: TopicPartition,
        identity: Identity,
        rules: bytes,
        state: PartitionState,
        members: Mapping[int, list[IntentMember]],
        *,
        resumed: bool,
        kept: Callable[[LeasedMessage], str] | None = None,
    ) -> None:
        self.tp = tp
        self.scope = identity.scope
        self._identity = identity
        self._rules = rules
        self._start = state
        self._resumed = resumed
        self._next = state.seen
        self._held: dict[int | None, list[LeasedMessage]] = {}
        """Unsettled messages that the core has, by group and number."""
        self.awaited = Awaited(members)
        self._members = IntentMembers(tp, members, kept)
        self._is_complete = False
        """Whether the core has all messages that were awaited."""

    def assignment(self) -> Assignment:
        state = self._start
        return Assignment(self.tp, self.scope, state, "", self._identity.incarnation, self._resumed, state.watermark)

    @property
    def is_done(self) -> bool:
        return self.awaited.is_empty and not any(self._held.values())

    def number(self, messages: list[LeasedMessage]) -> Run:
        """Number these messages and hold them."""
        first = self._next
        for number, message in enumerate(messages, first):
            message.number = number
            self._held.setdefault(message.key, []).append(message)
        self._next += len(messages)
        return Run(self.tp, messages, first, self._next - 1)

    def give_up(self, identities: Collection[bytes]) -> None:
        """Give up these awaited messages: their parts are sent without them."""
        self._members.leave(self.awaited.give_up(identities))

    def ready(self) -> Iterable[Run | ReadPast]:
        """Awaited messages that may be handed to the core in order, because all earlier ones are there."""
        if self._is_complete:
            return
        messages = self.awaited.pass_on()
        for message in messages:
            insort(self._held.setdefault(message.key, []), message, key=attrgetter("number"))
        if messages:
            yield Run(self.tp, messages, messages[0].number, messages[-1].number)
        if self.awaited.is_empty:
            self._is_complete = True
            yield ReadPast(self.tp, self._start.seen)

    def commit(self, state: PartitionState) -> tuple[list[LeasedMessage], dict[ProgressKey, str]]:
        """The messages that a state settles, and the rows that make this durable."""
        rows = {ProgressKey.of(self.tp): self._row(state)} | self._members.record(state, self._held)
        settled: list[LeasedMessage] = []
        for key, messages in list(self._held.items()):
            left, done = divide(messages, unsettled(state, key))
            settled += done
            self._held[key] = left
            if not left:
                del self._held[key]
        self._members.leave(map(attrgetter("chunk"), settled))
        return settled, rows | self._members.drop_empty()

    def _row(self, state: PartitionState) -> str:
        text = encode(self._identity, self._rules, state)
        return QueueProgress(text, self._identity.incarnation, state.watermark, 0).dump()


class LeasedStart(NamedTuple):
    """The numberings of a topic at the start.

    Args:
        earlier: Earlier numberings with pending messages, the oldest first.
        inherits: The numbering whose message ids a new current one takes over.
        stale: Rows that are no longer needed.
        other_rules: Whether state was found that does not apply under the present rules.
        kept: Stored messages, among them those that earlier numberings await.
    """

    current: Slot
    earlier: list[Slot]
    inherits: TopicPartition | None
    stale: list[ProgressKey]
    other_rules: bool
    kept: list[str]


class _Left(NamedTuple):
    tp: TopicPartition
    identity: Identity
    state: PartitionState

    @property
    def pending(self) -> PartitionState:
        """The state with only its intents: open messages are handed over again, as new ones."""
        lanes = {key: lane._replace(open_from=None) for key, lane in self.state.lanes.items() if lane.intents}
        ranges = [intent for lane in lanes.values() for intent in lane.intents]
        ranges += [(shared.first, shared.last) for shared in self.state.shared]
        # Numbers after the last intent were used too, and are never used again.
        first = min((first for first, _ in ranges), default=self.state.seen)
        return replace(self.state, watermark=first, lanes=lanes, shared_from=None)


def start_all(
    topics: Sequence[str],
    group: str,
    rules: bytes,
    keep: Callable[[LeasedMessage], str] | None,
    rows: Mapping[ProgressKey, str],
) -> dict[str, LeasedStart]:
    """The numberings of each of these topics; see `start`."""
    return {topic: start(topic, rows, group, rules, time.time_ns() // 1_000, keep) for topic in topics}


def start(
    topic: str,
    rows: Mapping[ProgressKey, str],
    group: str,
    rules: bytes,
    now_us: int,
    keep: Callable[[LeasedMessage], str] | None = None,
) -> LeasedStart:
    """Determine the numberings of a topic.

    Args:
        rules: 4 bytes, the hash of the rules.
        now_us: Wall time: numbers begin there, so that none is used twice, even if the state is lost.
    """
    left, other_rules = _left(topic, rows, group, rules)
    earlier = [slot for slot in left if slot.pending.lanes or slot.pending.shared]
    newest = left[-1] if left else None
    if newest and newest not in earlier:
        seen = newest.state.seen
        current = Slot(newest.tp, newest.identity, rules, PartitionState(seen, seen), {}, resumed=True, kept=keep)
    else:
        number = next(n for n in range(len(earlier) + 1) if all(slot.tp.partition != n for slot in earlier))
        begin = max(now_us, newest.state.seen if newest else 0)
        tp, identity = TopicPartition(topic, number), Identity("", group, "", secrets.randbits(64))
        state, resumed = PartitionState(begin, begin), newest is not None
        current = Slot(tp, identity, rules, state, {}, resumed=resumed, kept=keep)
    slots, used = [], {ProgressKey.of(current.tp)}
    kept: list[str] = []
    for slot in earlier:
        members = _members(slot, rows)
        slots.append(Slot(slot.tp, slot.identity, rules, slot.pending, members, resumed=True, kept=keep))
        used |= {ProgressKey.of(slot.tp), *(members_row(slot.tp, chunk) for chunk in members)}
        used |= {rows_row(slot.tp, chunk) for chunk in members}
        kept += [text for chunk in members for text in read_rows(rows.get(rows_row(slot.tp, chunk)))]
    stale = [key for key in rows if key.topic == topic and _is_ours(key) and key not in used]
    return LeasedStart(current, slots, newest.tp if newest in earlier and newest else None, stale, other_rules, kept)


def _is_ours(key: ProgressKey) -> bool:
    return not key.label or key.label.startswith((MEMBERS, ROWS))


def _left(topic: str, rows: Mapping[ProgressKey, str], group: str, rules: bytes) -> tuple[list[_Left], bool]:
    """The numberings that can be resumed, by number, and whether rules changed."""
    left, other_rules = [], False
    for key, text in rows.items():
        progress = QueueProgress.load(text) if key.topic == topic and not key.label else None
        if progress is None:
            continue
        identity = Identity("", group, "", progress.incarnation)
        decoded = progress.decoded(identity, rules)
        other_rules |= decoded.origin is Origin.OTHER_RULES
        if decoded.origin is Origin.OURS and decoded.state is not None:
            left.append(_Left(key.tp, identity, decoded.state))
    return sorted(left, key=lambda slot: slot.state.seen), other_rules


def _members(slot: _Left, rows: Mapping[ProgressKey, str]) -> dict[int, list[IntentMember]]:
    by_row: dict[int, list[IntentMember]] = {}
    for key, text in rows.items():
        if key[:2] != slot.tp[:2] or not key.label.startswith(MEMBERS):
            continue
        members = [member for member in read_members(text) if _is_promised(slot.state, member)]
        if members:
            by_row[int(key.label.removeprefix(MEMBERS))] = members
    return by_row


def _is_promised(state: PartitionState, member: IntentMember) -> bool:
    return any(first <= member.number <= last for first, last in promised(state, member.key))
