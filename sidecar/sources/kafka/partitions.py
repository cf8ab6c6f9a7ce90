"""Assigned partitions: taken, retried, given up. Decides nothing about messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from sidecar.config.source.kafka import KafkaSource as KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.base import SESSION, Listener
from sidecar.sources.kafka.ends import Ends
from sidecar.sources.kafka.errors import forbidden, is_forbidden, text_of
from sidecar.sources.kafka.lane.lane import FastLane
from sidecar.sources.kafka.start.start_offsets import KafkaStartOffsets, KafkaStarts
from sidecar.sources.kafka.topics import TopicIds
from sidecar.sources.troubles import Troubles
from sidecar.state.offset_map import Identity

START_PATIENCE_S = 2.0
"""Longest time that the loop waits for answers about start offsets."""
RETRY_S, RETRY_SHARE = 1.0, 4
"""Retry after 1 s, or after four times the duration of the last attempt: at most a fifth of the time."""
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class WaitingPartitions:
    """Owned partitions whose start offset could not be determined, with the reasons."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._errors: dict[TopicPartition, KafkaError] = {}
        self._retry_at_s = 0.0

    def tried(self, tps: Collection[TopicPartition], failed: dict[TopicPartition, KafkaError], begun_s: float) -> None:
        """Record that the starts of these were requested, and that some failed."""
        self._errors = {tp: error for tp, error in self._errors.items() if tp not in tps} | failed
        self._retry_at_s = time.monotonic() + max(RETRY_S, RETRY_SHARE * (time.monotonic() - begun_s))

    def due(self) -> list[TopicPartition]:
        """All of them, if a retry is due."""
        return sorted(self._errors) if time.monotonic() >= self._retry_at_s else []

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned."""
        self._errors = {tp: error for tp, error in self._errors.items() if tp not in tps}

    def tell(self) -> None:
        """Report the partitions as a problem."""
        if not self._errors:
            self._troubles.clear("start")
            return
        tp, error = min(self._errors.items(), key=lambda item: item[0])
        others = f" and {len(self._errors) - 1} more" if len(self._errors) > 1 else ""
        self._troubles.put("start", f"{tp}{others} cannot be read yet: {text_of(error)}")


class Partitions:
    """Takes partitions and gives them up, on the thread of the consumer.

    Args:
        listener: Is told of partitions that are taken or temporarily given up.
        ends: Requests the ends of logs.
        topic_ids: Knows topics that were recreated or deleted.
        lane: Takes their messages; None if the consumer does.
    """

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
        self._waiting = WaitingPartitions(troubles)
        self._paused: frozenset[TopicPartition] = frozenset()
        self._joined = False

    def give(self, tps: Sequence[TopicPartition]) -> None:
        """Note partitions that the group assigned; `take_given` takes them."""
        self._given = [*(self._given or ()), *tps]

    def take_given(self) -> None:
        """Take the noted partitions."""
        if self._given is not None:
            given, self._given = self._given, None
            self._take(given)

    def _take(self, tps: Sequence[TopicPartition]) -> None:
        """Start reading partitions; a partition whose start is unknown is retried, and delays no other."""
        begun_s = time.monotonic()
        assignments, failed = self._start_offsets.find(tps, START_PATIENCE_S) if tps else KafkaStarts([], {})
        self._waiting.tried(tps, failed, begun_s)
        for tp, error in failed.items():
            self._check_permission(error, tp.topic)
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
            self._joined = True
            self._troubles.clear(SESSION)
            self._listener.assigned(assignments)

    def _check_permission(self, error: KafkaError, topic: str) -> None:
        """Raise the error if it comes at the start; later, an operator may correct it."""
        if is_forbidden(error) and not self._joined:
            raise forbidden(error, topic, self._settings.group_id)

    def drop(self, tps: Collection[TopicPartition]) -> None:
        """Stop reading these partitions."""
        here = self.identities.keys() & tps
        self.pause(self._paused - here)  # the client would keep them paused, and read nothing of the next assignment
        for tp in here:
            del self.identities[tp]
        self._waiting.forget(tps)
        if self._given is not None:
            self._given = [tp for tp in self._given if tp not in tps]
        self._start_offsets.forget(tps)
        self._ends.forget(tps)
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
        """Reload the topic's partitions that were assigned under another id; return them."""
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
        self._check_permission(error, tp.topic)
        if code not in _GONE or self._is_named(tp.topic):
            self._troubles.put(tp.topic or "client", f"{tp.topic} {text_of(error)}".strip())
        return False

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Pause these partitions, and read all others."""
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

    def end(self, tp: TopicPartition) -> int | None:
        """The offset of the partition's next message, if known without a request."""
        bounds = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp[:2]), cached=True)
        asked = self._ends.end(tp)
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
                self._troubles.put(topic, f"the topic {topic} does not exist any more" if self._is_named(topic) else "")
                continue
            self._troubles.clear(topic, "client")
            self.reload_topic(topic, topic_id)

    def _is_named(self, topic: str) -> bool:
        """Whether a deleted topic is a problem: a topic that matches a pattern may be deleted."""
        return topic in self._settings.topics
