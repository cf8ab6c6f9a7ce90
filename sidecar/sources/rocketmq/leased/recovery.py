"""Messages that were in flight at a crash, until they are back or given up: their sources, and time limits.

If such a message went to another member, only the process that died knows the name under which it was sent. So that
process gets it back and sends it again; the others, which may not send messages that it has claimed, wait for it.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import orjson

from sidecar.core.json_text import loads, typed
from sidecar.core.records import Place, TopicPartition
from sidecar.sources.base import POPPED
from sidecar.sources.context import ExchangeTable
from sidecar.sources.rocketmq.leased.client import HandedMessage, LeasedClient
from sidecar.sources.rocketmq.leased.columns import LeasedMessage, identity_of
from sidecar.sources.rocketmq.leased.commits import SettledIdentities
from sidecar.sources.rocketmq.leased.slot import Slot

EVERY_S = 1.0
MISSED_MAX = 1_000
"""Limit of messages looked for at once: the first ones, because the others wait for them."""
GIVEN_MAX_BYTES = 4 << 20
SETTLED = b""
"""Stands for a message that another member has settled."""


def packed(handed: HandedMessage) -> bytes:
    """A message for another member, without its handle."""
    _, topic, (_, *place), *fields = handed
    return json.dumps([None, topic, *place, *fields, handed.retry_topic], default=_as_text).encode()


def _as_text(data: bytes) -> dict[str, str]:
    return {"base64": b64encode(data).decode()}


def _as_bytes(text: dict[str, str]) -> bytes:
    return b64decode(text["base64"])


def unpacked(text: bytes) -> HandedMessage:
    """The message that `packed` encoded; raises `ValueError` if it is something else."""
    try:
        _, topic, broker, queue, offset, *fields, retry = loads(text, object_hook=_as_bytes)
        handed = _checked(HandedMessage(None, topic, Place(retry or topic, broker, queue, offset), *fields))
        identity_of(handed)
    except (KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(str(error)) from error
    return handed


def _checked(handed: HandedMessage) -> HandedMessage:
    """The message with the types that it promises."""
    _, topic, place, body, born_ms, stored_ms, message_id, own_id, tag, keys, pairs, times = handed
    for text in (topic, place.topic, place.broker, message_id, own_id, *(name for name, _ in pairs)):
        typed(str, text)
    for number in (place.queue, place.offset, times, *(ms for ms in (born_ms, stored_ms) if ms is not None)):
        typed(int, number)
    for data in (body, tag, *keys, *(value for _, value in pairs if value is not None)):
        typed(bytes, data)
    bytes.fromhex(own_id)
    return handed._replace(keys=tuple(keys), properties=tuple((name, value) for name, value in pairs))


def _unpacked(identity: bytes, text: bytes, slots: Sequence[Slot]) -> list[HandedMessage]:
    """The message, if its identity matches and it is still missed."""
    try:
        handed = unpacked(text)
    except ValueError:  # invalid, whatever wrote it
        return []
    is_missed = any(identity in slot.awaited.missed for slot in slots)
    return [handed] if is_missed and identity_of(handed) == identity else []


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
    """The messages that earlier numberings await; other members give theirs through the exchange, if there is one."""

    def __init__(
        self, client: LeasedClient, exchange: ExchangeTable | None, group: str, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._exchange = exchange
        self._group = group
        self._exchange_at_s = 0.0
        self._wanted: Sequence[bytes] = ()
        """Messages that other members miss."""
        self._clock = clock
        self._slots: list[Slot] = []
        """The earlier numberings of all topics."""
        self._placements: dict[bytes, Placement] = {}
        """Placements of awaited messages when first sent, by identity."""
        self._stored: list[HandedMessage] = []
        """Messages from the state file that were not taken yet."""
        self._turned_s = clock()
        self._missed_s = 0.0

    def add_slots(self, slots: Sequence[Slot], kept: Sequence[str]) -> None:
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
        """Missed messages that other members had; those that one has settled are no longer missed."""
        if self._exchange is None:
            return []
        last = self._exchange.exchanged()
        if last is not None:
            self._wanted = last.missed
        now_s = self._clock()
        if now_s >= self._exchange_at_s:
            self._exchange_at_s = now_s + EVERY_S
            missed = list(islice(chain.from_iterable(slot.awaited.missed for slot in self._slots), MISSED_MAX))
            self._exchange.exchange(self._group, missed, self._given(unsettled, settled))
        texts = last.found if last is not None else {}
        for slot in self._slots:
            slot.give_up([identity for identity, text in texts.items() if text == SETTLED])
        return [message for identity, text in texts.items() for message in _unpacked(identity, text, self._slots)]

    def _given(self, known: Mapping[bytes, LeasedMessage], settled: SettledIdentities) -> dict[bytes, bytes]:
        given, size = {}, 0
        for identity in self._wanted:
            if identity in known and size < GIVEN_MAX_BYTES:
                given[identity] = packed(known[identity].handed)
                size += len(given[identity])
            elif identity not in known and identity in settled:
                given[identity] = SETTLED
        return given

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
