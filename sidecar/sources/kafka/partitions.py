"""Membership in the group, and the assigned partitions: taken, retried, given up. Decides nothing about messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import SESSION, Listener
from sidecar.sources.kafka.group import evict_predecessors, leave_behind_nothing, members_called
from sidecar.sources.kafka.reach import forbidden, is_forbidden, text_of
from sidecar.sources.kafka.start import KafkaStartOffsets
from sidecar.sources.kafka.topics import TopicIds
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import State
from sidecar.state.offset_map import Identity

if TYPE_CHECKING:
    from sidecar.sources.kafka.lane import FastLane

ASK_EVERY_S = 5.0
TIMEOUT_S = 3.0
"""Longest time for which a leader that is down delays the answers about all others."""
SILENT_S = 10.0
"""Time without any answer after which it is a problem."""


class Ends:
    """The ends of the assigned partitions.

    Args:
        admin: The client; its answers arrive on its own thread.
        isolation_level: `isolation.level` of the consumer: messages that it cannot read yet are not lag.
        clock: Monotonic seconds.
    """

    def __init__(self, admin: AdminClient, isolation_level: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        committed, all_ = ck.IsolationLevel.READ_COMMITTED, ck.IsolationLevel.READ_UNCOMMITTED
        self._level = committed if isolation_level == "read_committed" else all_
        self._clock = clock
        self._asked: dict[TopicPartition, Future[ListOffsetsResultInfo]] = {}
        self._ask_at_s = 0.0
        self._ends: dict[TopicPartition, int] = {}
        self._silent_since_s: float | None = None

    def watch(self, tps: Collection[TopicPartition]) -> None:
        """Request the ends of these partitions when due; process answers."""
        now_s = self._clock()
        if self._asked and all(future.done() for future in self._asked.values()):
            self._take(now_s)
        if not tps:
            self._silent_since_s = None
        elif now_s >= self._ask_at_s and not self._asked:
            self._ask_at_s = now_s + ASK_EVERY_S
            self._ask(tps)

    def ask_soon(self) -> None:
        """Request the ends at once, because partitions were added."""
        self._ask_at_s = 0.0

    def _ask(self, tps: Collection[TopicPartition]) -> None:
        asked = {ck.TopicPartition(*tp[:2]): OffsetSpec.latest() for tp in tps}  # type: ignore[no-untyped-call]
        options: dict[str, Any] = {"isolation_level": self._level, "request_timeout": TIMEOUT_S}
        futures = self._admin.list_offsets(asked, **options)
        self._asked = {TopicPartition(tp.topic, tp.partition): future for tp, future in futures.items()}

    def _take(self, now_s: float) -> None:
        asked, self._asked = self._asked, {}
        ends = {tp: future.result().offset for tp, future in asked.items() if future.exception() is None}
        ends = {tp: end for tp, end in ends.items() if end >= 0}
        self._ends |= ends
        if ends:
            self._silent_since_s = None
        elif self._silent_since_s is None:
            self._silent_since_s = now_s - TIMEOUT_S

    def end_of(self, tp: TopicPartition) -> int | None:
        """The offset of the partition's next message, a few seconds ago; None while unknown."""
        return self._ends.get(tp)

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that were revoked, or whose log was replaced."""
        for tp in tps:
            self._ends.pop(tp, None)
            self._asked.pop(tp, None)

    @property
    def silent(self) -> bool:
        """Whether no broker has answered for `SILENT_S`."""
        return self._silent_since_s is not None and self._clock() - self._silent_since_s >= SILENT_S


START_PATIENCE_S = 2.0
"""Longest time that the loop waits for answers about start offsets."""
RETRY_S, RETRY_SHARE = 1.0, 4
"""Retry after 1 s, or after four times the duration of the last attempt: at most a fifth of the time."""
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class WaitingPartitions:
    """Owned partitions whose start offset could not be determined, with the reasons."""

    def __init__(self, group_id: str, troubles: Troubles) -> None:
        self._group_id = group_id
        self._troubles = troubles
        self.is_joined = False
        """Whether the group has assigned partitions: later, an operator may correct a missing permission."""
        self._errors: dict[TopicPartition, KafkaError] = {}
        self._retry_at_s = 0.0

    def tried(self, tps: Collection[TopicPartition], failed: dict[TopicPartition, KafkaError], begun_s: float) -> None:
        """Record that the starts of these were requested, and that some failed."""
        self._errors = {tp: error for tp, error in self._errors.items() if tp not in tps} | failed
        self._retry_at_s = time.monotonic() + max(RETRY_S, RETRY_SHARE * (time.monotonic() - begun_s))

    def check_permission(self, error: KafkaError, topic: str) -> None:
        """Raise the error for a permission that is missing at the start."""
        if is_forbidden(error) and not self.is_joined:
            raise forbidden(error, topic, self._group_id)

    def due(self) -> list[TopicPartition]:
        return sorted(self._errors) if time.monotonic() >= self._retry_at_s else []

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        self._errors = {tp: error for tp, error in self._errors.items() if tp not in tps}

    def tell(self) -> None:
        if not self._errors:
            self._troubles.clear("start")
            return
        tp, error = min(self._errors.items(), key=lambda item: item[0])
        others = f" and {len(self._errors) - 1} more" if len(self._errors) > 1 else ""
        self._troubles.put("start", f"{tp}{others} cannot be read yet: {text_of(error)}")


class Partitions:
    """Takes partitions and gives them up, on the thread of the consumer; their messages go to the lane, if any."""

    def __init__(
        self,
        consumer: ck.Consumer,
        settings: KafkaSettings,
        listener: Listener,
        troubles: Troubles,
        starts: KafkaStartOffsets,
        ends: Ends,
        topic_ids: TopicIds,
        lane: FastLane | None = None,
    ) -> None:
        self._lane = lane
        self.identities: dict[TopicPartition, Identity] = {}
        """Identities of the partitions that are read or paused."""
        self._consumer = consumer
        self._settings = settings
        self._listener = listener
        self._troubles = troubles
        self._start_offsets = starts
        self._ends = ends
        self._topic_ids = topic_ids
        self._given: list[TopicPartition] | None = None
        """Partitions that the group assigned in the present `consume()`."""
        self._waiting = WaitingPartitions(settings.group_id, troubles)
        self._paused: frozenset[TopicPartition] = frozenset()

    def give(self, tps: Sequence[TopicPartition]) -> None:
        """Note partitions that the group assigned; `take_given` takes them."""
        self._given = [*(self._given or ()), *tps]

    def take_given(self) -> None:
        if self._given is not None:
            given, self._given = self._given, None
            self._take(given)

    def _take(self, tps: Sequence[TopicPartition]) -> None:
        """Start reading partitions; a partition whose start is unknown is retried, and delays no other."""
        begun_s = time.monotonic()
        assignments, failed = self._start_offsets.find(tps, START_PATIENCE_S) if tps else ([], {})
        self._waiting.tried(tps, failed, begun_s)
        for tp, error in failed.items():
            self._waiting.check_permission(error, tp.topic)
        self._waiting.tell()
        self.identities.update({assignment.tp: self._start_offsets.identity(assignment) for assignment in assignments})
        self._paused -= {assignment.tp for assignment in assignments}
        here = [assignment.tp for assignment in assignments]
        # Before, so that nothing goes to the consumer's queue; after, as the end of an earlier ownership may have
        # undone it until then.
        if self._lane is not None:
            self._lane.forward(here)
        self._consumer.incremental_assign(
            [ck.TopicPartition(*assignment.tp[:2], assignment.read_from) for assignment in assignments]
        )
        if self._lane is not None:
            self._lane.forward(here)
        self._ends.ask_soon()
        if assignments or not tps:
            self._waiting.is_joined = True
            self._troubles.clear(SESSION)
            self._listener.assigned(assignments)

    def drop(self, tps: Collection[TopicPartition]) -> None:
        here = self.identities.keys() & tps
        self.pause(self._paused - here)  # the client would keep them paused, and read nothing of the next assignment
        for tp in here:
            del self.identities[tp]
        self._waiting.forget_partitions(tps)
        if self._given is not None:
            self._given = [tp for tp in self._given if tp not in tps]
        self._start_offsets.forget_partitions(tps)
        self._ends.forget_partitions(tps)
        for topic in {tp.topic for tp in tps} - {tp.topic for tp in self.identities}:
            if not self._is_named(topic):
                self._troubles.clear(topic)
        self._waiting.tell()
        # Not left to the client: it would include waiting partitions, fail, and continue reading another member's
        # partitions.
        self._consumer.incremental_unassign([ck.TopicPartition(*tp[:2]) for tp in here])

    def reload(self, tps: Collection[TopicPartition]) -> None:
        """Give up those of them that are read, and take them again from their committed state."""
        here = self.identities.keys() & tps
        for tp in here:
            self._listener.reloading(tp)
        if here:
            self.drop(here)
            self._take(sorted(here))

    def reload_topic(self, topic: str, topic_id: str) -> Collection[TopicPartition]:
        tps = {tp for tp, identity in self.identities.items() if tp.topic == topic and identity.topic_id != topic_id}
        self.reload(tps)
        return tps

    def failed(self, tp: TopicPartition, error: KafkaError) -> bool:
        """Handle an error of a read; return whether the partition was taken again."""
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE) and tp in self.identities:
            self._listener.event("offset.out_of_range", "warning", tp.fields())
            self.reload([tp])
            return True
        self._waiting.check_permission(error, tp.topic)
        if code not in _GONE or self._is_named(tp.topic):
            self._troubles.put(tp.topic or "client", f"{tp.topic} {text_of(error)}".strip())
        return False

    def pause(self, tps: Collection[TopicPartition]) -> None:
        wanted = frozenset(tps) & self.identities.keys()
        for change, these in (
            (self._consumer.pause, wanted - self._paused),
            (self._consumer.resume, self._paused - wanted),
        ):
            if these:
                change([ck.TopicPartition(*tp[:2]) for tp in these])
        self._fetch_at_once(self._paused - wanted)
        self._paused = wanted

    def _fetch_at_once(self, resumed: Collection[TopicPartition]) -> None:
        """Wake the client's thread that fetches: a resumed partition waits for its next turn, up to a second."""
        for found in self._consumer.position([ck.TopicPartition(*tp[:2]) for tp in resumed]):
            if found.offset >= 0:
                with contextlib.suppress(KafkaException):  # it was not being read yet
                    self._consumer.seek(found)

    def end_of(self, tp: TopicPartition) -> int | None:
        bounds = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp[:2]), cached=True)
        asked = self._ends.end_of(tp)
        end = max(bounds[1] if bounds else -1, -1 if asked is None else asked)  # cached: constant while paused
        return end if end >= 0 else None

    def tend(self) -> None:
        """Take partitions whose retry is due; update ends of logs and ids of topics."""
        if waited := self._waiting.due():
            self._take(waited)
        self._ends.watch(self.identities.keys())
        self._troubles.put("ends", "no broker has told the ends of our logs for 10 s" if self._ends.silent else "")
        for topic, topic_id in self._topic_ids.watch({tp.topic for tp in self.identities}):
            if topic_id is None:
                self._troubles.put(topic, f"the topic {topic} no longer exists" if self._is_named(topic) else "")
                continue
            self._troubles.clear(topic, "client")
            self.reload_topic(topic, topic_id)

    def _is_named(self, topic: str) -> bool:
        """Whether a deleted topic is a problem: a topic that matches a pattern may be deleted."""
        return topic in self._settings.topics


