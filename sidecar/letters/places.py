"""The places of dead letters: the state folder, or a topic, which is only read. Decides which letters a command sees.

A record of a topic is identified by its place, which gives the letter its id, and by its origin: a hash of the
message's place and content. Copies of one dead letter have the same origin.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

import confluent_kafka as ck
import xxhash

from sidecar.config.failures import DeadLetterSettings
from sidecar.config.model import Settings
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.batching import Limits
from sidecar.core.partition_state import derived_scope
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.letters.plan import LetterPlace, StatePlace, Stream, again
from sidecar.runtime.broker_letters import STORY
from sidecar.runtime.build import groups_of
from sidecar.sinks.formats import envelope_row
from sidecar.sources.kafka.config import client_config
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns, details_of
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.wire.frames import Code, ProtocolError
from sidecar.sources.rocketmq.wire.messages import StoredMessage, decode, properties
from sidecar.sources.rocketmq.wire.requests import DLQ, Subscription, read_offset
from sidecar.state.beside import ALL, Chosen, LettersBeside, Outline, Totals
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import TOPIC, ReplayPart, Target

TIMEOUT_S = 30.0
POLL_S = 0.2
POLLED = 500
CHUNK_BYTES = 32 << 20
CHUNK_LETTERS = 50_000
ID_BASE = 10_000
"""The id of a letter is its record's offset times this, plus the record's partition."""


class TopicLetter(NamedTuple):
    """A record of the topic."""

    letter: StoredLetter
    origin: bytes
    topic: str

    def is_in(self, chosen: Chosen) -> bool:
        """Whether all conditions choose the record; `last_id` is left to the caller."""
        return chosen.topic in (None, self.topic) and chosen._replace(topic=None).takes(self.letter)


class LetterTopic(ABC):
    """A topic up to its end at construction: later records are not read."""

    deleted_by = "Kafka deletes them by the topic's retention"
    """A sentence on the deletion of records, for the operator."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.foreign = 0
        """Records of the last read that are no dead letters of Sidecar."""
        self._bounds: dict[int, tuple[int, int]] = {}
        """The first offset and the offset after the last, by the number of a partition."""

    def records(self, after: int = 0) -> Iterator[TopicLetter]:
        """All dead letters with an id above `after`, partition by partition."""
        offset, partition = divmod(after, ID_BASE)
        for number, (low, high) in self._bounds.items():
            if not after or number >= partition:
                start = max(low, offset + 1) if after and number == partition else low
                yield from self._read(number, start, high)

    def within(self, ids: Sequence[int]) -> Iterator[TopicLetter]:
        """The dead letters with these ids that still exist."""
        wanted = set(ids)
        for number in sorted({id_ % ID_BASE for id_ in ids} & self._bounds.keys()):
            offsets = [id_ // ID_BASE for id_ in ids if id_ % ID_BASE == number]
            low, high = self._bounds[number]
            for record in self._read(number, max(low, min(offsets)), min(high, max(offsets) + 1)):
                if record.letter.id in wanted:
                    yield record

    @abstractmethod
    def _read(self, number: int, start: int, end: int) -> Iterator[TopicLetter]:
        """The dead letters of a partition, from `start` to below `end`."""


class KafkaLetterTopic(LetterTopic):
    """A topic of Kafka; raises `UnavailableError` if the broker does not answer, or the topic does not exist."""

    def __init__(self, settings: Settings, topic: str) -> None:
        super().__init__(topic)
        config = {**client_config(settings.source.kafka), "group.id": f"{settings.source.group_id}-dead-letters"}
        self._config = {**config, "enable.auto.commit": False, "enable.partition.eof": True}
        try:
            with closing(ck.Consumer(self._config)) as consumer:
                found = consumer.list_topics(topic, TIMEOUT_S).topics[topic]
                if found.error is not None:
                    raise ck.KafkaException(found.error)
                self._bounds = {
                    number: consumer.get_watermark_offsets(ck.TopicPartition(topic, number), TIMEOUT_S)
                    for number in sorted(found.partitions)
                }
        except ck.KafkaException as error:
            raise self._unavailable(error.args[0]) from error

    def _read(self, number: int, start: int, end: int) -> Iterator[TopicLetter]:
        if start >= end:
            return
        # A client of its own: one that was assigned before may still report the end of that assignment.
        with closing(ck.Consumer(self._config)) as consumer:
            consumer.assign([ck.TopicPartition(self.topic, number, start)])
            until_s = time.monotonic() + TIMEOUT_S
            while time.monotonic() < until_s:
                for message in consumer.consume(POLLED, POLL_S):
                    until_s = time.monotonic() + TIMEOUT_S
                    error, offset = message.error(), message.offset() or 0
                    if error is not None and error.code() != ck.KafkaError._PARTITION_EOF:
                        raise self._unavailable(error)
                    if error is not None or offset >= end:
                        return
                    record = record_of(message)
                    self.foreign += record is None
                    if record is not None:
                        yield record
                    if offset + 1 >= end:
                        return
        raise self._unavailable(ck.KafkaError(ck.KafkaError._TIMED_OUT))

    def _unavailable(self, error: ck.KafkaError) -> UnavailableError:
        return UnavailableError(
            f"the dead letters in {self.topic} cannot be read: {error.str()}", hint="check the broker and the rights"
        )


def record_of(message: Any) -> TopicLetter | None:
    """The dead letter in a record; None if it is of another program."""
    headers = message.headers() or []
    own, story = headers[: -len(STORY)], headers[-len(STORY) :]
    if tuple(name for name, _ in story) != STORY:
        return None
    topic, partition, offset, group, reason, status, _ = (value for _, value in story)
    try:
        tp, place, code = TopicPartition(topic.decode(), int(partition)), int(offset), int(status)
    except ValueError:
        return None
    kind, timestamp = message.timestamp()
    key, value = message.key(), message.value()
    # The record has the timestamp of the message, so copies have the same, unless the broker sets it.
    written = timestamp if kind == ck.TIMESTAMP_CREATE_TIME else None
    identity = repr((tp.topic, tp.partition, place, written, key, value)).encode("utf-8", "surrogateescape")
    letter = StoredLetter(
        topic=tp.topic, partition=tp.partition, offset=place, scope="",
        group_name=unquote_to_bytes(group).decode("utf-8", "surrogateescape"), reason=reason.decode(),
        status=code or None, attempts=(), first_at_ms=timestamp if kind else 0, row=None,
        envelope=envelope_row(tp, place, timestamp if kind else None, key, (), own, value),
        id=message.offset() * ID_BASE + message.partition(),
    )  # fmt: skip
    return TopicLetter(letter, xxhash.xxh3_128_digest(identity), tp.topic)


class TopicPlace(LetterPlace):
    """The letters in a topic of which no copy was replayed yet; the state file has the replayed ones."""

    def __init__(self, topic: LetterTopic, file: LettersBeside) -> None:
        super().__init__(file)
        self._topic = topic
        self.source = TOPIC + topic.topic
        self.deleted_by = topic.deleted_by
        self._loaded: dict[int, TopicLetter] = {}
        """The letters of the current parts, by id."""

    @property
    def foreign(self) -> int:
        return self._topic.foreign

    def one(self, id_: int) -> StoredLetter | None:
        return next((record.letter for record in self._topic.within((id_,))), None)

    def each(self, chosen: Chosen, after: int = 0, limit: int = ALL) -> Iterator[StoredLetter]:
        """The chosen letters, partition by partition, one for each origin."""
        seen = self.origins(self.source)
        for record in self._topic.records(after):
            if limit > 0 and record.origin not in seen and record.is_in(chosen):
                seen.add(record.origin)
                limit -= 1
                yield record.letter

    def totals(self, chosen: Chosen) -> Totals:
        letters = size_bytes = last_id = 0
        for letter in self.each(chosen):
            letters, size_bytes, last_id = letters + 1, size_bytes + letter.size_bytes, letter.id
        return Totals(letters, size_bytes, last_id)

    def load(self, part: ReplayPart) -> list[StoredLetter]:
        if any(id_ not in self._loaded for id_ in part.letters):
            self._loaded |= {record.letter.id: record for record in self._topic.within(part.letters)}
        found = (self._loaded[id_].letter for id_ in part.letters if id_ in self._loaded)
        return sorted(found, key=lambda letter: letter.offset)

    def end_part(self, part: ReplayPart, delivered: Sequence[int], refused: Collection[StoredLetter]) -> None:  # noqa: ARG002
        """End a part, durably; a letter that was refused again stays as it is."""
        self.end_origins(part, [(self._loaded[id_].origin, id_) for id_ in delivered])

    def streams(self, chosen: Chosen, target: Target, limits: Limits) -> Iterator[Stream]:
        """Reads the topic piece by piece."""
        pending = self.pending()
        tried = {id_ for part in pending for id_ in part.letters}
        yield from again(pending)
        seen = self.origins(self.source)
        chunk: list[TopicLetter] = []
        size_bytes = 0
        for record in self._topic.records():
            if record.letter.id in tried:
                seen.add(record.origin)
            if record.origin in seen or not record.is_in(chosen):
                continue
            seen.add(record.origin)
            chunk.append(record)
            size_bytes += record.letter.size_bytes
            if size_bytes >= CHUNK_BYTES or len(chunk) >= CHUNK_LETTERS:
                yield from self._streams(chunk, target, limits)
                chunk, size_bytes = [], 0
        yield from self._streams(chunk, target, limits)

    def _streams(self, chunk: Sequence[TopicLetter], target: Target, limits: Limits) -> Iterator[Stream]:
        """The letters of a piece of the topic, by partition; two of one place mean that the topic was recreated."""
        self._loaded = {record.letter.id: record for record in chunk}
        lettered: dict[tuple[TopicPartition, int], dict[int, StoredLetter]] = defaultdict(dict)
        for letter in (record.letter for record in chunk):
            again_at = 0
            while letter.offset in lettered[letter.tp, again_at]:
                again_at += 1
            lettered[letter.tp, again_at][letter.offset] = letter
        for (tp, _), letters in lettered.items():
            scope = derived_scope(self._token, secrets.token_hex(8))
            outlines = (
                Outline(letters[offset].id, offset, letters[offset].group_name, letters[offset].size_bytes)
                for offset in sorted(letters)
            )
            yield Stream(tp, scope, self._cut(scope, tp, outlines, target, limits), again=False)


REASON = "not kept: see message.dead_lettered in the log"
_NOTHING_HERE = (Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY, Code.PULL_OFFSET_MOVED)


class DeadLetterQueues(LetterTopic):
    """The topic's queues, one at each broker, none before the first dead letter; raises like `Inquiry`."""

    deleted_by = "a broker of RocketMQ deletes them after its fileReservedTime"

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
    """The queues by number; a number stays when a broker is added, unless two queues would have the same."""
    found: dict[int, TopicPartition] = {}
    for tp in tps:
        number = xxhash.xxh32_intdigest(tp.queue.encode()) % ID_BASE
        while number in found:
            number = (number + 1) % ID_BASE
        found[number] = tp
    return dict(sorted(found.items()))


PlaceName: TypeAlias = Literal["state", "topic"]


def _topic_of(settings: Settings, name: PlaceName | None, stack: ExitStack) -> LetterTopic | None:
    """The topic with the dead letters: by its name, or by the daemon's settings; None for the state folder."""
    chosen = settings.dead_letters if isinstance(settings.dead_letters, DeadLetterSettings) else None
    if name == "state" or (name is None and chosen is None):
        return None
    if settings.source.rocketmq is not None:
        return DeadLetterQueues(settings, settings.source.rocketmq, stack)
    if chosen is None:
        raise ConfigError("dead_letters names no topic of Kafka", hint="leave --in topic out")
    return KafkaLetterTopic(settings, chosen.kafka.topic)


def open_place(
    settings: Settings, name: PlaceName | None, tell: Callable[[str], None], stack: ExitStack
) -> LetterPlace:
    """The dead letters of a place.

    Args:
        name: The place; None for the one in which the daemon stores them.
        stack: Closes the state file and the topic.

    Raises:
        ConfigError: The configuration names no topic.
        NoStateError: There is no state file.
        StateError: It cannot be used.
        UnavailableError: The topic cannot be read.
    """
    file = LettersBeside(settings.state.dir, lambda damage: tell(f"dead letter {damage.where} is damaged and left out"))
    stack.callback(file.close)
    topic = _topic_of(settings, name, stack)
    if topic is not None:
        if others := file.totals(Chosen()).letters:
            tell(f"{others:,} more are in the state folder: --in state")
        return TopicPlace(topic, file)
    if isinstance(settings.dead_letters, DeadLetterSettings):
        tell("this command sees the dead letters in the state folder only")
    return StatePlace(file)
