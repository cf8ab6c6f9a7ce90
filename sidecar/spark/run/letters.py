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
from sidecar.spark.run.folder import read, write
from sidecar.state.interface import StoredLetter

STEM_CHARS = 200
"""A file's name has 255 at most; a topic's alone may have 249."""
_BYTES = ("row", "envelope")
_TEXTS = ("group_name", "reason")


class LetterFiles:
    """Takes the letters of one task attempt: a file each time.

    Args:
        folder: `letters/<micro-batch>` of the run.
        stem: Tells this attempt's files from those of others.
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
    found = asdict(letter)
    for name in _BYTES:
        found[name] = None if found[name] is None else base64.b64encode(found[name]).decode()
    for name in _TEXTS:  # may hold surrogates, which JSON cannot
        found[name] = base64.b64encode(found[name].encode("utf-8", "surrogatepass")).decode()
    found["attempts"] = [[*one[:3], one[3].encode("utf-8", "replace").decode()] for one in letter.attempts]
    return orjson.dumps(found)


def _letter(line: bytes) -> StoredLetter:
    found: dict[str, Any] = orjson.loads(line)
    for name in _BYTES:
        found[name] = None if found[name] is None else base64.b64decode(found[name])
    for name in _TEXTS:
        found[name] = base64.b64decode(found[name]).decode("utf-8", "surrogatepass")
    found["attempts"] = tuple(Attempt(*one) for one in found["attempts"])
    return StoredLetter(**found)
