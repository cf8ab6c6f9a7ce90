"""Dead letters of RocketMQ's messages: what is kept of them is the whole message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sidecar.core.records import DeadLetter, Details, Original, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.runtime.broker_letters import DeadLettersAtBroker
from sidecar.runtime.dead_letters import DeadLettersInState, Originals
from sidecar.sinks.formats import envelope_row
from sidecar.state.interface import StoredLetter

QUEUE = TopicPartition("orders", 3, "broker-a")
DETAILS = Details(b"\xff", "7F0000010000559700000000057E5044", [b"k1", b"\xfe"], 2)
PROPERTIES = [("TAGS", b"paid"), ("raw", b"\xff"), ("empty", b"")]
ROW = envelope_row(QUEUE, 7, 5, b"k1 \xfe", (b"paid",), PROPERTIES, b"\0body", DETAILS)


class Kept:
    """Keeps letters in a list."""

    def __init__(self) -> None:
        self.letters: list[StoredLetter] = []

    def put(self, letters: Sequence[StoredLetter]) -> int:
        self.letters += letters
        return len(letters)


def dead_lettered(originals: Originals, row: bytes | None) -> StoredLetter:
    """A letter of this row, as it is kept."""
    kept = Kept()
    DeadLettersInState(kept, originals).store([DeadLetter(QUEUE, 7, "9f3ac2d1", "paid", "bad", row)])
    return kept.letters[0]


def test_a_letter_of_an_envelope_has_all_of_it() -> None:
    """Ids, keys, properties of any bytes and the broker are kept as the row had them."""
    letter = dead_lettered(Originals("envelope", lambda tp, offset: None), ROW)
    assert letter.envelope is not None
    expected = json.loads(ROW) | {"tag": None}
    assert json.loads(letter.envelope) == expected
    assert (letter.broker, letter.partition, letter.offset) == ("broker-a", 3, 7)


def test_a_letter_of_a_bare_value_is_fetched_whole() -> None:
    """Where the row is the value alone, the broker's own copy is kept, with its ids."""
    original = Original(b"k1 \xfe", b"\0body", PROPERTIES, 5, DETAILS)
    letter = dead_lettered(Originals("ndjson", lambda tp, offset: original), b"\0body")
    assert letter.envelope is not None
    assert json.loads(letter.envelope) == json.loads(ROW) | {"tag": None}


def test_letters_that_the_broker_copies_are_not_copied_twice() -> None:
    """Those that were copied before another failed are left out when all are tried again; what cannot be, is kept."""
    copied: list[int] = []
    failing = True

    def send_back(tp: TopicPartition, offset: int, level: int, known: str) -> bool:
        assert (tp, level) == (QUEUE, -1)
        if offset == 8 and failing:
            raise UnavailableError("away")
        copied.append(offset)
        return offset != 9

    kept = Kept()
    store = DeadLettersAtBroker(send_back, -1, DeadLettersInState(kept, Originals("envelope", lambda tp, offset: None)))
    letters = [DeadLetter(QUEUE, offset, "9f3ac2d1", "paid", "bad", ROW) for offset in (7, 8, 9)]
    with pytest.raises(UnavailableError):
        store.store(letters)
    failing = False
    store.store(letters)
    assert (copied, [one.offset for one in kept.letters]) == ([7, 8, 9], [9])


def test_a_held_message_is_copied_only_if_it_is_still_there() -> None:
    """The broker is asked for the very message, since another may be in its place by now."""
    asked: list[str] = []
    store = DeadLettersAtBroker(lambda tp, offset, level, known: bool(asked.append(known)) or True, -1, Nowhere())
    original = Original(b"k1", b"body", PROPERTIES, 5, DETAILS)
    letters = [DeadLetter(QUEUE, offset, "9f3ac2d1", "paid", "bad", ROW) for offset in (7, 8)]
    store.store([letters[0], replace(letters[1], original=original)])
    assert asked == ["", DETAILS.offset_message_id]


class Nowhere:
    """Takes no letter."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Fail."""
        raise AssertionError(letters)

    def close(self) -> None:
        """Nothing to do."""
