"""RocketMQ by ranges of offsets: requests for the driver, the messages of a range for a task. Decides nothing.

A topic has no id. So each task of a job keeps the last message of its range, beside the checkpoint, and the next task
of the queue verifies that it is still at its offset: otherwise the topic was created again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import ClassVar, TypeVar

import orjson
import structlog
from typing_extensions import override

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import Columns, Original, TopicPartition
from sidecar.errors import PositionError, SidecarError, UnavailableError, extra
from sidecar.runtime.dead_letters import DeadLetterStore, Keeper
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.remoting.fetch import QueueFetcher
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError
from sidecar.sources.rocketmq.wire.messages import StoredMessage, as_stored, decode_some
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import MESSAGES_MAX, RETRY, Asks, Subscription, read_offset
from sidecar.spark.ranges.broker import (
    BrokerRanges,
    ExpiredError,
    LogExtent,
    Logs,
    Places,
    RangeMessages,
    SingleMessages,
    by_topic,
    within,
)
from sidecar.spark.ranges.gathering import RUN_BYTES, gather
from sidecar.spark.ranges.shared import read_if_there, write

T = TypeVar("T")

ROUTES_S = 5.0
"""Time for which routes are used: added queues are found after it."""
SILENCE_S = 60.0
"""Time without a broker's answer after which a task fails, and is retried."""
RETRY_S = 0.5
_NO_MESSAGES = (Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY, Code.PULL_OFFSET_MOVED)
_PACKED = attrgetter("packed")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RocketMqRanges(BrokerRanges):
    """The queues of some topics.

    Args:
        pushed: The brokers' filter by tags: ``a || b``, or ``*``.
        retried: Whether messages that the consumer group handed back are read too.
    """

    source: RocketMqSettings
    pushed: str
    retried: bool
    topics_key: ClassVar = "source.rocketmq.topics"

    # Requests

    @override
    def logs(self) -> RocketMqLogs:
        return RocketMqLogs(self.source, retried=self.retried)

    @override
    def await_cluster(self) -> str:
        """The cluster's name, in the namespace.

        Raises:
            ConfigError: A broker cannot filter by `source.rocketmq.sql`.
        """
        with Inquiry(self.source, start_ms=self.source.start_timeout_ms) as inquiry:
            if self.source.sql is not None:
                brokers = list(inquiry.routes.brokers().values())
                inquiry.check_filter(brokers, self._subscription(self.source.topics[0]))
            return inquiry.asks.wire(inquiry.routes.cluster)

    @override
    def _members(self) -> int:
        with Inquiry(self.source) as inquiry:
            return len(inquiry.members())

    @override
    def group_offsets(self) -> Places | None:
        """The committed offsets, including the group's retry topic; None if no topic has any."""
        with Inquiry(self.source, beside=[RETRY + self.source.group]) as inquiry:
            tps, asks = inquiry.queues(), inquiry.asks
            wanted = [(tp.broker, ask) for tp in tps for ask in (asks.committed(tp), asks.low(tp), asks.high(tp))]
            answers = inquiry.answers(wanted, also=[Code.QUERY_NOT_FOUND])
        found: dict[TopicPartition, int] = {}
        for i, tp in enumerate(tps):
            committed, low, high = answers[3 * i : 3 * i + 3]
            if committed.code == Code.SUCCESS:
                # An offset beyond the end may be that of a deleted topic: RocketMQ has no topic ids, so all is read.
                bounds = LogExtent(max(0, read_offset(low)), max(0, read_offset(high)))
                found[tp] = within(tp, read_offset(committed), bounds, beyond_at="start")
        return by_topic(found) if any(tp.topic in self.source.topics for tp in found) else None

    # Messages

    @override
    def columns(self) -> Columns:
        return RocketMqColumns()

    @override
    def read(self, folder: Path, tp: TopicPartition, start: int, end: int) -> RangeMessages:
        chunks = _reported(tp, self._proven(folder, tp, start, end))
        runs = gather(tp, chunks, lambda found: (len(m.body) for m in found), itemgetter(0))
        return RangeMessages(self.columns(), runs, None)

    def _proven(self, folder: Path, tp: TopicPartition, start: int, end: int) -> Iterator[list[StoredMessage]]:
        """The messages of a range, all from one and the same topic."""
        path = folder / "marks" / f"{tp.topic}-{tp.queue}"
        with closing(QueueReader(self.source, tp)) as queue:
            stored = read_if_there(path)
            before = _mark_at(queue, tp, start) if stored is None else QueueMark(*orjson.loads(stored))
            _refuse_replaced(queue, tp, before)
            yield from queue.messages(self._subscription(tp.topic), start, end)
            last = _mark_at(queue, tp, end - 1)
            _refuse_replaced(queue, tp, before)  # after reading `last`: so that is from the same topic too
        if last is not None:
            write(path, orjson.dumps([*last]))

    def _subscription(self, topic: str) -> Subscription:
        """The brokers' filter; handed-back messages were wanted then, and are filtered here."""
        if topic.startswith(RETRY):
            return Subscription(topic)
        if self.source.sql is not None:
            return Subscription(topic, self.source.sql, "SQL92")
        return Subscription(topic, self.pushed)

    @override
    def messages(self, tp: TopicPartition, start: int, end: int) -> Iterator[list[StoredMessage]]:
        with closing(QueueReader(self.source, tp)) as queue:
            yield from queue.messages(self._subscription(tp.topic), start, end)

    @override
    def single(self, stack: ExitStack) -> SingleMessages:
        return self.columns(), stack.enter_context(closing(_Again(self.source))).message

    @override
    def open_letters(self, keeper: Keeper, stack: ExitStack) -> DeadLetterStore:
        from sidecar.runtime.build import dead_letter_store  # a query delivers nothing

        again = stack.enter_context(closing(_Again(self.source)))
        return dead_letter_store(self.dead_letters, self.row_format, None, keeper, again.fetch, again.send_back)


