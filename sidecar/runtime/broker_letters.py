"""Dead letters at the broker: in a topic of Kafka, or copied by RocketMQ. Decides nothing about messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import confluent_kafka as ck

from sidecar.core.records import DeadLetter, TopicPartition, group_label
from sidecar.errors import UnavailableError
from sidecar.runtime.dead_letters import DeadLetterStore, Originals, SendBack

T = TypeVar("T")

PRODUCE_TIMEOUT_S = 10.0
_PRODUCER = {
    "enable.idempotence": True,
    "message.timeout.ms": 10_000,
    "queue.buffering.max.messages": 2_000_000,  # default 100,000; a batch that is given up may have more messages
    "message.max.bytes": 1_000_000_000,  # default 1 MB; the broker decides how large a message may be
}
STORY = (
    "sidecar-topic", "sidecar-partition", "sidecar-offset", "sidecar-group", "sidecar-reason", "sidecar-status",
    "sidecar-attempts",
)  # fmt: skip
"""Headers after those of the message, for a dead letter in a topic."""


def producer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration of the client that produces dead letters."""
    return {name: value for name, value in config.items() if name != "isolation.level"} | _PRODUCER


class DeadLettersAtBroker:
    """Has RocketMQ's brokers copy dead letters, for redelivery unless the level is -1; `rest` stores the others."""

    def __init__(self, send_back: SendBack, level: int, rest: DeadLetterStore) -> None:
        self._send_back = send_back
        self._level = level
        self._rest = rest
        self._copied: set[tuple[str, TopicPartition, int]] = set()
        """Dead letters already copied by a `store` that has not succeeded: a retry does not copy them twice."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Copy messages; those that are gone, or are part of a batch stored as one message, go to `rest`."""
        left = []
        for letter in letters:
            name = letter.scope, letter.tp, letter.offset
            if name in self._copied or self._send_back(letter.tp, letter.offset, self._level, _known(letter)):
                self._copied.add(name)
            else:
                left.append(letter)
        if left:
            self._rest.store(left)
        self._copied.clear()

    def close(self) -> None:
        self._rest.close()


def _known(letter: DeadLetter) -> str:
    """The id of a message that was held: another message may be in its place by now."""
    details = letter.original.details if letter.original is not None else None
    return details.offset_message_id if details is not None else ""


class DeadLettersInTopic:
    """A `DeadLetterStore` in a Kafka topic: original key, value and headers, and the history in `sidecar-*` headers."""

    def __init__(
        self,
        config: dict[str, Any],
        topic: str,
        originals: Originals,
        make: Callable[[dict[str, Any]], ck.Producer] = ck.Producer,
    ) -> None:
        self._config = producer_config(config)
        self._topic = topic
        self._originals = originals
        self._make = make
        self._producer: ck.Producer | None = None
        self._broken = False
        self._writing = threading.Lock()
        self._closed = False

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Produce them and wait for the broker.

        Raises:
            UnavailableError: The broker did not accept all of them, or the store is closed.
        """
        with self._writing:
            if self._closed:
                raise self._unavailable("the process ends")
            self._produce(letters)

    def _produce(self, letters: Sequence[DeadLetter]) -> None:
        if self._producer is None or self._broken:  # once denied to write, the producer refuses everything permanently
            self._producer, self._broken = self._make(self._config), False
        producer = self._producer
        failures: list[str] = []

        def delivered(error: ck.KafkaError | None, _: ck.Message) -> None:
            if error is not None:
                self._broken = self._broken or error.fatal()
                failures.append(error.str())

        for letter in letters:
            original = self._originals.find(letter)
            self._safely(
                producer.produce, self._topic, value=original.value, key=original.key,
                headers=[*original.headers, *_story(letter)], timestamp=original.timestamp_ms or 0,
                on_delivery=delivered,
            )  # fmt: skip
        left = self._safely(producer.flush, PRODUCE_TIMEOUT_S)
        if left or failures:
            raise self._unavailable(failures[0] if failures else f"{left} not acknowledged in {PRODUCE_TIMEOUT_S:g} s")

    def close(self) -> None:
        with self._writing:
            self._closed = True

    def _safely(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except (ck.KafkaException, SystemError) as error:  # the client reports that it failed permanently
            self._broken = True
            reason = error.__cause__ or error  # a SystemError only reports that there was another error
            raise self._unavailable(f"the producer failed and will be recreated: {reason}") from error

    def _unavailable(self, reason: str) -> UnavailableError:
        return UnavailableError(f"dead letters could not be produced to {self._topic}: {reason}")


def _story(letter: DeadLetter) -> list[tuple[str, bytes]]:
    last = letter.attempts[-1] if letter.attempts else None
    values = [
        letter.tp.topic.encode(),
        b"%d" % letter.tp.partition,
        b"%d" % letter.offset,
        group_label(letter.group).encode(),
        letter.reason.encode("utf-8", "replace"),
        b"%d" % (last.status or 0) if last else b"0",
        b"%d" % len(letter.attempts),
    ]
    return list(zip(STORY, values, strict=True))
