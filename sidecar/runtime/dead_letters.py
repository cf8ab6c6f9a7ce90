"""Stores of dead letters: the state, or a topic. Run on a separate thread; decide nothing about messages."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import confluent_kafka as ck
import orjson
import structlog

from sidecar.config.failures import DeadLetterSettings
from sidecar.config.model import Settings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import DeadLetter, Details, Original, Place, TopicPartition, group_label
from sidecar.errors import StateError, UnavailableError
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sinks.formats import envelope_row
from sidecar.sources.kafka.config import client_config
from sidecar.state.interface import StoredLetter

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
Fetch = Callable[[TopicPartition, int], Original | None]
SendBack = Callable[[TopicPartition, int, int, str], bool]
"""Copies a message within RocketMQ; False if it cannot be copied. See `sources.base.TakesBack.send_back`."""


class DeadLetterStore(Protocol):
    """Stores dead letters durably."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Make these dead letters durable; harmless if repeated.

        Raises:
            SidecarError: They could not be stored; retry later.
        """
        ...

    def close(self) -> None:
        """Wait for writes under way, and prevent later writes on any thread. Harmless if repeated."""
        ...


class Keeper(Protocol):
    """The part of `state.Letters` that stores dead letters."""

    def put(self, letters: Sequence[StoredLetter]) -> int:
        """Store dead letters and return the number of new ones; raises `StateError` if there is no room for all."""
        ...


class Originals:
    """Finds the whole message of a dead letter: in its row if that contains all of it, otherwise at the broker."""

    def __init__(self, format: str, fetch: Fetch) -> None:  # noqa: A002
        self._format = format
        self._fetch = fetch

    def find(self, letter: DeadLetter) -> Original:
        """The message; if it is gone from the broker, as much of it as the row contains."""
        if self._format == "envelope" and letter.row is not None:
            return opened(letter.row)
        if self._format == "row" and letter.row is not None:
            return _unpacked(letter.row)
        fetched = letter.original or self._fetch(letter.tp, letter.offset)
        return fetched if fetched is not None else Original(None, letter.row, [], None)


def opened(row: bytes) -> Original:
    """The message of a row of the format `envelope`."""
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
    from sidecar.zone.rows import unpack  # its package needs pyarrow, which other formats do not

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
    """Configuration of the client that produces dead letters."""
    return {name: value for name, value in config.items() if name != "isolation.level"} | _PRODUCER


def open_dead_letters(
    settings: Settings, keeper: Keeper, fetch: Fetch, send_back: SendBack | None = None
) -> DeadLetterStore:
    """Open the store of dead letters that the settings name.

    Args:
        keeper: Stores them if no topic is named.
        send_back: Hands a message back; RocketMQ only.
    """
    place, row_format = settings.dead_letters, settings.sink.chosen.row_format
    return dead_letter_store(place, row_format, settings.source.kafka_, keeper, fetch, send_back)


def dead_letter_store(
    place: Literal["state"] | DeadLetterSettings,
    row_format: str,
    kafka: KafkaSettings | None,
    keeper: Keeper,
    fetch: Fetch,
    send_back: SendBack | None = None,
) -> DeadLetterStore:
    """Open the store of dead letters at a place.

    Args:
        place: Value of the setting `dead_letters`.
        row_format: The sink's format.
        kafka: The source, if it is Kafka.
        keeper: Stores them if no topic is named.
        fetch: Reads a message again.
        send_back: Hands a message back; RocketMQ only.
    """
    originals = Originals(row_format, fetch)
    if isinstance(place, DeadLetterSettings) and place.rocketmq:
        assert send_back is not None
        return DeadLettersAtBroker(send_back, place.delay_level, DeadLettersInState(keeper, originals))
    if isinstance(place, DeadLetterSettings):
        assert kafka is not None
        return DeadLettersInTopic(client_config(kafka), place.kafka.topic, originals)
    return DeadLettersInState(keeper, originals)


class DeadLettersInState:
    """A `DeadLetterStore` in the state folder, with the letters' envelopes, so that they can be sent again."""

    def __init__(self, keeper: Keeper, originals: Originals) -> None:
        self._keeper = keeper
        self._originals = originals
        self._writing = threading.Lock()
        self._closed = False

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Make the letters durable.

        Raises:
            StateError: There is no room for them, or the store is closed.
        """
        at_ms = int(time.time() * 1000)
        stored = [StoredLetter.of(letter, at_ms=at_ms, envelope=self._envelope(letter)) for letter in letters]
        with self._writing:
            self._check_open()
            self._keeper.put(stored)

    def close(self) -> None:
        with self._writing:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("dead letters are stored no more: the process ends")

    def _envelope(self, letter: DeadLetter) -> bytes:
        self._check_open()  # reading a message again may take seconds
        original = self._originals.find(letter)
        return envelope_row(
            letter.tp, letter.offset, timestamp_ms=original.timestamp_ms, key=original.key, tags=(),
            headers=original.headers, value=original.value, details=original.details,
        )  # fmt: skip


class DeadLettersAtBroker:
    """A `DeadLetterStore` of RocketMQ's brokers, which copy to the group's dead-letter topic, or for redelivery.

    Args:
        level: Delay level of the redelivery, -1 for none.
        rest: Stores dead letters whose messages cannot be copied.
    """

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


PATIENCE_S = 5.0
"""Time that `close` waits for letters being stored: longer than a write waits for a lock on the state file."""
LINES_MAX = 10

log = structlog.get_logger()


class DeadLetterWriter:
    """Stores dead letters one list after the other: each may wait seconds for the broker."""

    def __init__(self, store: DeadLetterStore, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox
        self._thread = Worker("dead-letters")
        self.tap: Callable[[Sequence[DeadLetter]], None] | None = None
        """Called with dead letters while a tap is open."""

    def store(self, letters: Sequence[DeadLetter], stored: Callable[[str, float], object]) -> None:
        """Begin to store; the inbox gets a call with the reason of a failure, empty if the letters are durable."""
        if self.tap is not None:
            self.tap(letters)
        self._thread.do(lambda: self._inbox.put(partial(stored, self._try(letters))))

    def _try(self, letters: Sequence[DeadLetter]) -> str:
        try:
            self._store.store(letters)
        except Exception as error:  # noqa: BLE001  # tried again; the messages stay unsettled meanwhile
            return str(error) or type(error).__name__
        for letter in letters[:LINES_MAX]:
            log.warning(
                "message.dead_lettered", **letter.tp.fields(), offset=letter.offset,
                group=group_label(letter.group), reason=letter.reason,
            )  # fmt: skip
        return ""

    def close(self) -> None:
        """Drop lists that were not begun, whose messages come again, and wait for the others; then write nothing."""
        self._thread.close(PATIENCE_S)
        self._store.close()
