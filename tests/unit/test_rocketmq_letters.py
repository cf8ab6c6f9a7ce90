"""Dead letters of RocketMQ's messages: what is kept of them is the whole message."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sidecar.core.records import DeadLetter, Details, TopicPartition
from sidecar.daemon.graveyards import Originals, StateGraveyard
from sidecar.sinks.formats import envelope_row
from sidecar.sources.base import Original
from sidecar.state.interface import StoredLetter

QUEUE = TopicPartition("orders", 3, "broker-a")
DETAILS = Details(b"\xff", "7F0000010000559700000000057E5044", [b"k1", b"\xfe"], 2)
PROPERTIES = [("TAGS", b"paid"), ("raw", b"\xff"), ("empty", b"")]
ROW = envelope_row(QUEUE, 7, 5, b"k1 \xfe", (b"paid",), PROPERTIES, b"\0body", DETAILS)


class Kept:
    """Keeps letters in a list."""

    def __init__(self) -> None:
        self.letters: list[StoredLetter] = []

    def put_dead_letters(self, letters: Sequence[StoredLetter]) -> int:
        self.letters += letters
        return len(letters)


def buried(originals: Originals, row: bytes | None) -> StoredLetter:
    """A letter of this row, as it is kept."""
    kept = Kept()
    StateGraveyard(kept, originals).bury([DeadLetter(QUEUE, 7, "9f3ac2d1", "paid", "bad", row)])
    return kept.letters[0]


def test_a_letter_of_an_envelope_has_all_of_it() -> None:
    """Ids, keys, properties of any bytes and the broker are kept as the row had them."""
    letter = buried(Originals("envelope", lambda tp, offset: None), ROW)
    assert letter.envelope is not None
    expected = json.loads(ROW) | {"tag": None}
    assert json.loads(letter.envelope) == expected
    assert (letter.broker, letter.partition, letter.offset) == ("broker-a", 3, 7)


def test_a_letter_of_a_bare_value_is_fetched_whole() -> None:
    """Where the row is the value alone, the broker's own copy is kept, with its ids."""
    original = Original(b"k1 \xfe", b"\0body", PROPERTIES, 5, DETAILS)
    letter = buried(Originals("ndjson", lambda tp, offset: original), b"\0body")
    assert letter.envelope is not None
    assert json.loads(letter.envelope) == json.loads(ROW) | {"tag": None}
