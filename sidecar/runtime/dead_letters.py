"""Dead letters in the state folder, and the thread that stores them there or elsewhere. Decides nothing about them."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import orjson
import structlog

from sidecar.core.records import DeadLetter, Details, Original, Place, TopicPartition, group_label
from sidecar.errors import StateError
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sinks.formats import envelope_row
from sidecar.state.interface import StoredLetter

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


class DeadLettersInState:
    """A `DeadLetterStore` in the state folder, with the letters' envelopes, so that they can be sent again."""

    def __init__(self, keeper: Keeper, originals: Originals) -> None:
        self._keeper = keeper
        self._originals = originals
        self._writing = threading.Lock()
        self._closed = False

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Make the letters durable; raises `StateError` if there is no room for them, or the store is closed."""
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
