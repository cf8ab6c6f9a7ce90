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
from typing import Final

from sidecar.errors import ZoneError
from sidecar.spark.source.ahead import Ahead, Offsets, seq_of
from sidecar.spark.source.delivered import Delivered
from sidecar.spark.source.options import Limit
from sidecar.spark.source.tasks import Share
from sidecar.zone import Entry, Tail
from sidecar.zone.floor import read_floor

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
        self._at: Offsets = {}
        self._ahead: Ahead | None = None
        """What is behind `_at`."""
        self._delivered = Delivered()
        self._served = ""

    def floors(self) -> Offsets:
        """Where a new query begins: behind what retention may have removed."""
        return Tail(self._root).floors()

    def heads(self) -> Offsets:
        """The last number of each writer that is landed by now."""
        return Tail(self._root).heads()

    def known(self) -> Offsets:
        """The last number of each writer that was seen so far."""
        return dict(self._ahead.last) if self._ahead is not None else {}

    def everything(self) -> list[Share]:
        """All rows of the zone, as a new query would read them from now on until nothing is left.

        Raises:
            ZoneError: Something of it is lost.
        """
        start = self.floors()
        ahead = self._advance(start)
        ahead.fill(None)
        return self.plan(start, {**start, **ahead.last})

    def latest(self, start: Mapping[str, int], limit: Limit, target: Mapping[str, int] | None = None) -> Offsets:
        """Where a micro-batch from here ends: writers take turns, an entry each, until the limit is reached.

        Args:
            start: Where it begins.
            limit: Its bound; batches of other groups count nothing.
            target: Nothing behind this is taken.

        Raises:
            ZoneError: Something of it is lost.
        """
        ahead = self._advance(start)
        ahead.fill(None if limit == Limit() else WAITING_MAX)
        writers = sorted(ahead.waiting)
        turn = bisect_right(writers, self._served)  # behind whom was served last: else a small limit starves one
        ring = deque((writer, iter(ahead.waiting[writer])) for writer in writers[turn:] + writers[:turn])
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
        ahead = self._advance(start)
        self._reach(ahead, start, end)
        entries = [
            entry
            for writer in sorted(end)
            for entry in self._between(ahead.waiting.get(writer, []), writer, start.get(writer, -1), end[writer])
        ]
        claimed = self._delivered.claim(entries) if self._dedup else ((entry, {}) for entry in entries)
        return [Share.of(entry, drop) for entry, drop in claimed if self._wants(entry)]

    def _wants(self, entry: Entry) -> bool:
        return self._groups is None or entry.group in self._groups

    def _between(self, waiting: list[Entry], writer: str, start: int, end: int) -> list[Entry]:
        entries = waiting[: bisect_right(waiting, end, key=seq_of)]
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

    def _advance(self, start: Mapping[str, int]) -> Ahead:
        """Be at this place."""
        ahead = self._ahead
        if ahead is None or any(start.get(writer, -1) < seq for writer, seq in self._at.items()) or self._is_old(ahead):
            ahead = self._begin(start)
        try:
            self._reach(ahead, start, start)
        except ZoneError:  # also when retention removed lines just ahead of us that we only need for `dedup`
            ahead = self._begin(start)
            self._reach(ahead, start, start)
        for writer in start.keys() & ahead.writers:  # one that was removed for good is no matter
            if ahead.last.get(writer, -1) < start[writer]:
                raise _shorter(writer, start[writer])
        self._at = dict(start)
        return ahead

    def _begin(self, start: Mapping[str, int]) -> Ahead:
        self._at, self._ahead = {}, None
        self._delivered = Delivered()
        # The last one that was read is read again, as a sign that it is the same zone.
        last = {} if self._dedup else {writer: seq - 1 for writer, seq in start.items()}
        self._ahead = Ahead(self._root, last, self._report)
        return self._ahead

    def _report(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _is_old(self, ahead: Ahead) -> bool:
        """Whether more than half of the lines that were read are removed by now: so forgetting costs nearly nothing."""
        return self._dedup and ahead.removed() * 2 > self._delivered.entries

    def _reach(self, ahead: Ahead, start: Mapping[str, int], end: Mapping[str, int]) -> None:
        """Know all entries up to `end`, and own those up to `start`."""
        for entry in ahead.take(start, end):
            if self._dedup:
                self._delivered.add(entry)


def _shorter(writer: str, seq: int) -> ZoneError:
    return ZoneError(
        f"landing zone: the manifest of writer {writer} ends before number {seq}, which this query has planned. Was "
        "the zone replaced, or restored from an older copy? Restore all of it, or start anew with another checkpoint"
    )


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
