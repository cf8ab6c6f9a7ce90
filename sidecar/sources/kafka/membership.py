"""The own member in the group, whose id outlives a crash so that a successor can evict it; and rebalance callbacks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSource as KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import SESSION, Listener, Tell
from sidecar.sources.kafka.group import evict_predecessors, leave_behind_nothing, members_called
from sidecar.sources.kafka.partitions import Partitions
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import State

MEMBER_PATIENCE_S = 1.0


class Membership:
    """The own member of the group.

    Args:
        consumer: The group's consumer, used on its own thread.
        admin: Has its own connections; None if the cluster does not answer requests about members.
        tell: Writes a log event; failures here cost time and lose no message.
    """

    def __init__(
        self,
        consumer: ck.Consumer,
        admin: AdminClient | None,
        settings: KafkaSettings,
        state: State,
        tell: Tell,
    ) -> None:
        self._consumer = consumer
        self._admin = admin
        self._settings = settings
        self._state = state
        self._tell = tell

    def evict_predecessors(self, client_id: str) -> None:
        """Remove the member in the state, or else those with this client id, unless that is empty."""
        group, left, admin = self._settings.group_id, self._state.member(), self._admin
        member = left[1] if left is not None and left[0] == group else ""

        def find() -> Sequence[str]:
            return members_called(admin, group, client_id) if admin is not None and client_id else ()

        evict_predecessors(self._settings, member, find, self._tell)

    def remember(self) -> None:
        """Save the member id before the join ends: if this process is killed from now on, its successor evicts it."""
        deadline = time.monotonic() + MEMBER_PATIENCE_S
        while not (member := self._consumer.memberid()) and time.monotonic() < deadline:
            time.sleep(0.002)
        if member:
            self._save(member)

    def save(self) -> None:
        """Save the member id."""
        self._save(self._consumer.memberid() or "")

    def _save(self, member: str) -> None:
        try:
            self._state.save_member(self._settings.group_id, member)
        except StateError as error:  # a full disk delays the next start by 9 s, and loses no message
            self._tell("member.not_saved", "warning", {"reason": str(error)})

    def leave(self) -> None:
        """Disconnect; assigned partitions are revoked first."""
        member = self._consumer.memberid() or "" if self._admin is not None else ""
        self._consumer.close()
        if self._admin is not None:
            leave_behind_nothing(self._settings, self._admin, member, self._tell)


class KafkaRebalances:
    """Rebalance callbacks of the client.

    Args:
        listener: Is told of revoked and lost partitions.
        troubles: Are told if the session has ended.
    """

    def __init__(self, partitions: Partitions, membership: Membership, listener: Listener, troubles: Troubles) -> None:
        self._partitions = partitions
        self._membership = membership
        self._listener = listener
        self._troubles = troubles
        self._lost: set[str] = set()
        """Topics of the partitions that were lost last."""

    def assigned(self, consumer: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        """Take these partitions, which are assigned."""
        # Start offsets are requested after consume(): after a list_topics() here, the next callback aborts the process.
        self._partitions.give([TopicPartition(tp.topic, tp.partition) for tp in partitions])
        consumer.incremental_assign([])  # otherwise the client assigns all by itself
        self._membership.save()

    def revoked(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        """Give up these partitions, which are revoked when this returns."""
        tps = {TopicPartition(tp.topic, tp.partition) for tp in partitions}
        self._listener.revoking(tps & self._partitions.identities.keys())
        self._partitions.drop(tps)

    def lost(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        """Give up these partitions, which already belong to another member."""
        tps = {TopicPartition(tp.topic, tp.partition) for tp in partitions}
        self._lost = {tp.topic for tp in tps}
        self._troubles.put(SESSION, "the session with the group ended, and no partition was given to us since")
        self._listener.lost(tps & self._partitions.identities.keys())
        self._partitions.drop(tps)

    def problems(self) -> Mapping[str, str]:
        """Present problems with the broker: a key, and a sentence for an operator."""
        now = self._troubles.now
        if SESSION not in now or not self._lost or self._lost - now.keys():
            return now
        gone = f"the topic {min(self._lost)} does not exist any more: make it again"  # all partitions were lost with it
        return {**now, SESSION: f"{gone} (it is read from its start), or take it out of source.kafka.topics"}
