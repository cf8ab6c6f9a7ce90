"""A numbering that the core has, the members of its intents, and the numberings that a topic resumes. No broker.

A message that may have been sent must be known when it is handed over again, so that its part is the same.
"""

from __future__ import annotations

import base64
import secrets
import struct
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import orjson

from sidecar.core.json_text import loads
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import Assignment, ReadPast, run_length
from sidecar.sources.rocketmq.leased.columns import LeasedMessage
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, Origin, encode

END = 1 << 62
Range = tuple[int, int]
"""First and last number."""
_NUMBER = attrgetter("number")


def promised(state: PartitionState, key: int | None) -> list[Range]:
    """The intents that have messages of a group."""
    if key is None:
        return []
    lane = state.lanes.get(key)
    shared = [(intent.first, intent.last) for intent in state.shared if key not in intent.excluded]
    return [*lane.intents, *shared] if lane else shared


def unsettled(state: PartitionState, key: int | None) -> list[Range]:
    """The ranges in which a group's messages are unsettled, by first number: promised, open, or not read yet."""
    lane = state.lanes.get(key) if key is not None else None
    starts = [state.seen]
    if key is not None and state.shared_from is not None:
        starts.append(state.shared_from)
    if lane is not None and lane.open_from is not None:
        starts.append(lane.open_from)
    return sorted([*promised(state, key), (min(starts), END)])


def within(messages: Sequence[LeasedMessage], numbers: Range, begin: int = 0) -> tuple[int, int]:
    """The slice of messages, by number, that a range covers; nothing before index `begin`."""
    start = bisect_left(messages, numbers[0], begin, key=_NUMBER)
    return start, bisect_right(messages, numbers[1], start, key=_NUMBER)


def divide(
    messages: Sequence[LeasedMessage], ranges: Sequence[Range]
) -> tuple[list[LeasedMessage], list[LeasedMessage]]:
    """Messages, by number, that the ranges cover, and the others."""
    inside: list[LeasedMessage] = []
    outside: list[LeasedMessage] = []
    begin = 0
    for numbers in ranges:
        start, stop = within(messages, numbers, begin)
        outside += messages[begin:start]
        inside += messages[start:stop]
        begin = stop
    outside += messages[begin:]
    return inside, outside


MEMBERS = "members "
ROWS = "rows "
_MEMBER = struct.Struct("<QQ16s")


class IntentMember(NamedTuple):
    """The stored form of a message of an intent."""

    number: int
    key: int
    identity: bytes


class IntentMembers:
    """The rows of the state file with the members of a numbering's intents, and with what `kept` keeps of them."""

    def __init__(
        self, tp: TopicPartition, rows: Mapping[int, list[IntentMember]], kept: Callable[[LeasedMessage], str] | None
    ) -> None:
        self._tp = tp
        self._kept = kept
        self._unsettled = {chunk: len(members) for chunk, members in rows.items()}
        """Number of unsettled members in each row."""
        self._next_row = max(rows, default=-1) + 1
        self._promised: set[tuple[int | None, int, int]] = set()

    def record(self, state: PartitionState, held: Mapping[int | None, list[LeasedMessage]]) -> dict[ProgressKey, str]:
        """The rows with the members of a state's new intents."""
        now = {(key, *intent) for key in held for intent in promised(state, key)}
        members: list[LeasedMessage] = []
        for key, first, last in now - self._promised:
            start, stop = within(held[key], (first, last))
            members += [message for message in held[key][start:stop] if message.chunk is None]
        self._promised = now
        if not members:
            return {}
        chunk, self._next_row = self._next_row, self._next_row + 1
        self._unsettled[chunk] = 0
        packed = bytearray()
        for message in members:
            if message.chunk is None:  # a message of two intents is named once
                message.chunk = chunk
                self._unsettled[chunk] += 1
                packed += _MEMBER.pack(message.number, message.key, message.identity)
        rows = {members_row(self._tp, chunk): base64.b64encode(packed).decode()}
        if self._kept is not None:
            rows[rows_row(self._tp, chunk)] = orjson.dumps([self._kept(message) for message in members]).decode()
        return rows

    def leave(self, chunks: Iterable[int | None]) -> None:
        """Count members as settled or given up, by their row; None for a message of no intent."""
        for chunk in chunks:
            if chunk is not None:
                self._unsettled[chunk] -= 1

    def drop_empty(self) -> dict[ProgressKey, str]:
        """The changes that remove the rows without unsettled members."""
        changes: dict[ProgressKey, str] = {}
        for chunk in [chunk for chunk, left in self._unsettled.items() if not left]:
            del self._unsettled[chunk]
            changes |= {members_row(self._tp, chunk): "", rows_row(self._tp, chunk): ""}
        return changes