def _reported(tp: TopicPartition, chunks: Iterator[list[StoredMessage]]) -> Iterator[list[StoredMessage]]:
    """These messages; those whose bodies could not be unpacked are logged."""
    for messages in chunks:
        for message in filter(_PACKED, messages):
            log.warning("body.not_unpacked", **tp.fields(), offset=message.offset)
        yield messages


def _mark_at(queue: QueueReader, tp: TopicPartition, offset: int) -> QueueMark | None:
    """The message at an offset; None if there is none."""
    answer = queue.pull(offset, Subscription(tp.topic), 1)
    messages = as_stored(answer.body) if answer.code == Code.SUCCESS else []
    return QueueMark(offset, messages[0].position, messages[0].stored_ms) if messages else None


def _refuse_replaced(queue: QueueReader, tp: TopicPartition, mark: QueueMark | None) -> None:
    """Raise an error if this message, which was read, is no longer at its offset without having expired."""
    if mark is None:
        return
    stands = mark.stands(queue.pull(mark.offset, Subscription(tp.topic), 1))
    if stands is None:
        raise UnavailableError(f"{tp}@{mark.offset} cannot be read again: so the queue may be another one by now")
    if not stands:
        raise PositionError(
            f"the topic {tp.topic} was deleted and created again, or {tp} lost messages: the checkpoint's offsets "
            "belong to what was there before. Start over with another spark.checkpoint; nothing was skipped silently"
        )


class _Again:
    """Reads again or hands back single messages, as `QueueFetcher`. Nothing is open before the first request."""

    def __init__(self, settings: RocketMqSettings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._fetcher: QueueFetcher | None = None

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        return self._ask(lambda fetcher: fetcher.fetch(tp, offset))

    def message(self, tp: TopicPartition, offset: int) -> StoredMessage | None:
        return self._ask(lambda fetcher: fetcher.message(tp, offset))

    def send_back(self, tp: TopicPartition, offset: int, level: int, known: str = "") -> bool:
        return self._ask(lambda fetcher: fetcher.send_back(tp, offset, level, known))

    def _ask(self, question: Callable[[QueueFetcher], T]) -> T:
        try:
            if self._fetcher is None:
                inquiry = self._stack.enter_context(Inquiry(self._settings, beside=[RETRY + self._settings.group]))
                self._fetcher = self._stack.enter_context(closing(inquiry.fetcher()))
            return question(self._fetcher)
        except UnavailableError:
            self.close()  # the broker may have another address when it is back
            raise

    def close(self) -> None:
        self._stack.close()
        self._fetcher = None


class RocketMqLogs(Logs):
    """Requests about the queues."""

    def __init__(self, settings: RocketMqSettings, *, retried: bool) -> None:
        self._settings = settings
        self._beside = [RETRY + settings.group] if retried else []
        self._open: Inquiry | None = None
        self._open_until_s = 0.0

    @override
    def bounds(self) -> Mapping[TopicPartition, LogExtent]:
        inquiry = self._inquiry()
        queues = inquiry.queues()
        low, high = self._offsets(queues, Asks.low), self._offsets(queues, Asks.high)
        return {tp: LogExtent(low[tp], high[tp]) for tp in queues}

    @override
    def at_time(self, bounds: Mapping[TopicPartition, LogExtent], at_ms: int) -> Mapping[TopicPartition, int]:
        return self._offsets(list(bounds), lambda asks, tp: asks.at_time(tp, at_ms))

    @override
    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        return dict.fromkeys(topics, "")

    @override
    def is_read(self, topic: str) -> bool:
        return topic in (*self._settings.topics, *self._beside)

    @override
    def close(self) -> None:
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


class QueueReader:
    """Reads one queue for a task. Nothing is open before the first request."""

    def __init__(self, settings: RocketMqSettings, tp: TopicPartition) -> None:
        self._settings = settings
        self._tp = tp
        self._inquiry: Inquiry | None = None

    def pull(self, offset: int, subscription: Subscription, messages_max: int = MESSAGES_MAX) -> Frame:
        """The broker's answer about messages from an offset on: success, or no messages.

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
        """All messages of a range, without `end`, that the broker's filter lets through, some at a time."""
        with extra("rocketmq", "reading RocketMQ", "lz4", "zstandard"):  # producers choose the compression
            import zstandard  # noqa: F401
            from lz4 import frame  # noqa: F401
        while start < end:
            messages, reached = self._read(start, self.pull(start, subscription))
            wanted = [message for message in messages if start <= message.offset < end]
            if wanted:
                yield wanted
            start = reached

    def _read(self, start: int, answer: Frame) -> tuple[list[StoredMessage], int]:
        """The messages of an answer, and the next offset: after the answer, or of the first message left out."""
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
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            inquiry.__exit__()
