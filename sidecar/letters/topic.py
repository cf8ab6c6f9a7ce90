"""Dead letters in a topic: read, and recorded by their origin once replayed. Changes nothing in the topic.

A record is known by its place, which gives the letter its id, and by its origin: a hash of the message's place and
content. Copies of one dead letter have one origin.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import confluent_kafka as ck
import xxhash

from sidecar.config.model import Settings
from sidecar.core.batching import Limits
from sidecar.core.partition_state import derived_scope
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.letters.plan import ReplayCuts, Stream, again
from sidecar.runtime.dead_letters import STORY
from sidecar.sinks.formats import envelope_row
from sidecar.sources.kafka.config import client_config
from sidecar.state.beside import ALL, Chosen, LettersBeside, Outline, Totals
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import TOPIC, ReplayPart, Replays, Target

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
    """The topic of the message."""

    def is_in(self, chosen: Chosen) -> bool:
        """Whether it is chosen, whatever its id is compared with `last_id`."""
        return chosen.topic in (None, self.topic) and chosen._replace(topic=None).takes(self.letter)


class LetterTopic(ABC):
    """A topic as it is when this is made: later records are not read."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.foreign = 0
        """Records that are no dead letters of Sidecar, of those that were read last."""
        self._bounds: dict[int, tuple[int, int]] = {}
        """The first offset and the offset after the last, by the number of a partition."""

    def records(self, after: int = 0) -> Iterator[TopicLetter]:
        """All dead letters, partition by partition; after this id."""
        offset, partition = divmod(after, ID_BASE)
        for number, (low, high) in self._bounds.items():
            if not after or number >= partition:
                start = max(low, offset + 1) if after and number == partition else low
                yield from self._read(number, start, high)

    def within(self, ids: Sequence[int]) -> Iterator[TopicLetter]:
        """The dead letters with these ids, as far as they are there."""
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
    """A topic of Kafka.

    Raises:
        UnavailableError: The broker does not answer, or the topic does not exist.
    """

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


class TopicPlan(Replays):
    """The letters in a topic of which no copy was replayed yet.

    Args:
        letters: The state file, which records what was replayed.
    """

    def __init__(self, topic: LetterTopic, letters: LettersBeside, target: Target, limits: Limits) -> None:
        super().__init__(letters)
        self._topic = topic
        self.source = TOPIC + topic.topic
        self._lanes = ReplayCuts(self.source, target, limits)
        self._token = secrets.token_hex(8)
        self._loaded: dict[int, TopicLetter] = {}
        """What the parts at hand have, by id."""

    def each(self, chosen: Chosen, after: int = 0, limit: int = ALL) -> Iterator[StoredLetter]:
        """The chosen letters, partition by partition, one of each origin."""
        seen = self.origins(self.source)
        for record in self._topic.records(after):
            if limit > 0 and record.origin not in seen and record.is_in(chosen):
                seen.add(record.origin)
                limit -= 1
                yield record.letter

    def totals(self, chosen: Chosen) -> Totals:
        """How many letters are chosen."""
        letters = size_bytes = last_id = 0
        for letter in self.each(chosen):
            letters, size_bytes, last_id = letters + 1, size_bytes + letter.size_bytes, letter.id
        return Totals(letters, size_bytes, last_id)

    def load(self, part: ReplayPart) -> list[StoredLetter]:
        """See `Plan.load`."""
        if any(id_ not in self._loaded for id_ in part.letters):
            self._loaded |= {record.letter.id: record for record in self._topic.within(part.letters)}
        found = (self._loaded[id_].letter for id_ in part.letters if id_ in self._loaded)
        return sorted(found, key=lambda letter: letter.offset)

    def end(self, part: ReplayPart, delivered: Sequence[int], refused: Collection[StoredLetter]) -> None:  # noqa: ARG002
        """See `Plan.end`; what was refused again stays as it is."""
        self.end_origins(part, [(self._loaded[id_].origin, id_) for id_ in delivered])

    def streams(self, chosen: Chosen) -> Iterator[Stream]:
        """See `Plan.streams`; the topic is read piece by piece."""
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
                yield from self._streams(chunk)
                chunk, size_bytes = [], 0
        yield from self._streams(chunk)

    def _streams(self, chunk: Sequence[TopicLetter]) -> Iterator[Stream]:
        """The letters of a piece of the topic, by partition; of two with one place, the topic was created again."""
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
            yield Stream(tp, scope, self._lanes.cut(scope, tp, outlines), again=False)
