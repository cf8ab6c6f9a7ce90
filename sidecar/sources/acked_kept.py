"""Messages of parts that may have been sent, as the state file keeps them: a part is whole without the broker.

A broker that hands over the rest of a queue only after its first messages are acknowledged would never hand over a part
again as a whole. With the receipts that were had, the messages are acknowledged by whoever goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sidecar.sources.acked_client import AckedClient, Handed
from sidecar.sources.acked_columns import Taken, identity_of
from sidecar.sources.acked_exchange import packed, unpacked
from sidecar.sources.acked_slot import Slot


def keep(client: AckedClient, message: Taken) -> str:
    """A message with its newest receipt."""
    receipts = [client.receipt(handle) for handle in message.handles[-1:]]
    return json.dumps([*receipts, packed(message.handed).decode()])


def adopt(client: AckedClient, kept: Sequence[str], earlier: Sequence[Slot]) -> list[Handed]:
    """Those that are awaited, with handles of this process; what is damaged is left out, and comes from the broker."""
    missed = set().union(*(slot.missed for slot in earlier))
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
