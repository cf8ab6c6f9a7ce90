"""A write-ahead log: the changes since a store's files were last made durable. Does not interpret records.

Its name has its number and the salt of its checksums, which no producer knows: `NUMBER-SALT-2.wal`. So no bytes of a
message pass for a record after a torn write.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from sidecar import files
from sidecar.delay.disk.filename import FORM, LOG_SUFFIX, logged_by, logs_of

_HEAD = struct.Struct("<III")
"""Magic, checksum of the rest, bytes of the body."""
_MAGIC = 0x0DE1A106
_MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
WAL_BYTES_MAX = 64 << 20
"""Size of a log at which the files of the hours are made durable, so that another one begins."""
CHECKPOINT = "checkpoint"
"""Name of the file that says which content of the hours' files counts."""


class Wal:
    """One new file of records, which are durable after `sync`.

    Args:
        number: Of the log; another one with this number is removed.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, folder: Path, number: int) -> None:
        if (other := logs_of(folder).get(number)) is not None:
            files.remove(other)
        self.number, self._salt = number, secrets.randbits(32)
        self.path = path = folder / f"{number}-{self._salt:08x}{FORM}{LOG_SUFFIX}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.end = 0
        """Bytes that are written."""
        self.broken: OSError | None = None
        """Why records written here cannot be made durable."""
        files.sync(path.parent)

    @property
    def in_place(self) -> bool:
        """Whether the file is still at its path."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def write(self, body: bytes) -> None:
        """Write a record.

        Raises:
            OSError: It failed; the next record takes the place of this one.
        """
        size = len(body).to_bytes(4, "little")
        crc = zlib.crc32(body, zlib.crc32(size, self._salt))
        self.end = files.write_at(self._fd, b"".join([_MAGIC_BYTES, crc.to_bytes(4, "little"), size, body]), self.end)

    def sync(self) -> None:
        """Make all records durable.

        Raises:
            OSError: It failed, now or before: the system may have dropped what it could not write, so a second attempt
                that succeeds would prove nothing.
        """
        if self.broken is not None:
            raise self.broken
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self.broken = error
            raise

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def records(path: Path, until: int | None = None) -> Iterator[memoryview | int]:
    """The records of a log; a number instead of damaged bytes that are followed by a record.

    Bytes behind the last record were never durable.

    Args:
        until: Its durable bytes, if known: bytes behind them are left out, and missing ones count as damaged.

    Raises:
        OSError: It cannot be read.
    """
    raw = (files.read_from(path) or b"")[:until]
    view, (_, salt), at, lost = memoryview(raw), logged_by(path) or (0, 0), 0, 0
    while at + _HEAD.size <= len(raw):
        magic, crc, size = _HEAD.unpack_from(raw, at)
        end = at + _HEAD.size + size
        if magic == _MAGIC and end <= len(raw) and zlib.crc32(view[at + 8 : end], salt) == crc:
            if lost < at:
                yield at - lost
            yield view[at + _HEAD.size : end]
            at = lost = end
        else:
            found = raw.find(_MAGIC_BYTES, at + 1)
            at = found if found >= 0 else len(raw)
    if until is not None and lost < until:
        yield until - lost
