"""Partitions with copies of messages of others: they wait until it is known which of those were sent."""

from __future__ import annotations

from collections.abc import Collection

from sidecar.core.intake.identities import Identities
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.records import TopicPartition


class Origins:
    """Determines which partitions wait for others.

    Args:
        identities: Know which partitions have copies.
        any_copies: Whether any partition may have copies.
    """

    def __init__(self, owned: Ownerships, identities: Identities, *, any_copies: bool) -> None:
        self._owned = owned
        self._identities = identities
        self._any_copies = any_copies

    def copies_of(self, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        """Partitions with copies of messages of these: they wait until the ids of these are known."""
        if not self._any_copies or not tps:
            return set()
        brokers = {tp.broker for tp in tps}
        owned = [tp for tp in self._owned if tp.broker in brokers and not tp.delayed]
        return {tp for tp in owned if self._identities.has_copies(tp)}

    def awaited(self) -> set[TopicPartition]:
        """Partitions with copies, while others of their broker are replayed: until then it is unknown what was sent."""
        if not self._any_copies:
            return set()
        again = [
            tp
            for tp, partition in self._owned.items()
            if partition.reach.replaying and not tp.delayed and not self._identities.has_copies(tp)
        ]
        return self.copies_of(again)
