"""Opens, reads and completes the changelog of a partition that is taken over. Keeps nothing of it but whose it is.

A topic's partition 0 has the mark of the group that used it first, which is its owner for good: marks of groups that
came at the same moment lie behind it, each under a key of its own, so compaction keeps their order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException, Message

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.kafka.clients import reader_config
from sidecar.delay.changelog.kafka.producer import Appender
from sidecar.delay.changelog.kafka.topics import Topics
from sidecar.errors import UnavailableError
from sidecar.owner import Owner, read
from sidecar.sources.kafka.reach import text_of

MARK = b"o"
"""The kind of the record. Versions that do not know it ignore it."""
_KEY_BYTES = 9


def mark_entry(owner: Owner) -> ChangelogEntry:
    """A mark, under a key of its own."""
    return ChangelogEntry(MARK + os.urandom(_KEY_BYTES - 1), owner.marked())


def read_mark(record: ChangelogRecord) -> Owner | None:
    """The owner in a record; None if the record is not a mark."""
    if not record.key or record.key[:1] != MARK or len(record.key) != _KEY_BYTES or record.value is None:
        return None  # another program's records may have no key
    try:
        return read(record.value)
    except ValueError:
        return None


def refuse_foreign(me: Owner, found: Owner, servers: str, name: str) -> None:
    """Refuse a topic of another group.

    Raises:
        ConfigError: It is one.
    """
    store = f"the topic {name} of Kafka at {servers}, which holds delayed messages,"
    me.refuse(found, store, "set delay.changelog.topic so that each group has its own", "delete the topic")


PATIENCE_S = 10.0
"""How long nothing may be read, or acknowledged."""
BATCH_RECORDS = 1_000
UNACKNOWLEDGED_MAX_BYTES = 16 << 20
CHUNK_BYTES = 128 << 10
_ENTRY_BYTES = 200
"""Memory that an entry takes beyond key and value while it is not acknowledged."""


class KafkaRestorer:
    """A `Restorer`. Entries of several partitions are appended one after another.

    Args:
        patience_s: How long nothing may be read, or acknowledged.
    """

    def __init__(self, topics: Topics, patience_s: float = PATIENCE_S) -> None:
        self._topics = topics
        self._patience_s = patience_s
        self._appending = threading.Lock()
        self._appender: Appender | None = None
        self._claiming = threading.Lock()
        self._ours: set[int] = set()
        """The topics that have the mark of this group."""

    def open(self, tp: TopicPartition) -> int:
        """Open the topic; one without a mark gets this group's mark.

        Raises:
            ConfigError: The topic cannot be used, or is another group's.
            UnavailableError: No broker answers.
        """
        number = self._topics.open(tp)
        with self._claiming:
            if number not in self._ours:
                self._claim(tp)
                self._ours.add(number)
        return number

    def refuse_foreign(self, name: str) -> bool:
        """Refuse a topic that is another group's; return whether it has a mark.

        Raises:
            ConfigError: It is another group's.
            UnavailableError: It cannot be read.
        """
        found = self._owner(name)
        if found is not None:
            refuse_foreign(self._topics.owner, found, self._topics.servers, name)
        return found is not None

    def _claim(self, tp: TopicPartition) -> None:
        name = self._name(tp)
        if not self.refuse_foreign(name):
            self.append(TopicPartition(tp.topic, 0), [mark_entry(self._topics.owner)])
            self.refuse_foreign(name)

    def _owner(self, name: str) -> Owner | None:
        reading = _Reading(self._topics, name, 0, 0, self._patience_s)
        with closing(reading):
            marks = map(read_mark, chain.from_iterable(reading.run()))
            return next((mark for mark in marks if mark is not None), None)

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        """Append the entries; return the last offset, or -1 without entries."""
        if not self._appending.acquire(timeout=self._patience_s):
            raise UnavailableError(f"{self._name(tp)}: other partitions wait for Kafka at {self._topics.servers}")
        try:
            if self._appender is None:
                self._appender = Appender(self._topics)
            return _Appending(self._appender, tp, self._patience_s).run(entries)
        except BaseException:
            self._drop()  # entries that the caller takes for lost must not be appended later
            raise
        finally:
            self._appending.release()

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        """Read in batches of at most 1,000 records."""
        if end <= begin:
            return
        reading = _Reading(self._topics, self._name(tp), tp.partition, begin, self._patience_s)
        try:
            yield from reading.run(end)
        finally:
            reading.close()

    def close(self) -> None:
        """Disconnect; nothing is appended afterwards unless `append` is called again."""
        with self._appending:
            self._drop()

    def _drop(self) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            appender.close()

    def _name(self, tp: TopicPartition) -> str:
        return self._topics.name(tp.topic)


class _Appending:
    """One `append`, with bounds for memory and time."""

    def __init__(self, appender: Appender, tp: TopicPartition, patience_s: float) -> None:
        self._appender = appender
        self._tp = tp
        self._patience_s = patience_s
        self._held_bytes = 0
        self._last = -1

    def run(self, entries: Iterable[ChangelogEntry]) -> int:
        """Append all, and wait."""
        chunk: list[ChangelogEntry] = []
        chunk_bytes = 0
        for entry in entries:
            chunk.append(entry)
            chunk_bytes += len(entry.key) + len(entry.value or b"") + _ENTRY_BYTES
            if chunk_bytes >= CHUNK_BYTES:
                self._append(chunk, chunk_bytes)
                self._await(UNACKNOWLEDGED_MAX_BYTES)
                chunk, chunk_bytes = [], 0
        if chunk:
            self._append(chunk, chunk_bytes)
        self._await(0)
        return self._last

    def _append(self, chunk: Sequence[ChangelogEntry], size: int) -> None:
        self._held_bytes += size
        self._appender.append(self._tp, chunk, partial(self._done, size))

    def _done(self, size: int, offset: int) -> None:
        self._last = offset
        self._held_bytes -= size

    def _await(self, most_bytes: int) -> None:
        """Wait until at most this much is not acknowledged."""
        deadline_s, last = time.monotonic() + self._patience_s, self._last
        while self._held_bytes > most_bytes:
            if self._appender.broken:
                raise UnavailableError(self._appender.broken)
            if time.monotonic() > deadline_s:
                raise UnavailableError(self._appender.waiting or "entries were not acknowledged in time")
            self._appender.serve(0.1)
            if self._last != last:
                deadline_s, last = time.monotonic() + self._patience_s, self._last


class _Reading:
    """One `read`, with its consumer."""

    def __init__(self, topics: Topics, name: str, partition: int, begin: int, patience_s: float) -> None:
        self._begin = begin
        self._where = f"the partition {partition} of {name} of Kafka at {topics.servers}"
        self._patience_s = patience_s
        self._reason = "no answer"
        config: dict[str, Any] = {**reader_config(topics.kafka), "error_cb": self._on_error}
        self._consumer = ck.Consumer(config)
        self._consumer.assign([ck.TopicPartition(name, partition, begin)])  # OFFSET_BEGINNING takes 0.5 s to be found

    def run(self, end: int | None = None) -> Iterator[Sequence[ChangelogRecord]]:
        """Batches of records below `end`; without it, up to the end of the partition as it is then."""
        position = self._begin
        while end is None or position < end:
            messages = self._fetch()
            ends = [self._end(message, error) for message in messages if (error := message.error()) is not None]
            end = max(ends) if end is None and ends else end
            records = _records([message for message in messages if message.error() is None] if ends else messages)
            if records and records[0].offset < position:
                raise self._unavailable("the topic was created again")
            position = max([position, *ends, *(record.offset + 1 for record in records[-1:])])
            while records and end is not None and records[-1].offset >= end:
                records.pop()
            if records:
                yield records

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def _fetch(self) -> list[Message]:
        """At least one message, including the client's reports of the partition's end."""
        messages = self._consume(1, self._patience_s)
        if not messages:
            raise self._unavailable(self._reason)
        return messages + self._consume(BATCH_RECORDS - 1, 0)

    def _consume(self, count: int, timeout_s: float) -> list[Message]:
        try:
            return self._consumer.consume(count, timeout_s)
        except KafkaException as error:
            raise self._unavailable(text_of(error.args[0])) from error

    def _end(self, message: Message, error: KafkaError) -> int:
        """The end of the partition, if the client reports it."""
        if error.code() != KafkaError._PARTITION_EOF:
            raise self._unavailable(text_of(error))
        return message.offset() or 0

    def _on_error(self, error: KafkaError) -> None:
        self._reason = text_of(error)

    def _unavailable(self, reason: str) -> UnavailableError:
        return UnavailableError(f"{self._where} could not be read: {reason}")


def _records(messages: Sequence[Message]) -> list[ChangelogRecord]:
    columns: Any = zip(
        map(Message.offset, messages), map(Message.key, messages), map(Message.value, messages), strict=True
    )
    return list(map(ChangelogRecord._make, columns))
