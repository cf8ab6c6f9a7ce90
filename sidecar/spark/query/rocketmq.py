"""RocketMQ for a query: bounds of its queues for the driver, messages of a range for a task. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from sidecar.config.source.rocketmq import RocketMqSource
from sidecar.core.records import TopicPartition
from sidecar.errors import SidecarError, UnavailableError, extra
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.frames import Frame, ProtocolError
from sidecar.sources.rocketmq.wire.messages import StoredMessage, decode
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription, read_offset
from sidecar.spark.query import offsets

ROUTES_S = 5.0
"""How long routes are used: queues that were added are found after this time."""
_NO_MESSAGES = (Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY, Code.PULL_OFFSET_MOVED)


class Bounds(NamedTuple):
    """See `offsets.Bounds`."""

    low: int
    high: int


class RocketMqLogs:
    """The queues of a source. Nothing is open before the first request.

    Args:
        settings: The source.
    """

    def __init__(self, settings: RocketMqSource) -> None:
        self._settings = settings
        self._open: Inquiry | None = None
        self._open_until_s = 0.0

    def bounds(self) -> Mapping[TopicPartition, offsets.Bounds]:
        """See `Logs`."""
        inquiry = self._inquiry()
        queues = inquiry.queues()
        low, high = self._offsets(queues, Asks.low), self._offsets(queues, Asks.high)
        return {tp: Bounds(low[tp], high[tp]) for tp in queues}

    def at_time(self, bounds: Mapping[TopicPartition, offsets.Bounds], at_ms: int) -> Mapping[TopicPartition, int]:
        """See `Logs`."""
        return self._offsets(list(bounds), lambda asks, tp: asks.at_time(tp, at_ms))

    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        """See `Logs`: RocketMQ has none."""
        return dict.fromkeys(topics, "")

    def is_read(self, topic: str) -> bool:
        """See `Logs`."""
        return topic in self._settings.topics

    def close(self) -> None:
        """Disconnect."""
        inquiry, self._open = self._open, None
        if inquiry is not None:
            inquiry.__exit__()

    def _inquiry(self) -> Inquiry:
        if self._open is None or time.monotonic() >= self._open_until_s:
            self.close()
            self._open = Inquiry(self._settings).__enter__()
            self._open_until_s = time.monotonic() + ROUTES_S
        return self._open

    def _offsets(
        self, queues: list[TopicPartition], ask: Callable[[Asks, TopicPartition], Ask]
    ) -> dict[TopicPartition, int]:
        inquiry = self._inquiry()
        try:
            answers = inquiry.answers([(tp.broker, ask(inquiry.asks, tp)) for tp in queues])
            return {tp: max(0, read_offset(frame)) for tp, frame in zip(queues, answers, strict=True)}
        except ProtocolError as error:
            raise UnavailableError(f"RocketMQ does not report offsets: {error}") from error
        except SidecarError:
            self.close()  # routes may have changed
            raise


def messages_of(
    settings: RocketMqSource, expression: str, tp: TopicPartition, start: int, end: int
) -> Iterator[list[StoredMessage]]:
    """All messages of a range that the broker's filter lets through, without `end`, some at a time.

    Args:
        settings: The source.
        expression: The filter: ``a || b``, or ``*``.
        tp: The queue.
        start: The first offset.
        end: The offset after the last.

    Raises:
        UnavailableError: The broker does not return them.
    """
    with extra("rocketmq", "reading RocketMQ", "lz4", "zstandard"):  # producers choose how they compress
        import zstandard  # noqa: F401
        from lz4 import frame  # noqa: F401
    subscription = Subscription(tp.topic, expression)
    with Inquiry(settings, [tp.topic]) as inquiry:
        while start < end:
            pull = inquiry.asks.pull(tp, start, subscription)
            (answer,) = inquiry.answers([(tp.broker, pull)], also=_NO_MESSAGES)
            messages, reached = _read(tp, start, answer)
            wanted = [message for message in messages if start <= message.offset < end]
            if wanted:
                yield wanted
            start = reached


def _read(tp: TopicPartition, start: int, answer: Frame) -> tuple[list[StoredMessage], int]:
    """The messages of an answer, and the offset after those that it is about."""
    try:
        reached = read_offset(answer, "nextBeginOffset")
        messages = decode(answer.body) if answer.code == Code.SUCCESS else []
    except ProtocolError as error:
        raise UnavailableError(f"{tp}@{start} cannot be read: {error}") from error
    if answer.code in (Code.PULL_NOT_FOUND, Code.PULL_OFFSET_MOVED) or reached <= start:
        raise UnavailableError(
            f"{tp}@{start} cannot be read: the broker has it no more, or not yet (code {answer.code}, it goes on at "
            f"{reached})"
        )
    return messages, reached
