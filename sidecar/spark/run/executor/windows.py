"""Windows of message ids as files: a version for each partition and micro-batch. Decides nothing about a message.

Version N is written before the task of micro-batch N reports success, and a task of N begins with the highest version
below N, which no attempt of N can have changed: so a replay makes the same decisions, and a task that was given up long
ago writes the same bytes again. A version is complete: 8 bytes per id (less for Roaring), so 1,000,000 ids are 8 MB per
micro-batch.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from pathlib import Path

from sidecar.core.records import TopicPartition
from sidecar.core.windows.dedup import Window
from sidecar.errors import StateError
from sidecar.spark.run.folder import names, read, write

_HEAD = struct.Struct(">4sIQ")
_MAGIC = b"SCW1"


class Windows:
    """The versions of one partition's window.

    Args:
        root: The run's folder.
        scope: Scope of the partition: a recreated topic has its own windows.
        tp: The partition.
        batch: The micro-batch of this task.
    """

    def __init__(self, root: Path, scope: str, tp: TopicPartition, batch: int) -> None:
        self._folder = root / "ids" / f"{scope}-{tp.partition}"
        self._batch = batch

    def load(self, window: Window) -> None:
        """Fill a fresh window with the ids known before this micro-batch.

        Raises:
            StateError: The file is damaged or cannot be read.
        """
        below = self._below()
        if not below:
            return
        path = self._folder / str(below[-1])
        young, old = _unpack(read(path), path)
        window.load((young, old))

    def save(self, window: Window) -> None:
        """Make the ids known after this micro-batch durable, and remove versions that no replay needs.

        Raises:
            StateError: It could not be written.
        """
        young, old = window.dump()  # in a fixed order, so that every attempt writes the same bytes
        body = struct.pack(">Q", len(young)) + young + old
        write(self._folder / str(self._batch), _HEAD.pack(_MAGIC, zlib.crc32(body), len(body)) + body)
        for version in self._below()[:-1]:
            with contextlib.suppress(OSError):
                (self._folder / str(version)).unlink()

    def _below(self) -> list[int]:
        return sorted(int(name) for name in names(self._folder) if name.isdigit() and int(name) < self._batch)


def _unpack(raw: bytes, path: Path) -> tuple[bytes, bytes]:
    body = raw[_HEAD.size :]
    if len(raw) < _HEAD.size + 8 or _HEAD.unpack_from(raw) != (_MAGIC, zlib.crc32(body), len(body)):
        raise StateError(
            f"the message ids in {path} are damaged",
            hint="restore the file from a copy; without it, repeats of earlier ids are not recognized",
        )
    size = struct.unpack_from(">Q", body)[0]
    return body[8 : 8 + size], body[8 + size :]
