"""Message ids of dead letters: which of them count as settled, and others in their place. Reads no file."""

from __future__ import annotations

import xxhash

from sidecar.config.model import Settings
from sidecar.config.tags import OFFSET_MSG_ID
from sidecar.core.messages.ids import id_reader
from sidecar.errors import ConfigError
from sidecar.letters.columns import LetterColumns, LetterMessage


class LetterIds:
    """What `dedup` says of dead letters that are produced again.

    Args:
        as_new: Whether each gets another id.

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
        elif field is not None and dedup.remembers_ids and dedup.by != OFFSET_MSG_ID:  # it gets another
            self._read = id_reader(field, dedup.as_, LetterColumns())

    def is_duplicate(self, message: LetterMessage) -> bool:
        """Whether the daemon would drop the message: the id of a dead letter counts as settled."""
        return self._read is not None and self._read(message.tp, [message])[0] is not None

    def headers(self, message: LetterMessage, letter_id: int) -> list[tuple[str, str | bytes | None]]:
        """The headers with which it is produced again."""
        if not self._header:
            return list(message.original.headers)
        return [
            (name, self._new(value, letter_id) if name == self._header and value is not None else value)
            for name, value in message.original.headers
        ]

    def _new(self, value: bytes, letter_id: int) -> bytes:
        """Another id, the same each time: a letter that is produced twice must stay a duplicate of itself."""
        text = b"%s-replay-%s-%d" % (value, self._token.encode(), letter_id)
        return b"%d" % (xxhash.xxh3_64_intdigest(text) >> 1) if self._as_int else text
