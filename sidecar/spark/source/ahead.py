"""Entries of a zone that were read and are not delivered yet, in memory. Decides nothing, and uses no Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from sidecar.errors import ZoneError
from sidecar.spark.source.tasks import with_hint
from sidecar.storage import Storage
from sidecar.zone import Entry, Tail
from sidecar.zone.floor import read_floor

Offsets: TypeAlias = dict[str, int]


class Ahead:
    """Follows the manifests of all writers.

    Args:
        last: The number of each writer before the first to read.
        report: Called for each damaged line that was restored, with a text.
    """

    def __init__(self, zone: Storage, last: Mapping[str, int], report: Callable[[str], None]) -> None:
        self.last = dict(last)
        """The last number polled of each writer."""
        self.waiting: dict[str, list[Entry]] = {}
        """Entries of each writer that were polled and not taken."""
        self._zone = zone
        self._tail = Tail(zone, dict(last), report)
        self._firsts = {writer: self._first(writer) for writer in self._tail.floors()}

    @property
    def writers(self) -> Collection[str]:
        """The writers that existed at the beginning."""
        return self._firsts.keys()

    def _first(self, writer: str) -> int:
        return read_floor(self._zone, writer).first

    def removed(self) -> int:
        """The number of lines removed since the beginning."""
        return sum(self._first(writer) - first for writer, first in self._firsts.items())

    def take(self, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Entry]:
        """Read all entries up to `end`, and take those up to `start`.

        Raises:
            ZoneError: Some of the data is lost.
        """
        while True:
            for writer, waiting in self.waiting.items():
                count = bisect_right(waiting, start.get(writer, -1), key=seq_of)
                yield from waiting[:count]
                del waiting[:count]
            behind = {writer for writer, seq in end.items() if self.last.get(writer, -1) < seq}
            if not behind or not self._poll(self.last.keys() - behind):
                return

    def fill(self, most: int | None) -> None:
        """Read until nothing is new, or enough entries of each writer wait.

        Raises:
            ZoneError: Some of the data is lost.
        """
        more = True
        while more:
            full = {writer for writer, waiting in self.waiting.items() if most is not None and len(waiting) >= most}
            more = self._poll(full)

    def _poll(self, skip: Collection[str]) -> bool:
        try:
            new = self._tail.poll(skip=skip)
        except ZoneError as error:
            raise with_hint(error) from error
        for writer, entries in new.items():
            self.waiting.setdefault(writer, []).extend(entries)
            self.last[writer] = entries[-1].seq
        return bool(new)


def seq_of(entry: Entry) -> int:
    """The entry's number."""
    return entry.seq
