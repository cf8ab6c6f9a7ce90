"""RocketMQ for the pipeline on Spark, by queues and their offsets. Decides nothing about messages.

A topic has no id. So each task keeps the last message of its range, beside the checkpoint, and the next task of the
queue looks whether it is still at its offset: otherwise the topic was created again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TypeVar

import orjson
import structlog

from sidecar.config.model import Settings
from sidecar.config.source.rocketmq import RocketMqSource
from sidecar.core.records import Original, TopicPartition
from sidecar.errors import PositionError, UnavailableError
from sidecar.runtime.build import pushed_expression
from sidecar.runtime.dead_letters import DeadLetterStore, Keeper, open_dead_letters
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.remoting.fetch import QueueFetcher
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.remoting.joining import check_filter
from sidecar.sources.rocketmq.wire.frames import Code
from sidecar.sources.rocketmq.wire.messages import StoredMessage, as_stored
from sidecar.sources.rocketmq.wire.requests import RETRY, Subscription
from sidecar.spark.ranges.gathering import gather
from sidecar.spark.ranges.logs import Places
from sidecar.spark.ranges.rocketmq import QueueReader, group_offsets
from sidecar.spark.ranges.shared import read_if_there, write
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.sources.interface import Found, Single

T = TypeVar("T")

_PACKED = attrgetter("packed")

log = structlog.get_logger()


class RocketMqRun:
    """See `RunSource`."""

    def __init__(self, settings: Settings) -> None:
        assert settings.source.rocketmq is not None
        self._settings = settings
        self._rocketmq = settings.source.rocketmq

    def await_cluster(self) -> str:
        """See `RunSource`: the cluster's name, in the namespace.

        Raises:
            ConfigError: A broker cannot filter by `source.rocketmq.sql`.
        """
        with Inquiry(self._rocketmq, start_ms=self._rocketmq.start_timeout_ms) as inquiry:
            if self._rocketmq.sql is not None:
                brokers = list(inquiry.routes.brokers().values())
                check_filter(inquiry.network, inquiry.asks, brokers, self._subscription(self._rocketmq.topics[0]))
            return inquiry.asks.wire(inquiry.routes.cluster)

    def refuse_members(self) -> None:
        """See `RunSource`."""
        with Inquiry(self._rocketmq) as inquiry:
            members = inquiry.members()
        if members:
            raise UnavailableError(
                f"the consumer group {self._rocketmq.group} has {len(members)} members: a daemon reads with it",
                hint="stop the daemon first; the checkpoint starts at its committed offsets",
            )

    def group_offsets(self) -> Places | None:
        """See `RunSource`."""
        return group_offsets(self._rocketmq)

    def claim(self, cluster_id: str, folder: RunFolder, topic: str, *, anew: bool = False) -> str:  # noqa: ARG002
        """See `RunSource`: the topic's name; `read` compares messages."""
        return topic

    def read(self, folder: RunFolder, tp: TopicPartition, start: int, end: int) -> Found:
        """See `RunSource`."""
        chunks = self._told(tp, self._proven(folder.path, tp, start, end))
        return Found(
            RocketMqColumns(), gather(tp, chunks, lambda found: (len(m.body) for m in found), itemgetter(0)), None
        )

    def _proven(self, folder: Path, tp: TopicPartition, start: int, end: int) -> Iterator[list[StoredMessage]]:
        """The messages of a range, of one topic from the first to the last."""
        path = folder / "marks" / f"{tp.topic}-{tp.queue}"
        with closing(QueueReader(self._rocketmq, tp)) as queue:
            stored = read_if_there(path)
            before = _mark_at(queue, tp, start) if stored is None else QueueMark(*orjson.loads(stored))
            _refuse_replaced(queue, tp, before)
            yield from queue.messages(self._subscription(tp.topic), start, end)
            last = _mark_at(queue, tp, end - 1)
            _refuse_replaced(queue, tp, before)  # behind the look at the last message: that is of the same topic too
        if last is not None:
            write(path, orjson.dumps([*last]))

    def _told(self, tp: TopicPartition, chunks: Iterator[list[StoredMessage]]) -> Iterator[list[StoredMessage]]:
        for messages in chunks:
            if any(map(_PACKED, messages)):
                for message in filter(_PACKED, messages):
                    log.warning("body.not_unpacked", **tp.fields(), offset=message.offset)
            yield messages

    def _subscription(self, topic: str) -> Subscription:
        """What the brokers filter by; what was handed back was wanted then, and is filtered here."""
        if topic.startswith(RETRY):
            return Subscription(topic)
        if self._rocketmq.sql is not None:
            return Subscription(topic, self._rocketmq.sql, "SQL92")
        return Subscription(topic, pushed_expression(self._settings))

    def single(self, stack: ExitStack) -> Single:
        """See `RunSource`."""
        return Single(RocketMqColumns(), stack.enter_context(closing(_Again(self._rocketmq))).message)

    def open_letters(self, keeper: Keeper, stack: ExitStack) -> DeadLetterStore:
        """See `RunSource`."""
        again = stack.enter_context(closing(_Again(self._rocketmq)))
        return open_dead_letters(self._settings, keeper, again.fetch, again.send_back)


def _mark_at(queue: QueueReader, tp: TopicPartition, offset: int) -> QueueMark | None:
    """The message at an offset, if it is there."""
    answer = queue.pull(offset, Subscription(tp.topic), 1)
    messages = as_stored(answer.body) if answer.code == Code.SUCCESS else []
    return QueueMark(offset, messages[0].position, messages[0].stored_ms) if messages else None


def _refuse_replaced(queue: QueueReader, tp: TopicPartition, mark: QueueMark | None) -> None:
    """Raise an error if this message, which was read, is not at its offset any more, and did not expire."""
    if mark is None:
        return
    stands = mark.stands(queue.pull(mark.offset, Subscription(tp.topic), 1))
    if stands is None:
        raise UnavailableError(f"{tp}@{mark.offset} cannot be read again: so the queue may be another one by now")
    if not stands:
        raise PositionError(
            f"the topic {tp.topic} was deleted and created again, or {tp} lost messages: the checkpoint's offsets "
            "belong to what was there before. Begin anew with another spark.checkpoint; nothing was skipped silently"
        )


class _Again:
    """Single messages, read again or handed back. Nothing is open before the first request."""

    def __init__(self, settings: RocketMqSource) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._fetcher: QueueFetcher | None = None

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """See `QueueFetcher.fetch`."""
        return self._ask(lambda fetcher: fetcher.fetch(tp, offset))

    def message(self, tp: TopicPartition, offset: int) -> StoredMessage | None:
        """See `QueueFetcher.message`."""
        return self._ask(lambda fetcher: fetcher.message(tp, offset))

    def send_back(self, tp: TopicPartition, offset: int, level: int, known: str = "") -> bool:
        """See `QueueFetcher.send_back`."""
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
        """Disconnect."""
        self._stack.close()
        self._fetcher = None