class Awaited:
    """Members from before a crash, until they are handed over again and all earlier ones are there."""

    def __init__(self, rows: Mapping[int, list[IntentMember]]) -> None:
        self._members: dict[bytes, list[tuple[int, int]]] = {}
        """Number and row of missing messages, by identity."""
        for chunk, members in rows.items():
            for member in members:
                self._members.setdefault(member.identity, []).append((member.number, chunk))
        self._order = sorted(member.number for members in rows.values() for member in members)
        self._missing = set(self._order)
        self._collected: dict[int, LeasedMessage] = {}
        self._passed = 0
        """Number of members that are no longer awaited: those before the first missing one."""

    @property
    def count(self) -> int:
        return len(self._missing)

    @property
    def missed(self) -> KeysView[bytes]:
        """Missing messages, by identity."""
        return self._members.keys()

    @property
    def is_empty(self) -> bool:
        """Whether none is missing or waits for another."""
        return not (self._members or self._collected)

    def collect(self, message: LeasedMessage) -> bool:
        """Take a message if it is missing; return whether it is."""
        members = self._members.get(message.identity)
        if not members:
            return False
        message.number, message.chunk = members.pop(0)
        if not members:
            del self._members[message.identity]
        message.again = True
        self._missing.discard(message.number)
        self._collected[message.number] = message
        return True

    def give_up(self, identities: Collection[bytes]) -> list[int]:
        """Stop awaiting these messages; return the row of each."""
        given_up = [member for identity in identities for member in self._members.pop(identity, ())]
        self._missing.difference_update(number for number, _ in given_up)
        return [chunk for _, chunk in given_up]

    def pass_on(self) -> list[LeasedMessage]:
        """The next messages in order, up to the first that is missing."""
        order, begin = self._order, self._passed
        while self._passed < len(order) and order[self._passed] not in self._missing:
            self._passed += 1
        return [self._collected.pop(number) for number in order[begin : self._passed] if number in self._collected]


def members_row(tp: TopicPartition, chunk: int) -> ProgressKey:
    """The key of a row with members."""
    return ProgressKey.of(tp)._replace(label=f"{MEMBERS}{chunk}")


def rows_row(tp: TopicPartition, chunk: int) -> ProgressKey:
    """The key of a row with the stored messages of those members."""
    return ProgressKey.of(tp)._replace(label=f"{ROWS}{chunk}")


def read_members(text: str) -> list[IntentMember]:
    """The members of a row; none if it is damaged."""
    try:
        return [IntentMember(*fields) for fields in _MEMBER.iter_unpack(base64.b64decode(text, validate=True))]
    except (ValueError, struct.error):
        return []


def read_rows(text: str | None) -> list[str]:
    """The messages of a row; none if it is missing or damaged."""
    try:
        return [str(message) for message in loads(text)] if text else []
    except (ValueError, TypeError):
        return []


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


@dataclass(slots=True)
class Topic:
    """The numberings of a topic.

    Args:
        earlier: Earlier numberings with pending messages, the oldest first.
        inherits: The numbering whose message ids a new current one takes over.
        stale: Rows that are no longer needed.
        other_rules: Whether state was found that does not apply under the present rules.
        kept: Stored messages, among them those that earlier numberings await; only at the start.
    """

    current: Slot
    earlier: list[Slot]
    inherits: TopicPartition | None
    stale: list[ProgressKey]
    other_rules: bool
    kept: list[str]
    has_begun: bool = True
    """Whether the current numbering is assigned to the core."""
    line: list[LeasedMessage] = field(default_factory=list)
    """New messages that have no number yet."""
    repeats: list[LeasedMessage] = field(default_factory=list)
    """Duplicates that the core has not counted yet."""

    def number(self) -> Iterable[Run]:
        """Number the messages in line and hold them."""
        while self.line:
            count = run_length(len(message.handed.body) for message in self.line)
            few, self.line = self.line[:count], self.line[count:]
            yield self.current.number(few)

    def counted(self) -> Iterable[Run]:
        """Repeats for the core to count, under numbers below all others, which count as settled."""
        repeats, self.repeats = self.repeats, []
        for number, message in enumerate(repeats):
            message.number = number
        if repeats:
            slot = self.current if self.has_begun else self.earlier[0]
            yield Run(slot.tp, repeats, 0, len(repeats) - 1)


