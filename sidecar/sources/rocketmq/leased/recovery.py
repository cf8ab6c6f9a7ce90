"""Messages that were in flight at a crash, until they are back or given up: their sources, and time limits."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import orjson

from sidecar.core.json_text import loads, typed
from sidecar.core.records import Place, TopicPartition
from sidecar.sources.base import POPPED
from sidecar.sources.rocketmq.leased.client import HandedMessage, LeasedClient
from sidecar.sources.rocketmq.leased.columns import LeasedMessage, identity_of
from sidecar.sources.rocketmq.leased.commits import SettledIdentities
from sidecar.sources.rocketmq.leased.exchange import MissedExchange, packed, unpacked
from sidecar.sources.rocketmq.leased.slot import Slot


class Placement(NamedTuple):
    """The fields of a message that change when it is handed over again, as stored in the state file."""

    broker: str
    queue: int
    offset: int
    offset_message_id: str
    reconsume_times: int
    retry_topic: str

    def restore(self, handed: HandedMessage) -> HandedMessage:
        """The message as it was when these were its fields."""
        properties = [both for both in handed.properties if both[0] != "RETRY_TOPIC"]
        if self.retry_topic:
            properties.append(("RETRY_TOPIC", handed.topic.encode()))
        return handed._replace(
            place=Place(self.retry_topic or handed.topic, self.broker, self.queue, self.offset),
            offset_message_id=self.offset_message_id,
            properties=properties,
            reconsume_times=self.reconsume_times,
        )


def keep_placement(message: LeasedMessage) -> str:
    """A message's identity and placement."""
    handed = message.handed
    _, broker, queue, offset = handed.place
    placement = broker, queue, offset, handed.offset_message_id, handed.reconsume_times, handed.retry_topic
    return orjson.dumps([b64encode(message.identity).decode(), *placement]).decode()


def keep_message(client: LeasedClient, message: LeasedMessage) -> str:
    """A message with its newest receipt."""
    receipts = [client.receipt(handle) for handle in message.handles[-1:]]
    return json.dumps([*receipts, packed(message.handed).decode()])


def recover(
    client: LeasedClient, kept: Sequence[str], earlier: Sequence[Slot]
) -> tuple[list[HandedMessage], dict[bytes, Placement]]:
    """The kept awaited messages: complete, with handles of this process, or only their placement, by identity.

    A damaged entry is left out: its message comes from the broker.
    """
    missed = set().union(*(slot.awaited.missed for slot in earlier))
    whole, placements = [], {}
    for text in kept:
        try:
            fields = loads(text)
            if len(fields) == 1 + len(Placement._fields):
                identity = b64decode(fields[0])
                if identity in missed:
                    kinds = str, int, int, str, int, str
                    placement = Placement(*map(typed, kinds, fields[1:]))
                    bytes.fromhex(placement.offset_message_id)
                    placements[identity] = placement
                continue
            *receipts, message = fields
            receipt = typed(str, receipts[0]) if receipts else ""
            handed = unpacked(message.encode())
        except (ValueError, TypeError, AttributeError):
            continue
        if identity_of(handed) in missed:
            handle = client.adopt(handed.topic, handed.message_id, receipt) if receipt else None
            whole.append(handed._replace(handle=handle))
    return whole, placements


GONE_AFTER_S = 120.0
"""Messages in flight at a crash are given up if they do not return for this time although the broker answers."""


class LeasedRecovery:
    """The messages that earlier numberings await."""

    def __init__(self, client: LeasedClient, exchange: MissedExchange | None, clock: Callable[[], float]) -> None:
        self._client = client
        self._exchange = exchange
        self._clock = clock
        self._slots: list[Slot] = []
        """The earlier numberings of all topics."""
        self._placements: dict[bytes, Placement] = {}
        """Placements of awaited messages when first sent, by identity."""
        self._stored: list[HandedMessage] = []
        """Messages from the state file that were not taken yet."""
        self._turned_s = clock()
        self._missed_s = 0.0

    def add(self, slots: Sequence[Slot], kept: Sequence[str]) -> None:
        """Recover these numberings."""
        stored, placements = recover(self._client, kept, slots)
        self._slots += slots
        self._stored += stored
        self._placements |= placements

    @property
    def awaits(self) -> int:
        return sum(slot.awaited.count for slot in self._slots)

    def replays(self) -> bool:
        """Whether messages that can be sent without the broker are not settled yet."""
        return (bool(self._stored) or not self.awaits) and any(not slot.is_done for slot in self._slots)

    def stored(self) -> list[HandedMessage]:
        """Messages from the state file, once."""
        stored, self._stored = self._stored, []
        return stored

    def exchanged(self, unsettled: Mapping[bytes, LeasedMessage], settled: SettledIdentities) -> list[HandedMessage]:
        return self._exchange.turn(self._slots, unsettled, settled) if self._exchange is not None else []

    def collect(self, slots: Sequence[Slot], message: LeasedMessage) -> bool:
        """Take a message as it was first sent if one of these numberings awaits it; return whether one does."""
        for slot in slots:
            if slot.awaited.collect(message):
                if placement := self._placements.pop(message.identity, None):
                    message.handed = placement.restore(message.handed)
                self._missed_s = 0.0
                return True
        return False

    def overdue(self, paused: Collection[TopicPartition], *, is_full: bool, are_new_paused: bool) -> list[Slot]:
        """The numberings whose missing messages are to be given up: they could have come for a long time, and none did.

        Args:
            is_full: Whether there is no room for messages.
            are_new_paused: Whether the core does not read the new messages of a topic.
        """
        now_s = self._clock()
        elapsed_s, self._turned_s = now_s - self._turned_s, now_s
        waiting = [slot for slot in self._slots if slot.awaited.count]
        # Full, and new messages are paused but recovery is not: only awaited messages can make room.
        is_stuck = are_new_paused and any(slot.tp not in paused for slot in waiting)
        problems = self._client.problems().keys() - {POPPED}
        is_cut_off = problems or (self._exchange is not None and self._exchange.problem)
        if not waiting or (is_full and not is_stuck) or is_cut_off:
            return []
        self._missed_s += min(elapsed_s, 1.0)
        return waiting if self._missed_s >= GONE_AFTER_S else []
