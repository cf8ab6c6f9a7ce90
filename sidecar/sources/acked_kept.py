"""Messages of parts that may have been sent, as the state file keeps them: what a part needs to be the same again.

Whole, where a broker hands over the rest of a queue only after its first messages are acknowledged, as the part would
never be whole again; with the receipts that were had they are acknowledged by whoever goes on. Elsewhere their place:
handed over again a message stands elsewhere, and its row would be another.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

from sidecar.sources.acked_client import AckedClient, Handed
from sidecar.sources.acked_columns import Taken, identity_of
from sidecar.sources.acked_exchange import packed, unpacked
from sidecar.sources.acked_slot import Slot


class Place(NamedTuple):
    """What of a message is another when it is handed over again; fields as of `Handed`."""

    broker: str
    queue: int
    offset: int
    offset_message_id: str
    reconsume_times: int
    retry_topic: str

    def of(self, one: Handed) -> Handed:
        """The message as it was."""
        properties = [both for both in one.properties if both[0] != "RETRY_TOPIC"]
        if self.retry_topic:
            properties.append(("RETRY_TOPIC", one.topic.encode()))
        return one._replace(properties=properties, **self._asdict())


def keep_place(message: Taken) -> str:
    """Its identity and place."""
    one = message.handed
    place = one.broker, one.queue, one.offset, one.offset_message_id, one.reconsume_times, one.retry_topic
    return json.dumps([b64encode(message.identity).decode(), *place])


def places(kept: Sequence[str], earlier: Sequence[Slot]) -> dict[bytes, Place]:
    """Of those that are awaited, by identity; what is damaged is left out."""
    missed = _missed(earlier)
    found = {}
    for text in kept:
        try:
            name, *fields = json.loads(text)
            identity, place = b64decode(name), Place(*fields)
        except (ValueError, TypeError):
            continue
        if identity in missed:
            found[identity] = place
    return found


def keep(client: AckedClient, message: Taken) -> str:
    """A message with its newest receipt."""
    receipts = [client.receipt(handle) for handle in message.handles[-1:]]
    return json.dumps([*receipts, packed(message.handed).decode()])


def adopt(client: AckedClient, kept: Sequence[str], earlier: Sequence[Slot]) -> list[Handed]:
    """Those that are awaited, with handles of this process; what is damaged is left out, and comes from the broker."""
    missed = _missed(earlier)
    found = []
    for text in kept:
        try:
            *receipts, message = json.loads(text)
            one = unpacked(message.encode())
        except (ValueError, TypeError, AttributeError):
            continue
        if identity_of(one) in missed:
            handle = client.adopt(one.topic, one.message_id, receipts[0]) if receipts and receipts[0] else None
            found.append(one._replace(handle=handle))
    return found


def _missed(earlier: Sequence[Slot]) -> set[bytes]:
    return set().union(*(slot.missed for slot in earlier))
