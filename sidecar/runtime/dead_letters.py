"""Where dead letters go: the state, or a topic. Runs on a thread of its own; decides nothing about messages."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import confluent_kafka as ck
import orjson

from sidecar.config.failures import DeadLetters
from sidecar.config.model import Settings
from sidecar.core.records import DeadLetter, Details, Place, TopicPartition, group_label
from sidecar.errors import StateError, UnavailableError
from sidecar.sinks.formats import envelope_row
from sidecar.sources.base import Original
from sidecar.sources.kafka.config import client_config
from sidecar.state.interface import StoredLetter

T = TypeVar("T")

PRODUCE_TIMEOUT_S = 10.0
_PRODUCER = {
    "enable.idempotence": True,
    "message.timeout.ms": 10_000,
    "queue.buffering.max.messages": 2_000_000,  # 100,000 by default, fewer than a batch that is given up may have
    "message.max.bytes": 1_000_000_000,  # 1 MB by default; how large a message may be is the broker's to say
}
Fetch = Callable[[TopicPartition, int], Original | None]
SendBack = Callable[[TopicPartition, int, int], bool]
"""Copies a message (its place, offset and delay level) within RocketMQ; False when it cannot."""


class DeadLetterStore(Protocol):
    """Keeps dead letters."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Make them durable; harmless when repeated.

        Raises:
            SidecarError: They could not be stored; try again later.
        """
        ...

    def close(self) -> None:
        """Wait for what is being written, and write nothing after it, on whatever thread. Harmless when repeated."""
        ...


class Keeper(Protocol):
    """What of `state.Letters` keeps them."""

    def put(self, letters: Sequence[StoredLetter]) -> int:
        """Keep these dead letters and return how many were new; raises `StateError` when there is no room for all."""
        ...


class Originals:
    """Finds the whole message of a dead letter: in its row where that has all of it, else at the broker.

    Args:
        format: The sink's format.
        fetch: Reads one message again.
    """

    def __init__(self, format: str, fetch: Fetch) -> None:  # noqa: A002
        self._format = format
        self._fetch = fetch

    def find(self, letter: DeadLetter) -> Original:
        """The message; where it is gone from the broker, as much of it as the row tells."""
        if self._format == "envelope" and letter.row is not None:
            return _opened(letter.row)
        if self._format == "row" and letter.row is not None:
            return _unpacked(letter.row)
        fetched = self._fetch(letter.tp, letter.offset)
        return fetched if fetched is not None else Original(None, letter.row, [], None)


def _opened(row: bytes) -> Original:
    fields: dict[str, Any] = orjson.loads(row)
    pairs = fields["properties"].items() if "properties" in fields else fields["headers"]
    headers = [(_text(name), _bytes(value)) for name, value in pairs]
    return Original(_field(fields, "key"), _field(fields, "value"), headers, fields["timestamp"], _details(fields))


def _details(row: dict[str, Any]) -> Details | None:
    if "message_id" not in row:
        return None
    keys = [_bytes(key) or b"" for key in row["keys"]]
    place = Place(row["topic"], row["broker"], row["partition"], row["offset"])
    return Details(_bytes(row["message_id"]), row["offset_message_id"], keys, row["reconsume_times"], place)


def _unpacked(row: bytes) -> Original:
    from sidecar.zone.rows import unpack  # its package needs pyarrow, which other formats do without

    unpacked = unpack(row)
    return Original(unpacked.key, unpacked.value, unpacked.headers, unpacked.timestamp_ms)


def _field(row: dict[str, Any], name: str) -> bytes | None:
    encoded = row.get(f"{name}_base64")
    return base64.b64decode(encoded) if encoded is not None else _bytes(row.get(name))


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return value.encode() if value is not None else None


def _text(name: Any) -> str:
    return name if isinstance(name, str) else base64.b64decode(name["base64"]).decode("utf-8", "surrogateescape")


def producer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the client that produces dead letters.

    Args:
        config: What every client needs.
    """
    return {name: value for name, value in config.items() if name != "isolation.level"} | _PRODUCER


