"""Puts messages into Kafka for tests, fast, to chosen partitions, plain or in transactions. Nothing is read in here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

_FLUSH_TIMEOUT_S = 60.0
_FEW = 1_000


class Outgoing(NamedTuple):
    """A message to produce; a null value is a tombstone, partition -1 lets the client choose."""

    partition: int = -1
    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    timestamp_ms: int = 0


def make_producer(bootstrap: str, refused: list[KafkaError] | None = None, **properties: Any) -> Producer:
    """A producer that keeps the order and gathers large batches; underscores in property names stand for dots.

    Args:
        bootstrap: `host:port` of the broker.
        refused: Takes the error of each message that could not be delivered.
        properties: More librdkafka properties.
    """
    errors = [] if refused is None else refused
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "log_level": 3,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "message.max.bytes": 4_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            # A call of Python for each message that arrived well would halve the rate.
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: errors.append(error),
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
    )


def produce(bootstrap: str, topic: str, messages: Iterable[Outgoing], **properties: Any) -> int:
    """Produce all messages, wait until the broker has them, and give their number back.

    Raises:
        AssertionError: The broker refused one, or did not take all within 60 s after the last.
    """
    refused: list[KafkaError] = []
    rest = iter(messages)
    first = list(islice(rest, _FEW))
    if len(first) < _FEW:  # an idempotent producer waits 0.5 s for its id; with one request at a time the order stays
        properties = {"enable_idempotence": False, "max_in_flight": 1} | properties
    producer = make_producer(bootstrap, refused, **properties)
    count = _send(producer, topic, chain(first, rest))
    _flush(producer, refused)
    return count


def produce_transaction(
    bootstrap: str, topic: str, messages: Iterable[Outgoing], *, transactional_id: str = "tests", commit: bool = True
) -> int:
    """Produce all messages in one transaction, which is committed or aborted at the end; give their number back.

    Either way a marker takes one offset of each partition after the messages.
    """
    refused: list[KafkaError] = []
    producer = make_producer(bootstrap, refused, transactional_id=transactional_id)
    producer.init_transactions(_FLUSH_TIMEOUT_S)
    producer.begin_transaction()
    count = _send(producer, topic, messages)
    _flush(producer, refused)
    finish: Callable[[float], None] = producer.commit_transaction if commit else producer.abort_transaction
    finish(_FLUSH_TIMEOUT_S)
    return count


def _send(producer: Producer, topic: str, messages: Iterable[Outgoing]) -> int:
    send, count = producer.produce, 0
    for count, (partition, value, key, headers, timestamp_ms) in enumerate(messages, 1):
        while True:
            try:
                # An empty list of headers is a fault to the client, an absent one is not.
                if headers:
                    send(topic, value, key, partition, timestamp=timestamp_ms, headers=list(headers))
                else:
                    send(topic, value, key, partition, timestamp=timestamp_ms)
                break
            except BufferError:
                producer.poll(0.1)
        if count % 10_000 == 0:
            producer.poll(0)
    return count


def _flush(producer: Producer, refused: list[KafkaError]) -> None:
    left = producer.flush(_FLUSH_TIMEOUT_S)
    assert not refused, f"{len(refused)} messages were refused, the first: {KafkaException(refused[0])}"
    assert left == 0, f"{left} messages were not taken within {_FLUSH_TIMEOUT_S:g} s"
