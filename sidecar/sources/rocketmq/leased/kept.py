"""Content of the state file for messages of parts that may have been sent, so that each part is the same again.

Either the whole message with its receipt: a broker that gives the rest of a queue only after its first messages are
acknowledged would never complete the part, and with the receipts the next process acknowledges them. Or its placement:
a message that is handed over again has another one, and its row would differ.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from sidecar.core.json_text import loads, typed
from sidecar.core.records import Place
from sidecar.sources.rocketmq.leased.client import HandedMessage, LeasedClient
from sidecar.sources.rocketmq.leased.columns import LeasedMessage, identity_of
from sidecar.sources.rocketmq.leased.exchange import packed, unpacked
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
