"""Dead letters of a group of RocketMQ, in its topic ``%DLQ%GROUP``: read, whichever consumer they are of.

The broker copies a message as it stored it, so a letter has no attempts, and its place is the one in this topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import xxhash

from sidecar.config.model import Settings
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.letters.topic import ID_BASE, LetterTopic, TopicLetter
from sidecar.runtime.build import groups_of
from sidecar.sinks.formats import envelope_row
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns, details_of
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.wire.frames import Code, ProtocolError
from sidecar.sources.rocketmq.wire.messages import StoredMessage, decode, properties
from sidecar.sources.rocketmq.wire.requests import DLQ, Subscription, read_offset
from sidecar.state.interface import StoredLetter

REASON = "not kept: see message.dead_lettered in the log"
_NOTHING_HERE = (Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY, Code.PULL_OFFSET_MOVED)


class DeadLetterQueues(LetterTopic):
    """The queues of the topic, one at each broker; none before the first dead letter.

    Raises:
        ConfigError: The client reaches no name server.
        UnavailableError: Name servers or brokers do not answer.
        CredentialsError: They refuse.
    """

    def __init__(self, settings: Settings, source: RocketMqSettings, stack: ExitStack) -> None:
        super().__init__(DLQ + source.group)
        self._inquiry = stack.enter_context(Inquiry(source, beside=[self.topic]))
        self._columns = RocketMqColumns()
        self._groups = groups_of(settings, self._columns)
        self._queues = _numbered([tp for tp in self._inquiry.queues() if tp.topic == self.topic])
        asks = self._inquiry.asks
        wanted = [(tp.broker, ask) for tp in self._queues.values() for ask in (asks.low(tp), asks.high(tp))]
        ends = [read_offset(frame) for frame in self._inquiry.answers(wanted)]
        self._bounds = {number: (ends[2 * i], ends[2 * i + 1]) for i, number in enumerate(self._queues)}

    def _read(self, number: int, start: int, end: int) -> Iterator[TopicLetter]:
        tp, asks = self._queues[number], self._inquiry.asks
        while start < end:
            pull = asks.pull(tp, start, Subscription(tp.topic))
            (frame,) = self._inquiry.answers([(tp.broker, pull)], also=_NOTHING_HERE)
            try:
                messages = decode(frame.body) if frame.code == Code.SUCCESS else []
                for message in messages:
                    if start <= message.offset < end:
                        yield self._record(number, tp, message)
                start = max(start + 1, read_offset(frame, "nextBeginOffset"))
            except ProtocolError as error:
                raise UnavailableError(f"{tp}@{start} cannot be read: {error}", hint="check the broker") from error

    def _record(self, number: int, tp: TopicPartition, message: StoredMessage) -> TopicLetter:
        pairs = properties(message.properties)
        found = {name: value.decode("utf-8", "replace") for name, value in pairs}
        topic = self._inquiry.asks.plain(found.get("RETRY_TOPIC") or found.get("DLQ_ORIGIN_TOPIC", ""))
        (key,) = self._columns.keys([message])
        (group,) = self._groups(tp._replace(topic=topic), [message])
        envelope = envelope_row(tp, message.offset, message.born_ms, key, (), pairs, message.body, details_of(message))
        letter = StoredLetter(
            topic=tp.topic, partition=tp.partition, broker=tp.broker, offset=message.offset, scope="",
            group_name=group or "", reason=REASON, status=None, attempts=(), first_at_ms=message.stored_ms, row=None,
            envelope=envelope, id=message.offset * ID_BASE + number,
        )  # fmt: skip
        first = found.get("ORIGIN_MESSAGE_ID") or found.get("DLQ_ORIGIN_MESSAGE_ID")
        identity = repr((topic, first, found.get("UNIQ_KEY"), message.born_ms, message.body))
        return TopicLetter(letter, xxhash.xxh3_128_digest(identity.encode("utf-8", "surrogateescape")), topic)


def _numbered(tps: list[TopicPartition]) -> dict[int, TopicPartition]:
    """The queues, by numbers that stay when a broker is added, unless two would have the same."""
    found: dict[int, TopicPartition] = {}
    for tp in tps:
        number = xxhash.xxh32_intdigest(tp.queue.encode()) % ID_BASE
        while number in found:
            number = (number + 1) % ID_BASE
        found[number] = tp
    return dict(sorted(found.items()))
