"""Follows a zone on the driver and decides which rows a micro-batch has. Nothing of Spark may come in.

Offsets are ``{writer: seq}``, the last number read of each writer. The planner is at one of them: what is up to it is
delivered, what is behind it and known waits in memory. It goes forward with the query; asked for anything earlier it
begins anew from the manifest, as after a restart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from sidecar.errors import ZoneError
from sidecar.spark.source.delivered import Delivered
from sidecar.spark.source.options import Limit
from sidecar.spark.source.tasks import Share, with_hint
from sidecar.zone import Entry, Tail
from sidecar.zone.floor import read_floor

Offsets: TypeAlias = dict[str, int]
WAITING_MAX: Final = 16_384
"""Entries of a writer that wait in memory (about 25 MB) when no more is read, unless a micro-batch has more."""


class Planner:
    """Plans micro-batches of one query.

    Args:
        root: The zone; it may be missing still.
        groups: Which are read; None: all.
        dedup: Whether rows that an earlier entry has are left out.
        report: Is told once of each damaged line that could be made again, in words.
    """

    def __init__(
        self, root: Path, *, groups: Collection[str] | None, dedup: bool, report: Callable[[str], None]
    ) -> None:
        self._root = root
        self._groups = groups
        self._dedup = dedup
        self._tell = report
        self._told: set[str] = set()
        self._tail: Tail | None = None
        self._at: Offsets = {}
        self._last: Offsets = {}
        """Of each writer the last number that was polled."""
        self._waiting: dict[str, list[Entry]] = {}
        """Of each writer what was polled and is behind `_at`."""
        self._delivered = Delivered()
        self._firsts: Offsets = {}
        self._served = ""

    def floors(self) -> Offsets:
        """Where a new query begins: behind what retention may have removed."""
        return Tail(self._root).floors()

    def heads(self) -> Offsets:
        """The last number of each writer that is landed by now."""
        return Tail(self._root).heads()

    def known(self) -> Offsets:
        """The last number of each writer that was seen so far."""
        return dict(self._last)

    def everything(self) -> list[Share]:
        """All rows of the zone, as a new query would read them from now on until nothing is left.

        Raises:
            ZoneError: Something of it is lost.
        """
        start = self.floors()
        self._advance(start)
        self._fill(None)
        return self.plan(start, {**start, **self._last})

    def latest(self, start: Mapping[str, int], limit: Limit, target: Mapping[str, int] | None = None) -> Offsets:
        """Where a micro-batch from here ends: writers take turns, an entry each, until the limit is reached.

        Args:
            start: Where it begins.
            limit: Its bound; batches of other groups count nothing.
            target: Nothing behind this is taken.

        Raises:
            ZoneError: Something of it is lost.
        """
        self._advance(start)
        self._fill(None if limit == Limit() else WAITING_MAX)
        writers = sorted(self._waiting)
        turn = bisect_right(writers, self._served)  # behind whom was served last: else a small limit starves one
        ring = deque((writer, iter(self._waiting[writer])) for writer in writers[turn:] + writers[:turn])
        meter, end = _Meter(limit), dict(start)
        while ring:
            writer, entries = ring.popleft()
            entry = next(entries, None)
            if entry is None or (target is not None and entry.seq > target.get(writer, -1)):
                continue
            if self._wants(entry) and not meter.takes(entry):
                break
            end[writer], self._served = entry.seq, writer
            ring.append((writer, entries))
        return end

    def plan(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[Share]:
        """What the micro-batch of these offsets reads; the same for the same offsets, at any time.

        Raises:
            ZoneError: Something of it is lost, or was removed unread.
        """
        self._advance(start)
        self._reach(start, end)
        entries = [
            entry for writer in sorted(end) for entry in self._between(writer, start.get(writer, -1), end[writer])
        ]
        claimed = self._delivered.claim(entries) if self._dedup else ((entry, {}) for entry in entries)
        return [Share.of(entry, drop) for entry, drop in claimed if self._wants(entry)]

    def _wants(self, entry: Entry) -> bool:
        return self._groups is None or entry.group in self._groups

    def _between(self, writer: str, start: int, end: int) -> list[Entry]:
        waiting = self._waiting.get(writer, [])
        entries = waiting[: bisect_right(waiting, end, key=_seq)]
        floor = read_floor(self._root, writer).seq if start < end else -1
        if start < floor and (len(entries) < end - start or any(map(self._wants, entries[: floor - start]))):
            raise ZoneError(
                f"landing zone: number {start + 1} to {min(floor, end)} of writer {writer} were removed before this "
                "query read them. Give it a consumer name, from its first start on: retention keeps what a registered "
                "one has not read. To go on without those rows, begin anew with another checkpoint"
            )
        if len(entries) < end - start:
            raise _shorter(writer, end)
        return entries

    def _advance(self, start: Mapping[str, int]) -> None:
        """Be at this place."""
        if self._tail is None or any(start.get(writer, -1) < seq for writer, seq in self._at.items()) or self._is_old():
            self._begin(start)
        try:
            self._reach(start, start)
        except ZoneError:  # also when retention removed lines just ahead of us that we only need for `dedup`
            self._begin(start)
            self._reach(start, start)
        for writer in start.keys() & self._firsts.keys():  # one that was removed for good is no matter
            if self._last.get(writer, -1) < start[writer]:
                raise _shorter(writer, start[writer])
        self._at = dict(start)

    def _begin(self, start: Mapping[str, int]) -> None:
        self._at = {}
        self._delivered = Delivered()
        self._waiting = {}
        # The last one that was read is read again, as a sign that it is the same zone.
        self._last = {} if self._dedup else {writer: seq - 1 for writer, seq in start.items()}
        self._tail = Tail(self._root, dict(self._last), self._report)
        self._firsts = {writer: self._first(writer) for writer in self._tail.floors()}

    def _report(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _first(self, writer: str) -> int:
        return read_floor(self._root, writer).first

    def _is_old(self) -> bool:
        """Whether more than half of the lines that were read are removed by now: so forgetting costs nearly nothing."""
        gone = sum(self._first(writer) - first for writer, first in self._firsts.items())
        return self._dedup and gone * 2 > self._delivered.entries

    def _reach(self, start: Mapping[str, int], end: Mapping[str, int]) -> None:
        """Know all entries up to `end`, and own those up to `start`."""
        while True:
            self._own(start)
            behind = {writer for writer, seq in end.items() if self._last.get(writer, -1) < seq}
            if not behind or not self._poll(self._last.keys() - behind):
                return

    def _own(self, start: Mapping[str, int]) -> None:
        for writer, waiting in self._waiting.items():
            count = bisect_right(waiting, start.get(writer, -1), key=_seq)
            if self._dedup:
                for entry in waiting[:count]:
                    self._delivered.add(entry)
            del waiting[:count]

    def _fill(self, most: int | None) -> None:
        """Read on until nothing is new, or enough is waiting of each writer."""
        more = True
        while more:
            full = {writer for writer, waiting in self._waiting.items() if most is not None and len(waiting) >= most}
            more = self._poll(full)

    def _poll(self, skip: Collection[str]) -> bool:
        assert self._tail is not None
        try:
            found = self._tail.poll(skip=skip)
        except ZoneError as error:
            raise with_hint(error) from error
        for writer, entries in found.items():
            self._waiting.setdefault(writer, []).extend(entries)
            self._last[writer] = entries[-1].seq
        return bool(found)


def _shorter(writer: str, seq: int) -> ZoneError:
    return ZoneError(
        f"landing zone: the manifest of writer {writer} ends before number {seq}, which this query has planned. Was "
        "the zone replaced, or restored from an older copy? Restore all of it, or start anew with another checkpoint"
    )


def _seq(entry: Entry) -> int:
    return entry.seq


class _Meter:
    """Counts against a limit."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._files = self._rows = self._bytes = 0

    def takes(self, entry: Entry) -> bool:
        """Whether there is room for it, which is used then."""
        limit, files = self._limit, self._files
        rows, size = self._rows + entry.rows, self._bytes + entry.bytes
        bounds = ((files + 1, limit.files), (rows, limit.rows), (size, limit.bytes))
        if files and any(most is not None and count > most for count, most in bounds):
            return False
        self._files, self._rows, self._bytes = files + 1, rows, size
        return True
