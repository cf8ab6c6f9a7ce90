"""Dead letters as messages: columns of their envelopes, and their framing for a sink. Reads no file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from sidecar.core.batching import UNFRAMEABLE
from sidecar.core.records import Details, Fragment, Framer, Header, Original, TopicPartition
from sidecar.runtime.dead_letters import opened
from sidecar.state.interface import StoredLetter

GONE = "the message was gone from the broker when it was stored as a dead letter"


class LetterMessage(NamedTuple):
    """A dead letter's message, with its place at the broker; of a delayed message, the letter has its position."""

    tp: TopicPartition
    offset: int
    original: Original

    @property
    def is_whole(self) -> bool:
        """Whether anything of the message is there: it may have been gone from the broker when it was stored."""
        original = self.original
        return original.timestamp_ms is not None or original.value is not None or bool(original.headers)


def message_of(letter: StoredLetter) -> LetterMessage:
    """The message of a dead letter."""
    if letter.envelope is None:
        return LetterMessage(letter.tp.source, letter.offset, Original(None, None, [], None))
    row = orjson.loads(letter.envelope)
    tp = TopicPartition(row["topic"], row["partition"], row.get("broker", ""))
    return LetterMessage(tp, row["offset"], opened(letter.envelope))


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
    messages = [message_of(letter) for letter in letters]
    whole = [i for i, message in enumerate(messages) if message.is_whole]
    data, left_out = framer.frame(letters[0].tp.source, [messages[i] for i in whole]) if whole else (b"", ())
    without = {whole[i] for i in left_out}
    offsets = array("q", [letters[i].offset for i in whole if i not in without])
    reasons = {letters[i].offset: UNFRAMEABLE for i in without}
    reasons |= {letter.offset: GONE for letter, message in zip(letters, messages, strict=True) if not message.is_whole}
    return Fragment(offsets, data, unframeable=reasons)