MEMBER_PATIENCE_S = 1.0


class Membership:
    """The own member of the group, and the client's rebalance callbacks; without an admin, nobody asks for members."""

    def __init__(
        self,
        consumer: ck.Consumer,
        admin: AdminClient | None,
        settings: KafkaSettings,
        state: State,
        partitions: Partitions,
        listener: Listener,
        troubles: Troubles,
    ) -> None:
        self._consumer = consumer
        self._admin = admin
        self._settings = settings
        self._state = state
        self._partitions = partitions
        self._listener = listener
        self._troubles = troubles
        self._lost: set[str] = set()
        """Topics of the partitions that were lost last."""

    def evict_predecessors(self, client_id: str) -> None:
        """Remove the member in the state, or else those with this client id, unless that is empty."""
        group, left, admin = self._settings.group_id, self._state.member(), self._admin
        member = left[1] if left is not None and left[0] == group else ""

        def find() -> Sequence[str]:
            return members_called(admin, group, client_id) if admin is not None and client_id else ()

        evict_predecessors(self._settings, member, find, self._listener.event)

    def remember(self) -> None:
        """Save the member id before the join ends: if this process is killed from now on, its successor evicts it."""
        deadline = time.monotonic() + MEMBER_PATIENCE_S
        while not (member := self._consumer.memberid()) and time.monotonic() < deadline:
            time.sleep(0.002)
        if member:
            self._save(member)

    def _save(self, member: str) -> None:
        try:
            self._state.save_member((self._settings.group_id, member))
        except StateError as error:  # a full disk delays the next start by 9 s, and loses no message
            self._listener.event("member.not_saved", "warning", {"reason": str(error)})

    def leave(self) -> None:
        """Disconnect; assigned partitions are revoked first."""
        member = self._consumer.memberid() or "" if self._admin is not None else ""
        self._consumer.close()
        if self._admin is not None:
            leave_behind_nothing(self._settings, self._admin, member, self._listener.event)

    def assigned(self, consumer: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        # Start offsets are requested after consume(): after a list_topics() here, the next callback aborts the process.
        self._partitions.give([TopicPartition(tp.topic, tp.partition) for tp in partitions])
        consumer.incremental_assign([])  # otherwise the client assigns all by itself
        self._save(self._consumer.memberid() or "")

    def revoked(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        tps = {TopicPartition(tp.topic, tp.partition) for tp in partitions}
        self._listener.revoking(tps & self._partitions.identities.keys())
        self._partitions.drop(tps)

    def lost(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        tps = {TopicPartition(tp.topic, tp.partition) for tp in partitions}
        self._lost = {tp.topic for tp in tps}
        self._troubles.put(SESSION, "the session with the group ended, and no partition was given to us since")
        self._listener.lost(tps & self._partitions.identities.keys())
        self._partitions.drop(tps)

    def problems(self) -> Mapping[str, str]:
        now = self._troubles.now
        if SESSION not in now or not self._lost or self._lost - now.keys():
            return now
        gone = f"the topic {min(self._lost)} no longer exists: create it again"  # all partitions were lost with it
        return {**now, SESSION: f"{gone} (it is read from its start), or take it out of source.kafka.topics"}