def open_dead_letters(
    settings: Settings, keeper: Keeper, fetch: Fetch, send_back: SendBack | None = None
) -> DeadLetterStore:
    """The place that these settings name for dead letters.

    Args:
        settings: The configuration.
        keeper: Keeps them where no topic is named.
        fetch: Reads one message again.
        send_back: Hands one message back; of RocketMQ alone.
    """
    originals, chosen = Originals(settings.sink.chosen.row_format, fetch), settings.dead_letters
    if isinstance(chosen, DeadLetters) and chosen.rocketmq:
        assert send_back is not None
        return DeadLettersAtBroker(send_back, chosen.delay_level, DeadLettersInState(keeper, originals))
    if isinstance(chosen, DeadLetters):
        return DeadLettersInTopic(client_config(settings.source.kafka), chosen.kafka.topic, originals)
    return DeadLettersInState(keeper, originals)


class DeadLettersInState:
    """Dead letters in the state folder, with their envelopes, so that they can be sent again.

    Args:
        keeper: Keeps them.
        originals: Finds the messages.
    """

    def __init__(self, keeper: Keeper, originals: Originals) -> None:
        self._keeper = keeper
        self._originals = originals
        self._writing = threading.Lock()
        self._closed = False

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Make them durable.

        Raises:
            StateError: There is no room for them, or the store is closed.
        """
        at_ms = int(time.time() * 1000)
        stored = [StoredLetter.of(letter, at_ms=at_ms, envelope=self._envelope(letter)) for letter in letters]
        with self._writing:
            self._check_open()
            self._keeper.put(stored)

    def close(self) -> None:
        """Wait for what is being written; the state may be closed then."""
        with self._writing:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("dead letters are stored no more: the process ends")

    def _envelope(self, letter: DeadLetter) -> bytes:
        self._check_open()  # a message that is read again takes seconds at worst
        original = self._originals.find(letter)
        return envelope_row(
            letter.tp, letter.offset, timestamp_ms=original.timestamp_ms, key=original.key, tags=(),
            headers=original.headers, value=original.value, details=original.details,
        )  # fmt: skip


class DeadLettersAtBroker:
    """Dead letters that RocketMQ's brokers copy by themselves: to the group's dead letters, or to come again.

    Args:
        send_back: Has one copied.
        level: After which delay it comes again, -1 for never.
        rest: Keeps those that cannot be copied.
    """

    def __init__(self, send_back: SendBack, level: int, rest: DeadLetterStore) -> None:
        self._send_back = send_back
        self._level = level
        self._rest = rest
        self._copied: set[tuple[str, TopicPartition, int]] = set()
        """Of letters that were not all stored yet: when they are tried again, these are not copied twice."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Have them copied; those that are gone, or stand in a batch that is one message, go to the rest."""
        left = []
        for letter in letters:
            name = letter.scope, letter.tp, letter.offset
            if name in self._copied or self._send_back(letter.tp, letter.offset, self._level):
                self._copied.add(name)
            else:
                left.append(letter)
        if left:
            self._rest.store(left)
        self._copied.clear()

    def close(self) -> None:
        """Close the rest."""
        self._rest.close()


class DeadLettersInTopic:
    """Dead letters in a Kafka topic: key, value and headers as they were, the story in headers of ours.

    Args:
        config: The client's configuration.
        topic: Where to.
        originals: Finds the messages.
        make: Makes a producer.
    """

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
            UnavailableError: The broker did not take them all, or the store is closed.
        """
        with self._writing:
            if self._closed:
                raise self._unavailable("the process ends")
            self._produce(letters)

    def _produce(self, letters: Sequence[DeadLetter]) -> None:
        if self._producer is None or self._broken:  # it refuses everything for good, once it was denied to write
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
        """Wait for what is being produced, and produce nothing after it."""
        with self._writing:
            self._closed = True

    def _safely(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except (ck.KafkaException, SystemError) as error:  # how the client tells that it is broken for good
            self._broken = True
            reason = error.__cause__ or error  # a SystemError says nothing but that there was another
            raise self._unavailable(f"its client gave up and will be made anew: {reason}") from error

    def _unavailable(self, reason: str) -> UnavailableError:
        return UnavailableError(f"dead letters could not be produced to {self._topic}: {reason}")


def _story(letter: DeadLetter) -> list[tuple[str, bytes]]:
    last = letter.attempts[-1] if letter.attempts else None
    return [
        ("sidecar-topic", letter.tp.topic.encode()),
        ("sidecar-partition", b"%d" % letter.tp.partition),
        ("sidecar-offset", b"%d" % letter.offset),
        ("sidecar-group", group_label(letter.group).encode()),
        ("sidecar-reason", letter.reason.encode("utf-8", "replace")),
        ("sidecar-status", b"%d" % (last.status or 0) if last else b"0"),
        ("sidecar-attempts", b"%d" % len(letter.attempts)),
    ]
