"""Messages that were in flight when their process died and went to another member: the first process gets them back.

Only that process knows the names under which they were sent. So it sends them again; the other members, which may not
send messages that it has claimed, wait for it.
"""

from __future__ import annotations

import json
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice

from sidecar.core.json_text import loads, typed
from sidecar.core.records import Place
from sidecar.sources.context import ExchangeTable
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.sources.rocketmq.leased.columns import LeasedMessage, identity_of
from sidecar.sources.rocketmq.leased.commits import SettledIdentities
from sidecar.sources.rocketmq.leased.slot import Slot

EVERY_S = 1.0
MISSED_MAX = 1_000
"""Limit of messages looked for at once: the first ones, because the others wait for them."""
GIVEN_MAX_BYTES = 4 << 20
SETTLED = b""
"""Stands for a message that another member has settled."""


class MissedExchange:
    """A member's side of the exchange."""

    def __init__(self, table: ExchangeTable, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._group = group
        self._clock = clock
        self._next_s = 0.0
        self._wanted: Sequence[bytes] = ()

    @property
    def problem(self) -> str:
        """Why the exchange is unavailable; empty if it is available."""
        return self._table.problem

    def turn(
        self, slots: Sequence[Slot], known: Mapping[bytes, LeasedMessage], settled: SettledIdentities
    ) -> list[HandedMessage]:
        """Missed messages that were found; those settled by another member are no longer missed."""
        last = self._table.exchanged()
        if last is not None:
            self._wanted = last.missed
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            missed = list(islice(chain.from_iterable(slot.awaited.missed for slot in slots), MISSED_MAX))
            self._table.exchange(self._group, missed, self._given(known, settled))
        texts = last.found if last is not None else {}
        for slot in slots:
            slot.give_up([identity for identity, text in texts.items() if text == SETTLED])
        return [message for identity, text in texts.items() for message in _unpacked(identity, text, slots)]

    def _given(self, known: Mapping[bytes, LeasedMessage], settled: SettledIdentities) -> dict[bytes, bytes]:
        given, size = {}, 0
        for identity in self._wanted:
            if identity in known and size < GIVEN_MAX_BYTES:
                given[identity] = packed(known[identity].handed)
                size += len(given[identity])
            elif identity not in known and identity in settled:
                given[identity] = SETTLED
        return given


def packed(handed: HandedMessage) -> bytes:
    """A message for another member, without its handle."""
    _, topic, (_, *place), *fields = handed
    return json.dumps([None, topic, *place, *fields, handed.retry_topic], default=_as_text).encode()


def _as_text(data: bytes) -> dict[str, str]:
    return {"base64": b64encode(data).decode()}


def _as_bytes(text: dict[str, str]) -> bytes:
    return b64decode(text["base64"])


def unpacked(text: bytes) -> HandedMessage:
    """The message that `packed` encoded.

    Raises:
        ValueError: It is something else.
    """
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
