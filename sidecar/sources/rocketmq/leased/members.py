"""Members of intents: as rows of the state file, and awaited after a crash. No broker.

A message that may have been sent must be known when it is handed over again, so that its part is the same.
"""

from __future__ import annotations

import base64
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, KeysView, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import orjson

from sidecar.core.json_text import loads
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.leased.columns import LeasedMessage
from sidecar.state.interface import ProgressKey

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
    """The rows of the state file that have the members of a numbering's intents.

    Args:
        kept: What the state file keeps of a message, so that its part is the same again; None keeps nothing.
    """

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
