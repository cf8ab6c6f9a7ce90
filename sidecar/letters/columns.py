"""Dead letters as messages: columns of their envelopes, their ids, and their framing for a sink. Reads no file."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import orjson
import xxhash

from sidecar.config.model import Settings
from sidecar.config.tags import OFFSET_MSG_ID
from sidecar.core.batching import UNFRAMEABLE
from sidecar.core.messages.ids import id_reader
from sidecar.core.records import Fragment, Framer, GetterColumns, Original, TopicPartition
from sidecar.errors import ConfigError
from sidecar.runtime.dead_letters import opened
from sidecar.state.interface import StoredLetter

GONE = "the message was gone from the broker when it was stored as a dead letter"


class LetterMessage(NamedTuple):
    """A dead letter's message, with its place at the broker, which a delayed message's letter lacks."""

    tp: TopicPartition
    offset: int
    original: Original

    @property
    def is_whole(self) -> bool:
        """Whether anything of the message is stored: it may have been gone from the broker by then."""
        original = self.original
        return original.timestamp_ms is not None or original.value is not None or bool(original.headers)


def message_of(letter: StoredLetter) -> LetterMessage:
    """The message of a dead letter."""
    if letter.envelope is None:
        return LetterMessage(letter.tp.source, letter.offset, Original(None, None, [], None))
    row = orjson.loads(letter.envelope)
    tp = TopicPartition(row["topic"], row["partition"], row.get("broker", ""))
    return LetterMessage(tp, row["offset"], opened(letter.envelope))


LETTER_COLUMNS = GetterColumns(
    attrgetter("offset"),
    attrgetter("original.timestamp_ms"),
    attrgetter("original.key"),
    attrgetter("original.headers"),
    attrgetter("original.value"),
    attrgetter("original.details"),
)


def framed(framer: Framer, letters: Sequence[StoredLetter]) -> Fragment:
    """The rows of letters of one partition, given by ascending offset."""
    messages = [message_of(letter) for letter in letters]
    whole = [i for i, message in enumerate(messages) if message.is_whole]
    data, left_out = framer.frame(letters[0].tp.source, [messages[i] for i in whole]) if whole else (b"", ())
    without = {whole[i] for i in left_out}
    offsets = array("q", [letters[i].offset for i in whole if i not in without])
    reasons = {letters[i].offset: UNFRAMEABLE for i in without}
    reasons |= {letter.offset: GONE for letter, message in zip(letters, messages, strict=True) if not message.is_whole}
    return Fragment(offsets, data, unframeable=reasons)


class LetterIds:
    """Rules of `dedup` for dead letters that are produced again.

    Raises:
        ConfigError: `as_new` is wanted, and the id is in no header.
    """

    def __init__(self, settings: Settings, token: str, *, as_new: bool) -> None:
        dedup = settings.dedup
        field = dedup.field
        self._token = token
        self._as_int = dedup.as_ == "int"
        self._header = ""
        self._read = None
        if as_new:
            if field is None or field.kind != "header":
                raise ConfigError(
                    "--as-new gives another id to messages whose id is in a header, and dedup.by names none",
                    hint="leave --as-new out, or send to the receiver",
                )
            self._header = field.name
        elif field is not None and dedup.remembers_ids and dedup.by != OFFSET_MSG_ID:  # the broker assigns another id
            self._read = id_reader(field, dedup.as_, LETTER_COLUMNS)

    def is_duplicate(self, message: LetterMessage) -> bool:
        """Whether the daemon would drop the message: the id of a dead letter counts as settled."""
        return self._read is not None and self._read(message.tp, [message])[0] is not None

    def headers(self, message: LetterMessage, letter_id: int) -> list[tuple[str, str | bytes | None]]:
        """The headers with which the message is produced again."""
        if not self._header:
            return list(message.original.headers)
        return [
            (name, self._new(value, letter_id) if name == self._header and value is not None else value)
            for name, value in message.original.headers
        ]

    def _new(self, value: bytes, letter_id: int) -> bytes:
        """Another id, always the same one: a letter that is produced twice must remain a duplicate of itself."""
        text = b"%s-replay-%s-%d" % (value, self._token.encode(), letter_id)
        return b"%d" % (xxhash.xxh3_64_intdigest(text) >> 1) if self._as_int else text
