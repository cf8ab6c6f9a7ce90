"""Dead letters of a task as a file beside the checkpoint, which the driver puts into the state. No sink, no broker."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from sidecar.core.records import Attempt
from sidecar.spark.ranges.shared import read, write
from sidecar.state.interface import StoredLetter

STEM_CHARS = 200
"""A file's name has at most 255 characters; a topic alone may have 249."""
_BYTES = ("row", "envelope")
_TEXTS = ("group_name", "reason")


class LetterFiles:
    """Stores the letters of one task attempt: one file per call.

    Args:
        stem: Distinguishes this attempt's files from those of others.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        digest = hashlib.blake2b(stem.encode(), digest_size=16).hexdigest()
        self._stem = stem if len(stem) <= STEM_CHARS else f"{stem[: STEM_CHARS - len(digest)]}{digest}"
        self.names: list[str] = []
        """The files written so far."""

    def put(self, letters: Sequence[StoredLetter]) -> int:
        """Make them durable.

        Raises:
            StateError: They could not be written.
        """
        name = f"{self._stem}-{len(self.names)}"
        write(self._folder / name, b"\n".join(map(_line, letters)))
        self.names.append(name)
        return len(letters)


def letters_in(path: Path) -> list[StoredLetter]:
    """The letters of one file.

    Raises:
        StateError: It cannot be read.
    """
    return [_letter(line) for line in read(path).splitlines()]


def _line(letter: StoredLetter) -> bytes:
    fields = asdict(letter)
    for name in _BYTES:
        fields[name] = None if fields[name] is None else base64.b64encode(fields[name]).decode()
    for name in _TEXTS:  # may have surrogates, which JSON cannot have
        fields[name] = base64.b64encode(fields[name].encode("utf-8", "surrogatepass")).decode()
    fields["attempts"] = [[*attempt[:3], attempt[3].encode("utf-8", "replace").decode()] for attempt in letter.attempts]
    return orjson.dumps(fields)


def _letter(line: bytes) -> StoredLetter:
    fields: dict[str, Any] = orjson.loads(line)
    for name in _BYTES:
        fields[name] = None if fields[name] is None else base64.b64decode(fields[name])
    for name in _TEXTS:
        fields[name] = base64.b64decode(fields[name]).decode("utf-8", "surrogatepass")
    fields["attempts"] = tuple(Attempt(*attempt) for attempt in fields["attempts"])
    return StoredLetter(**fields)
