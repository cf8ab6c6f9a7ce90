"""A prefix of a bucket as a `Storage`: a line is an object, put if absent. Knows no protocol of a store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from sidecar.errors import ConfigError, ZoneError

AHEAD_MAX: Final = 256
"""Limit of lines that are read ahead."""
MARKER: Final = "lock"
"""Shows that a writer began here, and that the store puts nothing over it."""


class Bucket(Protocol):
    """The objects of a store that a reader finds as soon as they are stored. Every call may raise `OSError`.

    After a failure an object may be stored, also later.
    """

    def get(self, key: str) -> bytes | None:
        """The content of an object, None without it."""
        ...

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """The same of several objects."""
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store or replace an object."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Store an object, unless there is one; return False then. That may be of this call: its answer was lost."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects that exist."""
        ...

    def keys(self, prefix: str, after: str = "") -> Iterator[str]:
        """The keys that begin so, in order, those after one of them."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """What follows the prefix in keys, up to the next slash, in order."""
        ...


class ObjectStorage:
    """The objects below a prefix.

    Args:
        prefix: Begins all keys; empty, or with a slash at its end.
        url: The place as a user writes it.
    """

    def __init__(self, bucket: Bucket, prefix: str, url: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._url = url

    def __str__(self) -> str:
        return self._url

    def read(self, name: str) -> bytes | None:
        """See `Storage`."""
        return self._bucket.get(self._prefix + name)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """See `Storage`."""
        self._bucket.put(self._prefix + name, data)

    def new_name(self, name: str) -> str:
        """A name with a random part: a put that failed may be stored later."""
        stem, dot, ending = name.rpartition(".")
        return f"{stem}-{os.urandom(4).hex()}{dot}{ending}"

    def remove(self, names: Iterable[str]) -> None:
        """See `Storage`."""
        self._bucket.delete([self._prefix + name for name in names])

    def sync(self, name: str) -> None:
        """Nothing: a stored object is durable."""

    def files(self, folder: str) -> list[str]:
        """See `Storage`."""
        return [key[len(self._prefix) :] for key in self._bucket.keys(f"{self._prefix}{folder}/")]

    def folders(self, folder: str) -> list[str]:
        """See `Storage`."""
        return list(self._bucket.folders(f"{self._prefix}{folder}/"))

    def has(self, folder: str) -> bool:
        """See `Storage`."""
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        return next(self._bucket.keys(prefix), None) is not None

    def lines(self, folder: str) -> ObjectLog:
        """See `Storage`."""
        return ObjectLog(self._bucket, self._prefix, folder)


class ObjectLog:
    """Lines of which each is an object, named by its number: a segment has one line.

    No lock is needed: of two processes that append as the same writer, the second to store a number learns it. A
    reader asks for the next number, and for more at once if there are many.
    """

    segment_lines = 1
    remembered = 1_024

    def __init__(self, bucket: Bucket, prefix: str, folder: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._folder = folder
        self._ahead: dict[int, bytes] = {}
        self._width = 1

    def lock(self) -> bool:
        """True; see `LineLog`.

        Raises:
            ConfigError: The store ignores the condition of a put.
        """
        if self._bucket.create(self._marker, b"{}") and self._bucket.create(self._marker, b"{}"):
            raise ConfigError(
                "landing zone: the object store replaces an object that exists, though it was asked not to",
                hint="Use a store that obeys If-None-Match in PutObject, as AWS S3 does",
            )
        return True

    def unlock(self) -> None:
        """Nothing."""

    @property
    def _marker(self) -> str:
        return f"{self._prefix}{self._folder}/{MARKER}"

    def segments(self, first: int) -> list[int]:
        """See `LineLog`."""
        after = self._key(first - 1) if first else ""
        keys = self._bucket.keys(f"{self._prefix}{self._folder}/", after)
        found = (re.fullmatch(r".*/(\d+)\.line", key) for key in keys)
        return [int(match[1]) for match in found if match]

    def name(self, seq: int) -> str:
        """See `LineLog`."""
        return f"{self._folder}/{seq:012d}.line"

    def _key(self, seq: int) -> str:
        return self._prefix + self.name(seq)

    def exists(self, first: int) -> bool:
        """See `LineLog`."""
        return self._bucket.get(self._key(first)) is not None

    def read(self, seq: int, at: int = 0) -> bytes | None:
        """See `LineLog`."""
        if seq not in self._ahead:
            self._ahead = dict(self._fetch(seq))
        line = self._ahead.pop(seq, None)
        return None if line is None else line[at:]

    def _fetch(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """The line, and as many after it as were read before, up to the first that is missing."""
        numbers = range(seq, seq + self._width)
        self._width = min(self._width * 2, AHEAD_MAX)
        lines = self._bucket.get_all([self._key(number) for number in numbers])
        for number, line in zip(numbers, lines, strict=True):
            if line is None:
                self._width = 1
                return
            yield number, line

    def head(self, first: int) -> int:
        """See `LineLog`."""
        return max(self.segments(first), default=first - 1)

    def remove(self, firsts: Iterable[int]) -> None:
        """See `LineLog`."""
        self._bucket.delete([self._key(first) for first in firsts])

    def open(self, first: int) -> ObjectLine:
        """See `LineLog`."""
        return ObjectLine(self._bucket, self._key(first), self._marker)


class ObjectLine:
    """The object of one line.

    A put that failed may still be stored, even after its process has ended. So the line is never given up: `settle`
    stores the same bytes again. Another process that finds the data of the line stores the same bytes too.

    Args:
        marker: Key of an object that is there as long as the zone is.
    """

    def __init__(self, bucket: Bucket, key: str, marker: str) -> None:
        self.end = 0
        self._bucket = bucket
        self._key = key
        self._marker = marker
        self._unsure: bytes | None = None

    def append(self, line: bytes) -> None:
        """See `Lines`."""
        self._unsure = line + b"\n"
        self.settle()

    def settle(self) -> bool:
        """See `Lines`."""
        data = self._unsure
        if data is None:
            return False
        if not self._bucket.create(self._key, data) and self._bucket.get(self._key) != data:
            raise ZoneError(
                f"landing zone: another process has written {self._key} as the same writer",
                hint="Give each sidecar a state.dir of its own, which has the writer's name, and restart this process",
            )
        self._unsure, self.end = None, len(data)
        return True

    def cut(self, _end: int | None = None, /) -> None:
        """Remove a line that is not whole; a whole object is never cut."""
        self._bucket.delete([self._key])

    def mend(self, _at: int, line: bytes, /) -> None:
        """See `Lines`."""
        self._bucket.put(self._key, line + b"\n")

    def in_place(self) -> bool:
        """See `Lines`."""
        return self._bucket.get(self._marker) is not None

    def close(self) -> None:
        """Nothing."""
