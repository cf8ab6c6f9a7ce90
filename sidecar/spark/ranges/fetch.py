"""The messages of one offset range, read by the daemon's own client and gathered into runs. Knows no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
from confluent_kafka import Message

from sidecar.config.source.kafka import KafkaSource
from sidecar.core.records import Run, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.spark.ranges.broker import REQUEST_S, outsider
from sidecar.spark.ranges.gathering import gather
from sidecar.spark.ranges.planning import ExpiredError

SILENCE_S = 60.0
"""Time without messages after which the task of an unfinished range fails, and is retried."""
WAIT_S = 0.05
CHUNK_MESSAGES = 500
QUEUE_KBYTES = 8 << 10
CLIENT: dict[str, Any] = {
    "auto.offset.reset": "error",
    "enable.partition.eof": True,  # reports that only gaps are left of a range
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": QUEUE_KBYTES,
}


def fetch(kafka: KafkaSource, tp: TopicPartition, start: int, end: int) -> Iterator[Run]:
    """All messages of a range, without `end`, as runs.

    Raises:
        UnavailableError: The broker does not return them.
    """
    yield from gather(tp, chunks(kafka, tp, start, end), lambda found: map(len, found), _offset)


def chunks(
    kafka: KafkaSource, tp: TopicPartition, start: int, end: int, most: int = CHUNK_MESSAGES
) -> Iterator[list[Message]]:
    """All messages of a range, without `end`, at most `most` at a time.

    Raises:
        UnavailableError: The broker does not return them.
    """
    with outsider(kafka, **CLIENT) as client:
        client.assign([ck.TopicPartition(tp.topic, tp.partition, start)])
        yield from _messages(client, tp, start, end, most)


def _messages(client: ck.Consumer, tp: TopicPartition, offset: int, end: int, most: int) -> Iterator[list[Message]]:
    chunk, heard_s = CHUNK_MESSAGES, time.monotonic()
    while offset < end:
        messages = client.consume(chunk, WAIT_S)
        if not messages:
            refuse_silence(heard_s, tp, offset)
            continue
        good = _without_errors(client, messages, tp, offset) if any(map(Message.error, messages)) else messages
        offset = _offset(messages[-1]) + (messages[-1].error() is None)  # otherwise it reports the partition's end
        if offset > end:
            good = [message for message in good if _offset(message) < end]
        if good:
            yield good
            sample = max(len(good[i]) for i in (0, len(good) // 2, -1))  # many messages of 1 MB are too much at once
            chunk = max(1, min(most, (QUEUE_KBYTES << 8) // max(1, sample)))
        heard_s = time.monotonic()  # the receiver may have kept this task waiting


def refuse_silence(heard_s: float, tp: TopicPartition, offset: int) -> None:
    """Raise an error if nothing came for too long."""
    if time.monotonic() - heard_s > SILENCE_S:
        raise UnavailableError(f"the broker has returned nothing of {tp}@{offset} for {SILENCE_S:g} s")


def refuse_error(client: ck.Consumer, error: ck.KafkaError | None, tp: TopicPartition, offset: int) -> None:
    """Raise an error in place of a message, unless it is the end of the partition.

    Args:
        client: Asks for the start of the log if that is behind what was to be read.
        error: The error; None for a message.
        offset: The offset up to which it was read.
    """
    if error is None or error.code() == ck.KafkaError._PARTITION_EOF:
        return
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
        low, high = client.get_watermark_offsets(ck.TopicPartition(tp.topic, tp.partition), timeout=REQUEST_S)
        if low > offset:
            raise ExpiredError(tp, offset, low)
        raise UnavailableError(f"{tp}@{offset} cannot be read: its log has the offsets from {low} to {high}")
    raise UnavailableError(f"{tp} cannot be read: {error.str()}")


def _without_errors(client: ck.Consumer, messages: list[Message], tp: TopicPartition, offset: int) -> list[Message]:
    for message in messages:
        refuse_error(client, message.error(), tp, offset)
    return [message for message in messages if message.error() is None]


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
