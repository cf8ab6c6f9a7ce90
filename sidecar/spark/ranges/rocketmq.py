"""RocketMQ by ranges: bounds of its queues for the driver, messages of a range for a task. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import structlog

from sidecar.config.source.rocketmq import RocketMqSource
from sidecar.core.records import TopicPartition
from sidecar.errors import SidecarError, UnavailableError, extra
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError
from sidecar.sources.rocketmq.wire.messages import StoredMessage, decode_some
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import MESSAGES_MAX, RETRY, Asks, Subscription, read_offset
from sidecar.spark.ranges import logs
from sidecar.spark.ranges.gathering import RUN_BYTES
from sidecar.spark.ranges.planning import ExpiredError

ROUTES_S = 5.0
"""How long routes are used: queues that were added are found after this time."""
SILENCE_S = 60.0
"""How long a task waits for a broker that does not answer; then it fails, and is retried."""
RETRY_S = 0.5
_NO_MESSAGES = (Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY, Code.PULL_OFFSET_MOVED)

log = structlog.get_logger()


class RocketMqLogs:
    """The queues of a source. Nothing is open before the first request.

    Args:
        retried: Whether the retry topic of the group is read too.
    """

    def __init__(self, settings: RocketMqSource, *, retried: bool = False) -> None:
        self._settings = settings
        self._beside = [RETRY + settings.group] if retried else []
        self._open: Inquiry | None = None
        self._open_until_s = 0.0

    def bounds(self) -> Mapping[TopicPartition, logs.Bounds]:
        """See `Logs`."""
        inquiry = self._inquiry()
        queues = inquiry.queues()
        low, high = self._offsets(queues, Asks.low), self._offsets(queues, Asks.high)
        return {tp: logs.Between(low[tp], high[tp]) for tp in queues}

    def at_time(self, bounds: Mapping[TopicPartition, logs.Bounds], at_ms: int) -> Mapping[TopicPartition, int]:
        """See `Logs`."""
        return self._offsets(list(bounds), lambda asks, tp: asks.at_time(tp, at_ms))

    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        """See `Logs`: RocketMQ has none."""
        return dict.fromkeys(topics, "")

    def is_read(self, topic: str) -> bool:
        """See `Logs`."""
        return topic in (*self._settings.topics, *self._beside)

    def close(self) -> None:
        """Disconnect."""
        inquiry, self._open = self._open, None
        if inquiry is not None:
            inquiry.__exit__()

    def _inquiry(self) -> Inquiry:
        if self._open is None or time.monotonic() >= self._open_until_s:
            self.close()
            self._open = Inquiry(self._settings, beside=self._beside).__enter__()
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


def group_offsets(settings: RocketMqSource) -> logs.Places | None:
    """The offsets that the daemon's group has committed to the brokers, of the retry topic too; None if it has none.

    Raises:
        UnavailableError: A broker does not answer.
    """
    with Inquiry(settings, beside=[RETRY + settings.group]) as inquiry:
        tps, asks = inquiry.queues(), inquiry.asks
        wanted = [(tp.broker, ask) for tp in tps for ask in (asks.committed(tp), asks.low(tp), asks.high(tp))]
        answers = inquiry.answers(wanted, also=[Code.QUERY_NOT_FOUND])
    found: dict[TopicPartition, int] = {}
    for i, tp in enumerate(tps):
        committed, low, high = answers[3 * i : 3 * i + 3]
        if committed.code == Code.SUCCESS:
            found[tp] = _within(tp, read_offset(committed), max(0, read_offset(low)), max(0, read_offset(high)))
    return logs.by_topic(found) if any(tp.topic in settings.topics for tp in found) else None


def _within(tp: TopicPartition, offset: int, low: int, high: int) -> int:
    """The offset if it is in the log; else the log's start, with the daemon's log events.

    An offset beyond the end may be that of a deleted topic: RocketMQ has no topic ids, so all messages are read.
    """
    if low <= offset <= high:
        return offset
    fields = {**tp.fields(), "committed": offset, "log_start": low, "log_end": high}
    fields["action"] = "going on at the log's start"
    if offset < low:
        log.error("offset.expired", **fields, expired=low - offset)
    else:
        log.error("partition.truncated", **fields)
    return low


class QueueReader:
    """Reads one queue for a task. Nothing is open before the first request."""

    def __init__(self, settings: RocketMqSource, tp: TopicPartition) -> None:
        self._settings = settings
        self._tp = tp
        self._inquiry: Inquiry | None = None

    def pull(self, offset: int, subscription: Subscription, messages_max: int = MESSAGES_MAX) -> Frame:
        """The broker's answer about messages from an offset on; its code is that of success, or that there are none.

        Raises:
            UnavailableError: The broker does not answer for 60 s.
            CredentialsError: It refuses.
        """
        deadline_s = time.monotonic() + SILENCE_S
        while True:
            try:
                inquiry = self._opened()
                ask = inquiry.asks.pull(self._tp, offset, subscription, messages_max=messages_max)
                (answer,) = inquiry.answers([(self._tp.broker, ask)], also=_NO_MESSAGES)
            except UnavailableError:
                self.close()  # the broker may have another address when it is back
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(RETRY_S)
            else:
                return answer

    def messages(self, subscription: Subscription, start: int, end: int) -> Iterator[list[StoredMessage]]:
        """All messages of a range, without `end`, that the broker's filter lets through, some at a time.

        Raises:
            UnavailableError: The broker does not return them.
        """
        with extra("rocketmq", "reading RocketMQ", "lz4", "zstandard"):  # producers choose how they compress
            import zstandard  # noqa: F401
            from lz4 import frame  # noqa: F401
        while start < end:
            messages, reached = self._read(start, self.pull(start, subscription))
            wanted = [message for message in messages if start <= message.offset < end]
            if wanted:
                yield wanted
            start = reached

    def _read(self, start: int, answer: Frame) -> tuple[list[StoredMessage], int]:
        """The messages of an answer, and the offset after those that it is about, or of the first one left."""
        left = None
        try:
            reached = read_offset(answer, "nextBeginOffset")
            messages: list[StoredMessage] = []
            if answer.code == Code.SUCCESS:
                messages, left = decode_some(answer.body, start, RUN_BYTES)
        except ProtocolError as error:
            raise UnavailableError(f"{self._tp}@{start} cannot be read: {error}") from error
        if answer.code == Code.PULL_OFFSET_MOVED and reached > start:
            raise ExpiredError(self._tp, start, reached)
        if answer.code in (Code.PULL_NOT_FOUND, Code.PULL_OFFSET_MOVED) or reached <= start:
            raise UnavailableError(
                f"{self._tp}@{start} cannot be read: the broker has it no more, or not yet (code {answer.code}, it "
                f"goes on at {reached})"
            )
        return messages, reached if left is None else left

    def _opened(self) -> Inquiry:
        if self._inquiry is None:
            self._inquiry = Inquiry(self._settings, [self._tp.topic]).__enter__()
        return self._inquiry

    def close(self) -> None:
        """Disconnect."""
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            inquiry.__exit__()


def messages_of(
    settings: RocketMqSource, expression: str, tp: TopicPartition, start: int, end: int
) -> Iterator[list[StoredMessage]]:
    """See `QueueReader.messages`.

    Args:
        expression: The filter: ``a || b``, or ``*``.
        end: The offset after the last.
    """
    with closing(QueueReader(settings, tp)) as queue:
        yield from queue.messages(Subscription(tp.topic, expression), start, end)
