"""What the state file keeps of messages of parts that may have been sent, so that each part is the same again.

Either the whole message with its receipt: a broker that gives the rest of a queue only after its first messages are
acknowledged would never complete the part, and with the receipts the next process acknowledges them. Or its placement:
a message that is handed over again has another one, and its row would differ.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Self

import orjson

from sidecar.sources.rocketmq.leased.client import Handed, LeasedClient
from sidecar.sources.rocketmq.leased.columns import Taken, identity_of
from sidecar.sources.rocketmq.leased.exchange import packed, unpacked
from sidecar.sources.rocketmq.leased.slot import Slot


class Placement(NamedTuple):
    """The fields of `Handed` that change when a message is handed over again."""

    broker: str
    queue: int
    offset: int
    offset_message_id: str
    reconsume_times: int
    retry_topic: str

    @classmethod
    def of(cls, one: Handed) -> Self:
        """Those of a message."""
        return cls._make(_PLACEMENT(one))

    def restore(self, one: Handed) -> Handed:
        """The message as it was when these were its fields."""
        properties = [both for both in one.properties if both[0] != "RETRY_TOPIC"]
        if self.retry_topic:
            properties.append(("RETRY_TOPIC", one.topic.encode()))
        return one._replace(properties=properties, **self._asdict())


_PLACEMENT = attrgetter(*Placement._fields)


def keep_placement(message: Taken) -> str:
    """A message's identity and placement."""
    return orjson.dumps([b64encode(message.identity).decode(), *_PLACEMENT(message.handed)]).decode()


def keep(client: LeasedClient, message: Taken) -> str:
    """A message with its newest receipt."""
    receipts = [client.receipt(handle) for handle in message.handles[-1:]]
    return json.dumps([*receipts, packed(message.handed).decode()])


def recover(
    client: LeasedClient, kept: Sequence[str], earlier: Sequence[Slot]
) -> tuple[list[Handed], dict[bytes, Placement]]:
    """What is kept of the awaited messages: whole, with handles of this process, or their placement, by identity.

    A damaged one is left out: its message comes from the broker.
    """
    missed = set().union(*(slot.awaited.missed for slot in earlier))
    whole, placements = [], {}
    for text in kept:
        try:
            fields = json.loads(text)
            if len(fields) == 1 + len(Placement._fields):
                identity = b64decode(fields[0])
                if identity in missed:
                    placements[identity] = Placement(*fields[1:])
                continue
            *receipts, message = fields
            one = unpacked(message.encode())
        except (ValueError, TypeError, AttributeError):
            continue
        if identity_of(one) in missed:
            handle = client.adopt(one.topic, one.message_id, receipts[0]) if receipts and receipts[0] else None
            whole.append(one._replace(handle=handle))
    return whole, placements
