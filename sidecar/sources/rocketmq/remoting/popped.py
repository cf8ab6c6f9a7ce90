"""Messages in retry topics that only consumers by pop (gRPC) read: their number, as a problem. Reads none of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError
from sidecar.sources.rocketmq.wire.messages import as_stored, property_of
from sidecar.sources.rocketmq.wire.network import Link
from sidecar.sources.rocketmq.wire.requests import RETRY, Asks, read_offset, read_route

EVERY_S = 60.0
ANSWER_S = 5.0
_SEPARATORS = "_", "+"
"""Between group and topic in the name of such a retry topic: `enableRetryTopicV2` of the broker decides."""
_POPPED = property_of("1ST_POP_TIME")
"""Each of these messages has it. Without it, `%RETRY%a_b` is the retry topic of a group `a_b`."""


class Popped:
    """Counts them, without waiting."""

    def __init__(self, asks: Asks, routes: Routes, topics: Sequence[str]) -> None:
        self._asks = asks
        self._routes = routes
        self._names = [f"{RETRY}{asks.group}{mark}{asks.wire(topic)}" for topic in topics for mark in _SEPARATORS]
        self._left: dict[TopicPartition, int] = {}
        self._at_s = 0.0

    @property
    def problem(self) -> str:
        """A sentence for an operator; empty if there are none."""
        left = {tp: count for tp, count in self._left.items() if count > 0}
        names = ", ".join(sorted({tp.topic for tp in left}))
        return f"{sum(left.values())} messages that only client: grpc reads are in {names}" if left else ""

    def ask(self, now_s: float) -> None:
        link = self._routes.name_server() if now_s >= self._at_s else None
        if link is None:
            return
        self._at_s = now_s + EVERY_S
        for name in self._names:
            link.ask(self._asks.route(name), partial(self._routed, name), ANSWER_S)

    def _routed(self, name: str, frame: Frame | None) -> None:
        if frame is None or frame.code not in (Code.SUCCESS, Code.TOPIC_NOT_EXIST):
            return
        try:
            queues = read_route(name, frame).queues if frame.code == Code.SUCCESS else ()
        except ProtocolError:
            return
        self._left = {tp: count for tp, count in self._left.items() if tp.topic != name or tp in queues}
        for tp in queues:
            link = self._routes.link(tp.broker)
            if link is not None and link.is_up:
                link.ask(self._asks.committed(tp), partial(self._begun, tp, link), ANSWER_S)

    def _begun(self, tp: TopicPartition, link: Link, frame: Frame | None) -> None:
        if frame is not None and frame.code in (Code.SUCCESS, Code.QUERY_NOT_FOUND):
            self._look(tp, link, read_offset(frame) if frame.code == Code.SUCCESS else 0)

    def _look(self, tp: TopicPartition, link: Link, begin: int) -> None:
        """Ask for the first message that no consumer has acknowledged, and with it for the end of the queue."""
        link.ask(self._asks.one(tp, begin), partial(self._found, tp, link, begin), ANSWER_S)

    def _found(self, tp: TopicPartition, link: Link, begin: int, frame: Frame | None) -> None:
        if frame is None or "maxOffset" not in frame.fields:
            return
        low, end = read_offset(frame, "minOffset"), read_offset(frame, "maxOffset")
        if frame.code == Code.PULL_OFFSET_MOVED and begin < low < end:
            self._look(tp, link, low)
            return
        is_popped = frame.code == Code.SUCCESS and _POPPED.search(as_stored(frame.body)[0].properties)
        self._left[tp] = end - begin if is_popped else 0
