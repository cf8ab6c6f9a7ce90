"""The part of a zone that a query has yet to read. Reads only manifests; it uses no Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from sidecar.errors import ZoneError
from sidecar.storage import Root
from sidecar.zone import Tail, acknowledged


class Behind(NamedTuple):
    """The data that is left to read; rows that are duplicates are included."""

    rows: int
    bytes: int


class Lag:
    """Follows the manifests beside the query, which does not report data that it has not planned.

    Args:
        root: The zone; it may not exist yet.
        consumer: The consumer whose acknowledgements are the beginning.
    """

    def __init__(self, root: Root, consumer: str) -> None:
        self._root = root
        self._consumer = consumer
        self._tail: Tail | None = None
        self._read: dict[str, int] = {}
        self._unread: dict[str, deque[tuple[int, int, int]]] = {}
        self._rows = self._bytes = 0

    def behind(self, read: Mapping[str, int]) -> Behind | None:
        """The data landed after these numbers; None if the zone cannot be read, which the query will report.

        Args:
            read: Writer to the last number read; earlier numbers stay valid.
        """
        try:
            self._take_in()
        except (ZoneError, OSError):
            self._tail = None
            return None
        for writer, seq in read.items():
            self._read[writer] = max(seq, self._read.get(writer, -1))
        for writer, seq in self._read.items():
            self._forget(writer, seq)
        return Behind(self._rows, self._bytes)

    def _take_in(self) -> None:
        if self._tail is None:
            self._read |= acknowledged(self._root).get(self._consumer, {})
            self._tail = Tail(self._root, {**self._read})
            self._unread, self._rows, self._bytes = {}, 0, 0
        while new := self._tail.poll():
            for writer, entries in new.items():
                waiting = self._unread.setdefault(writer, deque())
                for entry in entries:
                    waiting.append((entry.seq, entry.rows, entry.bytes))
                    self._rows += entry.rows
                    self._bytes += entry.bytes

    def _forget(self, writer: str, upto: int) -> None:
        waiting = self._unread.get(writer)
        while waiting and waiting[0][0] <= upto:
            _, rows, size = waiting.popleft()
            self._rows -= rows
            self._bytes -= size
