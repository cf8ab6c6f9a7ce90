"""The cluster of `client: native` on Sidecar's own connections: topics, brokers, and where a group starts.

librocketmq does not report a missing topic, decides itself where a new group starts, and continues at its offset in a
topic that was recreated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.base import POPPED
from sidecar.sources.rocketmq.progress import QueueMark, with_newest
from sidecar.sources.rocketmq.remoting.cluster import BROKER_HINT, RocketMqCluster, unless_refused
from sidecar.sources.rocketmq.remoting.popped import Popped
from sidecar.sources.rocketmq.remoting.routes import Brokers
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError
from sidecar.sources.rocketmq.wire.messages import as_stored
from sidecar.sources.rocketmq.wire.network import Ask, Link, NoAnswerError, RefusedError, refusal
from sidecar.sources.rocketmq.wire.requests import Asks, ask_start, commit_waves, read_offset

READ_S, IDLE_S = 2.0, 10.0
"""Interval of requests for a mark while messages of its queue are handed over, and otherwise."""
ANSWER_S = 5.0


@dataclass(slots=True)
class _MarkedQueue:
    marks: tuple[QueueMark, ...] = ()
    """Messages that were in the last answer, or were the queue's first; the newest first."""
    newest: QueueMark | None = None
    """The newest message handed over since."""
    asked: bool = False
    asked_s: float = 0.0


