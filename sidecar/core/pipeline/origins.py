"""Partitions that hold copies of messages of others: they wait until it is known what was sent of those."""

from __future__ import annotations

from collections.abc import Collection

from sidecar.core.intake.identities import Identities
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.records import TopicPartition


class Origins:
    """Tells what waits for what.

    Args:
        owned: The partitions that are ours.
        identities: Know which hold copies.
        any_copies: Whether any may.
    """

    def __init__(self, owned: Ownerships, identities: Identities, *, any_copies: bool) -> None:
        self._owned = owned
        self._identities = identities
        self._any_copies = any_copies

    def copies_of(self, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        """Partitions of copies beside these: they wait until the ids of these are known."""
        if not self._any_copies or not tps:
            return set()
        brokers = {tp.broker for tp in tps}
        return {tp for tp in self._owned if tp.broker in brokers and self._identities.has_copies(tp)}

    def awaited(self) -> set[TopicPartition]:
        """Partitions of copies, while others of their broker are read again: until then it is open what was sent."""
        if not self._any_copies:
            return set()
        again = [
            tp
            for tp, partition in self._owned.items()
            if partition.reach.replaying and not self._identities.has_copies(tp)
        ]
        return self.copies_of(again)