_Left: TypeAlias = tuple[TopicPartition, Identity, PartitionState]


def _pending(state: PartitionState) -> PartitionState:
    """The state with only its intents: open messages are handed over again, as new ones."""
    lanes = {key: lane._replace(open_from=None) for key, lane in state.lanes.items() if lane.intents}
    ranges = [intent for lane in lanes.values() for intent in lane.intents]
    ranges += [(shared.first, shared.last) for shared in state.shared]
    # Numbers after the last intent were used too, and are never used again.
    first = min((first for first, _ in ranges), default=state.seen)
    return replace(state, watermark=first, lanes=lanes, shared_from=None)


def start_all(
    topics: Sequence[str],
    group: str,
    rules: bytes,
    keep: Callable[[LeasedMessage], str] | None,
    rows: Mapping[ProgressKey, str],
) -> dict[str, Topic]:
    """Determine the numberings of each of these topics."""
    return {topic: _start(topic, rows, group, rules, keep) for topic in topics}


def _start(
    topic: str,
    rows: Mapping[ProgressKey, str],
    group: str,
    rules: bytes,
    keep: Callable[[LeasedMessage], str] | None,
) -> Topic:
    left, other_rules = _left(topic, rows, group, rules)
    earlier = [(tp, identity, state) for tp, identity, state in left if state.shared or _pending(state).lanes]
    newest = left[-1] if left else None
    seen = newest[2].seen if newest else 0
    if newest and newest not in earlier:
        tp, identity, _ = newest
    else:
        number = next(n for n in range(len(earlier) + 1) if all(tp.partition != n for tp, *_ in earlier))
        tp, identity = TopicPartition(topic, number), Identity("", group, "", secrets.randbits(64))
        seen = max(time.time_ns() // 1_000, seen)  # so that no number is used twice, even if the state is lost
    current = Slot(tp, identity, rules, PartitionState(seen, seen), {}, resumed=newest is not None, kept=keep)
    slots, used = [], {ProgressKey.of(tp)}
    kept: list[str] = []
    for tp, identity, state in earlier:
        members = _members(tp, state, rows)
        slots.append(Slot(tp, identity, rules, _pending(state), members, resumed=True, kept=keep))
        used |= {ProgressKey.of(tp), *(members_row(tp, chunk) for chunk in members)}
        used |= {rows_row(tp, chunk) for chunk in members}
        kept += [text for chunk in members for text in read_rows(rows.get(rows_row(tp, chunk)))]
    stale = [key for key in rows if key.topic == topic and _is_ours(key) and key not in used]
    return Topic(current, slots, newest[0] if newest in earlier and newest else None, stale, other_rules, kept)


def _is_ours(key: ProgressKey) -> bool:
    return not key.label or key.label.startswith((MEMBERS, ROWS))


def _left(topic: str, rows: Mapping[ProgressKey, str], group: str, rules: bytes) -> tuple[list[_Left], bool]:
    """The numberings that can be resumed, by number, and whether rules changed."""
    left: list[_Left] = []
    other_rules = False
    for key, text in rows.items():
        progress = QueueProgress.load(text) if key.topic == topic and not key.label else None
        if progress is None:
            continue
        identity = Identity("", group, "", progress.incarnation)
        decoded = progress.decoded(identity, rules)
        other_rules |= decoded.origin is Origin.OTHER_RULES
        if decoded.origin is Origin.OURS and decoded.state is not None:
            left.append((key.tp, identity, decoded.state))
    return sorted(left, key=lambda found: found[2].seen), other_rules


def _members(
    tp: TopicPartition, state: PartitionState, rows: Mapping[ProgressKey, str]
) -> dict[int, list[IntentMember]]:
    by_row: dict[int, list[IntentMember]] = {}
    for key, text in rows.items():
        if key[:2] != tp[:2] or not key.label.startswith(MEMBERS):
            continue
        members = [member for member in read_members(text) if _is_promised(state, member)]
        if members:
            by_row[int(key.label.removeprefix(MEMBERS))] = members
    return by_row


def _is_promised(state: PartitionState, member: IntentMember) -> bool:
    return any(first <= member.number <= last for first, last in promised(state, member.key))
