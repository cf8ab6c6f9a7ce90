"""Dead letters as messages: columns of their envelopes, and their framing for a sink. Reads no file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from sidecar.core.batching import UNFRAMEABLE
from sidecar.core.records import Details, Fragment, Framer, Header, Original
from sidecar.runtime.dead_letters import opened
from sidecar.state.interface import StoredLetter


class LetterMessage(NamedTuple):
    """A dead letter's message."""

    offset: int
    """Its offset at the broker; of a delayed message, the letter has its position."""
    original: Original


def message_of(letter: StoredLetter) -> LetterMessage:
    """The message of a dead letter; what the broker had no more when it was stored is missing."""
    if letter.envelope is None:
        return LetterMessage(letter.offset, Original(None, letter.row, [], None))
    return LetterMessage(orjson.loads(letter.envelope)["offset"], opened(letter.envelope))


class LetterColumns:
    """`records.Columns` for messages of dead letters."""

    def offsets(self, messages: Sequence[LetterMessage]) -> Iterable[int]:
        """The offset of each message."""
        return [message.offset for message in messages]

    def timestamps(self, messages: Sequence[LetterMessage]) -> Iterable[int | None]:
        """The timestamp of each message, None if it has none."""
        return [message.original.timestamp_ms for message in messages]

    def keys(self, messages: Sequence[LetterMessage]) -> Iterable[bytes | None]:
        """The key of each message."""
        return [message.original.key for message in messages]

    def headers(self, messages: Sequence[LetterMessage]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message."""
        return [message.original.headers for message in messages]

    def values(self, messages: Sequence[LetterMessage]) -> Iterable[bytes | None]:
        """The value of each message."""
        return [message.original.value for message in messages]

    def details(self, messages: Sequence[LetterMessage]) -> Iterable[Details | None]:
        """RocketMQ's own attributes of each message, None for other brokers."""
        return [message.original.details for message in messages]


def framed(framer: Framer, letters: Sequence[StoredLetter]) -> Fragment:
    """The rows of letters of one partition, which are in the order of their offsets."""
    first = letters[0]
    tp = first.tp.source
    data, left_out = framer.frame(tp, [message_of(letter) for letter in letters])
    without = set(left_out)
    offsets = array("q", [letter.offset for i, letter in enumerate(letters) if i not in without])
    return Fragment(offsets, data, unframeable={letters[i].offset: UNFRAMEABLE for i in left_out})
