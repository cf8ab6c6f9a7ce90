"""A numbering of a topic's messages: which are unsettled, and which are awaited after a crash. No broker.

The numbers are the offsets that the core sees. In the state file a slot has a row for the core's state, and rows for
the members of its intents: what was sent, perhaps, must be told when it is handed over again.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from bisect import insort
from collections.abc import Callable, Collection, Iterable, KeysView, Mapping
from operator import attrgetter
from typing import NamedTuple

import orjson

from sidecar.core.partition.state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import Assignment, ReadPast
from sidecar.sources.rocketmq.leased.columns import Taken
from sidecar.sources.rocketmq.leased.unsettled import divide, promised, unsettled, within
from sidecar.sources.rocketmq.progress import Progress
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, encode

MEMBERS = "members "
ROWS = "rows "
_MEMBER = struct.Struct("<QQ16s")


class Member(NamedTuple):
    """The stored form of a message of an intent."""

    number: int
    key: int
    identity: bytes


class Slot:
    """A numbering.

    Args:
        tp: The topic, and the slot's number for a partition.
        identity: The identity of its offsets.
        rules: 4 bytes, a hash of what decides where a message goes.
        state: The state that it resumes.
        members: Members of its intents from before a crash, by row.
        resumed: Whether it was in the state file.
        kept: What the state file keeps of a message, so that its part is the same again; None keeps nothing.
    """

    def __init__(
        self,
        tp: TopicPartition,
        identity: Identity,
        rules: bytes,
        state: PartitionState,
        members: Mapping[int, list[Member]],
        *,
        resumed: bool,
        kept: Callable[[Taken], str] | None = None,
    ) -> None:
        self.tp = tp
        self.scope = identity.scope
        self._identity = identity
        self._rules = rules
        self._start = state
        self._resumed = resumed
        self._kept = kept
        self._next = state.seen
        self._held: dict[int | None, list[Taken]] = {}
        """Unsettled messages that the core has, by group and number."""
        self._rows = {chunk: len(found) for chunk, found in members.items()}
        """Number of unsettled members in each row."""
        self._next_row = max(members, default=-1) + 1
        self._promised: set[tuple[int | None, int, int]] = set()
        self._awaited: dict[bytes, list[tuple[int, int]]] = {}
        """Number and row of awaited messages, by identity."""
        for chunk, found in members.items():
            for one in found:
                self._awaited.setdefault(one.identity, []).append((one.number, chunk))
        self._order = sorted(one.number for found in members.values() for one in found)
        self._missing = set(self._order)
        self._collected: dict[int, Taken] = {}
        self._at = self._told = 0
        self._is_complete = False

    def assignment(self) -> Assignment:
        """The assignment for the core."""
        state = self._start
        return Assignment(self.tp, self.scope, state, "", self._identity.incarnation, self._resumed, state.watermark)

    # New messages

    def number(self, messages: list[Taken]) -> Run:
        """Number these messages and hold them."""
        first = self._next
        for number, message in enumerate(messages, first):
            message.number = number
            self._held.setdefault(message.key, []).append(message)
        self._next += len(messages)
        return Run(self.tp, messages, first, self._next - 1)

    # Awaited messages

    @property
    def awaits(self) -> int:
        """Number of awaited messages."""
        return len(self._missing)

    @property
    def missed(self) -> KeysView[bytes]:
        """Awaited messages, by identity."""
        return self._awaited.keys()

    @property
    def is_done(self) -> bool:
        """Whether no message is unsettled."""
        return not (self._awaited or self._collected or any(self._held.values()))

    def collect(self, message: Taken) -> bool:
        """Take a message if it is awaited; return whether it is."""
        found = self._awaited.get(message.identity)
        if not found:
            return False
        message.number, message.chunk = found.pop(0)
        if not found:
            del self._awaited[message.identity]
        message.again = True
        self._missing.discard(message.number)
        self._collected[message.number] = message
        return True

    def give_up(self, identities: Collection[bytes]) -> None:
        """Give up these awaited messages: their parts are sent without them."""
        for identity in identities:
            for number, chunk in self._awaited.pop(identity, ()):
                self._rows[chunk] -= 1
                self._missing.discard(number)

    def ready(self) -> Iterable[Run | ReadPast]:
        """Messages that may be handed to the core in order, because all earlier ones are there."""
        if self._is_complete:
            return
        order = self._order
        while self._at < len(order) and order[self._at] not in self._missing:
            self._at += 1
        numbers = order[self._told : self._at]
        messages = [self._collected.pop(number) for number in numbers if number in self._collected]
        self._told = self._at
        for message in messages:
            insort(self._held.setdefault(message.key, []), message, key=attrgetter("number"))
        if messages:
            yield Run(self.tp, messages, messages[0].number, messages[-1].number)
        if self._at == len(order):
            self._is_complete = True
            yield ReadPast(self.tp, self._start.seen)

    # Settling

    def commit(self, state: PartitionState) -> tuple[list[Taken], dict[ProgressKey, str]]:
        """The messages that a state settles, and the rows that make this durable."""
        rows = {ProgressKey.of(self.tp): self._row(state)} | self._record(state)
        settled: list[Taken] = []
        for key, messages in list(self._held.items()):
            kept, done = divide(messages, unsettled(state, key))
            settled += done
            self._held[key] = kept
            if not kept:
                del self._held[key]
        for message in settled:
            if message.chunk is not None:
                self._rows[message.chunk] -= 1
        for chunk in [chunk for chunk, left in self._rows.items() if not left]:
            del self._rows[chunk]
            rows |= {members_row(self.tp, chunk): "", rows_row(self.tp, chunk): ""}
        return settled, rows

    def _row(self, state: PartitionState) -> str:
        text = encode(self._identity, self._rules, state)
        return Progress(text, self._identity.incarnation, state.watermark, 0).dump()

    def _record(self, state: PartitionState) -> dict[ProgressKey, str]:
        """The members of new intents."""
        now = {(key, *one) for key in self._held for one in promised(state, key)}
        members: list[Taken] = []
        for key, first, last in now - self._promised:
            start, stop = within(self._held[key], (first, last))
            members += [message for message in self._held[key][start:stop] if message.chunk is None]
        self._promised = now
        if not members:
            return {}
        chunk, self._next_row = self._next_row, self._next_row + 1
        self._rows[chunk] = 0
        packed = bytearray()
        for message in members:
            if message.chunk is None:  # a message of two intents is named once
                message.chunk = chunk
                self._rows[chunk] += 1
                packed += _MEMBER.pack(message.number, message.key, message.identity)
        rows = {members_row(self.tp, chunk): base64.b64encode(packed).decode()}
        if self._kept is not None:
            rows[rows_row(self.tp, chunk)] = orjson.dumps([self._kept(message) for message in members]).decode()
        return rows


def members_row(tp: TopicPartition, chunk: int) -> ProgressKey:
    """The key of a row with members."""
    return ProgressKey.of(tp)._replace(label=f"{MEMBERS}{chunk}")


def rows_row(tp: TopicPartition, chunk: int) -> ProgressKey:
    """The key of a row with the stored messages of those members."""
    return ProgressKey.of(tp)._replace(label=f"{ROWS}{chunk}")


def read_members(text: str) -> list[Member]:
    """The members of a row; none if it is damaged."""
    try:
        return [Member(*found) for found in _MEMBER.iter_unpack(base64.b64decode(text, validate=True))]
    except (binascii.Error, struct.error):
        return []


def read_rows(text: str | None) -> list[str]:
    """The messages of a row; none if it is missing or damaged."""
    try:
        return [str(one) for one in json.loads(text)] if text else []
    except (ValueError, TypeError):
        return []