class Marks:
    """Marks of messages that were handed over, by queue."""

    def __init__(self, asks: Asks, link_of: Callable[[str], Link | None]) -> None:
        self._asks = asks
        self._link_of = link_of
        self._queues: dict[TopicPartition, _MarkedQueue] = {}
        self.replaced: set[TopicPartition] = set()
        """Queues that were replaced, until `forget_partitions`."""

    def read(self, tp: TopicPartition, mark: QueueMark) -> None:
        """Note a message that was handed over."""
        queue = self._queues.get(tp) or self._queues.setdefault(tp, _MarkedQueue())
        if not queue.marks:
            queue.marks = (mark,)
        if queue.newest is None or mark.offset > queue.newest.offset:
            queue.newest = mark

    def ask(self, now_s: float) -> None:
        for tp, queue in self._queues.items():
            due_s = queue.asked_s + (READ_S if queue.newest else IDLE_S)
            link = self._link_of(tp.broker) if now_s >= due_s and not queue.asked else None
            if link is not None and link.is_up:
                queue.asked, queue.asked_s = True, now_s
                link.ask(
                    self._asks.one(tp, queue.marks[0].offset),
                    partial(self._answered, tp, queue, queue.marks[0], queue.newest),
                    ANSWER_S,
                )

    def _answered(
        self, tp: TopicPartition, queue: _MarkedQueue, mark: QueueMark, newest: QueueMark | None, frame: Frame | None
    ) -> None:
        queue.asked = False
        stands = None if frame is None else mark.stands(frame)
        if self._queues.get(tp) is not queue or stands is None:
            return
        if not stands:
            self.replaced.add(tp)
        elif newest is not None:
            queue.marks = with_newest(queue.marks, newest)
            queue.newest = None if queue.newest == newest else queue.newest

    def by_queue(self) -> dict[TopicPartition, tuple[QueueMark, ...]]:
        return {tp: queue.marks for tp, queue in self._queues.items()}

    def forget_partitions(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._queues.pop(tp, None)
        self.replaced.clear()


def mark_at(offset: int, frame: Frame) -> QueueMark | None:
    """The mark of the message at this offset in an answer."""
    if frame.code != Code.SUCCESS:
        return None
    messages = [message for message in as_stored(frame.body) if message.offset <= offset]
    return QueueMark(offset, messages[-1].position, messages[-1].stored_ms) if messages else None


class Rewinds:
    """Finds the start of replaced queues, and commits it until the brokers keep it."""

    def __init__(self, asks: Asks, brokers: Brokers, marks: Marks) -> None:
        self._asks = asks
        self._brokers = brokers
        self._marks = marks
        self._unconfirmed: dict[TopicPartition, int] = {}
        """Commits that brokers have not confirmed yet."""

    def commit(self) -> dict[TopicPartition, tuple[int, bool]]:
        """Commit the starts of replaced queues; those whose broker does not answer are left out, and found again.

        Returns:
            The starts, and whether older messages that were read are still there: then the queue is not new.
        """
        last_read = self._last_read()
        lows = zip(last_read, self._brokers.ask([(tp, self._asks.low(tp)) for tp in last_read]), strict=True)
        starts = {
            tp: max(read_offset(frame), mark.offset + 1 if (mark := last_read[tp]) else 0)
            for tp, frame in lows
            if frame is not None and frame.code == Code.SUCCESS
        }
        accepted = self._commit(starts)
        self._unconfirmed |= accepted
        self._marks.forget_partitions(accepted)
        return {tp: (offset, last_read[tp] is not None) for tp, offset in accepted.items()}

    def _last_read(self) -> dict[TopicPartition, QueueMark | None]:
        """The newest message that was read and is there still, of each replaced queue; None if none is."""
        last: dict[TopicPartition, QueueMark | None] = {}
        marks = self._marks.by_queue()
        asks = [(tp, self._asks.one(tp, mark.offset)) for tp in marks for mark in marks[tp]]
        answers = iter(self._brokers.ask(asks))
        for tp in marks:
            checked = [(mark, frame and mark.stands(frame)) for mark, frame in zip(marks[tp], answers, strict=False)]
            if checked[0][1] is False and None not in (stands for _, stands in checked):
                last[tp] = next((mark for mark, stands in checked if stands), None)
        return last

    def are_kept(self) -> bool:
        """Whether brokers have all commits; missing ones are committed again.

        A broker may process the last commits of a killed reader later, and may forget offsets while a topic is deleted.
        """
        asks = [(tp, self._asks.committed(tp)) for tp in self._unconfirmed]
        kept = {
            tp: read_offset(frame) if frame.code == Code.SUCCESS else -1
            for (tp, _), frame in zip(asks, self._brokers.ask(asks), strict=True)
            if frame is not None
        }
        missing = {tp: self._unconfirmed[tp] for tp, offset in kept.items() if offset != self._unconfirmed[tp]}
        self._unconfirmed = self._commit(missing)
        return not self._unconfirmed

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Commit; return the offsets that were accepted."""
        accepted: dict[TopicPartition, int] = {}
        for tps in commit_waves(offsets):
            answers = self._brokers.ask([(tp, self._asks.commit(tp, offsets[tp])) for tp in tps])
            codes = [frame.code if frame else None for frame in answers]
            accepted |= {tp: offsets[tp] for tp, code in zip(tps, codes, strict=True) if code == Code.SUCCESS}
        return accepted


ASK_AGAIN_S = 0.5


class NativeCluster(RocketMqCluster):
    """The cluster of a child that has librocketmq."""

    def __init__(self, settings: RocketMqSettings, client_id: str) -> None:
        super().__init__(settings, client_id, settings.topics)
        self._ask_at_s = 0.0
        self.marks = Marks(self.asks, self.routes.link)
        self.rewinds = Rewinds(self.asks, self.brokers, self.marks)
        self._popped = Popped(self.asks, self.routes, settings.topics)
        self._names: dict[str, str] = {}
        """Names of brokers, by their addresses in `_named_of`."""
        self._named_of: Mapping[str, str] = {}

    def open(self) -> None:
        """Find the topics, and commit the start of a new group; raises like `LeasedClient.open`."""
        self.await_routes()
        while (problem := self._begin()) and self._left_s > 0:
            self.network.turn(0.2)
        if problem:
            raise self._late("no broker could be asked where the group stands", problem, BROKER_HINT)

    def _begin(self) -> str:
        """Commit the start of a group without commits; return the problem, or an empty text.

        A broker that is down delays nothing: its queues are read from the offset that it reports later.
        """
        try:
            answers = self._ask([(tp, self.asks.committed(tp)) for tp in self.queues()])
            committed = {tp: read_offset(frame) for tp, frame in answers.items() if frame.code == Code.SUCCESS}
            if committed:
                self._note(committed)
                return ""
            starts = self._ask([(tp, ask_start(self.asks, tp, self._settings.start)) for tp in answers])
            for tps in commit_waves(starts):
                self._ask([(tp, self.asks.commit(tp, read_offset(starts[tp]))) for tp in tps])
        except (NoAnswerError, ProtocolError) as error:
            return str(error)
        except RefusedError as error:
            return unless_refused(error)
        return ""

    def _note(self, committed: Mapping[TopicPartition, int]) -> None:
        """Note the message before each committed offset as read."""
        asks = [(tp, self.asks.one(tp, offset - 1)) for tp, offset in committed.items() if offset > 0]
        for (tp, _), frame in zip(asks, self.brokers.ask(asks), strict=True):
            mark = mark_at(committed[tp] - 1, frame) if frame is not None else None
            if mark is not None:
                self.marks.read(tp, mark)

    def _ask(self, asks: list[tuple[TopicPartition, Ask]]) -> dict[TopicPartition, Frame]:
        answers = zip(asks, self.brokers.ask(asks), strict=True)
        frames = {tp: frame for (tp, _), frame in answers if frame is not None}
        for tp, frame in frames.items():
            if frame.code not in (Code.SUCCESS, Code.QUERY_NOT_FOUND):
                raise refusal(frame, self.routes.addresses[tp.broker])
        if not frames:
            raise NoAnswerError(self._silence())
        return frames

    def turn(self) -> None:
        """Update routes and marks, without waiting."""
        self.routes.refresh()
        self.network.turn(0)
        self.marks.ask(time.monotonic())
        self._popped.ask(time.monotonic())
        away = {name for name, link in self.routes.brokers().items() if link.problem}
        if away and time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + ASK_AGAIN_S
            self._ask_for(away)

    def _ask_for(self, away: set[str]) -> None:
        """Ask unreachable brokers for anything: a broker counts as back once it has answered."""
        links = self.routes.brokers()
        for tp in {tp.broker: tp for tp in self.queues() if tp.broker in away}.values():
            if links[tp.broker].is_up:
                links[tp.broker].ask(self.asks.low(tp), lambda frame: None)

    def broker_at(self, address: str) -> str:
        """The name of the broker at an address, or the address if it is unknown."""
        if self.routes.addresses is not self._named_of:
            self._named_of = self.routes.addresses
            self._names = {known: name for name, known in self._named_of.items()}
        return self._names.get(address, address)

    @property
    def is_away(self) -> bool:
        """Whether no broker can be reached, or the name servers know none."""
        return all(link.problem for link in self.routes.brokers().values())

    def problems(self) -> Mapping[str, str]:
        links = self.routes.brokers().items()
        problems = {name: f"{link.address}: {link.problem}" for name, link in links if link.problem}
        others = {"name servers": self.routes.problem, POPPED: self._popped.problem}
        return problems | {key: text for key, text in others.items() if text}
