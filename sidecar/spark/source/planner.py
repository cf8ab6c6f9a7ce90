"""Follows a zone on the driver and decides the rows of a micro-batch. It uses no Spark.

Offsets are ``{writer: seq}``, the last number read of each writer. The planner is at one offset: entries up to it are
delivered, known entries after it wait in memory. It advances with the query; for an earlier offset it starts again from
the manifest, as after a restart.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa

from sidecar.errors import PositionError, ZoneError
from sidecar.spark.source.delivered import Delivered, Drop
from sidecar.spark.source.options import Limit
from sidecar.storage import Root, Storage, storage_of
from sidecar.zone import Entry, Tail, read
from sidecar.zone.floor import read_floor
from sidecar.zone.index import Wanted
from sidecar.zone.layout import MANIFEST

Offsets: TypeAlias = dict[str, int]


class Ahead:
    """Follows the manifests of all writers behind these numbers; reports each damaged line that was restored."""

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
        """The writers that existed at construction."""
        return self._firsts.keys()

    def _first(self, writer: str) -> int:
        return read_floor(self._zone, writer).first

    def removed(self) -> int:
        """The number of lines removed since construction."""
        return sum(self._first(writer) - first for writer, first in self._firsts.items())

    def take_entries(self, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Entry]:
        """Read all entries up to `end`, and take those up to `start`."""
        while True:
            for writer, waiting in self.waiting.items():
                count = bisect_right(waiting, start.get(writer, -1), key=seq_of)
                yield from waiting[:count]
                del waiting[:count]
            behind = {writer for writer, seq in end.items() if self.last.get(writer, -1) < seq}
            if not behind or not self._poll(self.last.keys() - behind):
                return

    def fill(self, most: int | None) -> None:
        """Read until nothing is new, or enough entries of each writer wait."""
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


TASK_BYTES_MIN: Final = 1 << 20
"""A task costs as much as 10,000 rows: smaller shares are not distributed."""
TASK_BYTES_MAX: Final = 64 << 20
"""Limit of compressed files in a task: a failed task repeats little, and executors with more cores than this host have
work."""


@dataclass(frozen=True, slots=True)
class Share:
    """A batch to read; it can be pickled."""

    entry: Entry
    drop: Drop
    wanted: Wanted
    """The groups and tags to read."""

    @classmethod
    def of(cls, entry: Entry, drop: Drop, wanted: Wanted) -> Share:
        """The share, without unneeded bitmaps and index."""
        if wanted.everything:
            entry = replace(entry, index=b"")
        if not drop:
            return cls(replace(entry, parts=(), covers=()), drop, wanted)
        covers = tuple(cover._replace(bitmap=b"") for cover in entry.covers)
        return cls(replace(entry, covers=covers), drop, wanted)

    def read(self, root: Root, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The wanted rows of the share.

        Raises:
            ZoneError: They cannot be read; the message includes the hint, as only its text reaches the user.
        """
        try:
            yield from read(root, self.entry, columns, self.drop, groups=self.wanted.groups, tags=self.wanted.tags)
        except ZoneError as error:
            raise with_hint(error) from error


def with_hint(error: ZoneError) -> ZoneError:
    """The error with its hint in the message."""
    return ZoneError(f"{error}. {error.hint}" if error.hint else str(error))


def pack(shares: Sequence[Share], tasks_max: int | None) -> list[list[Share]]:
    """Distribute shares over tasks of about equal bytes, in their order within a task.

    Args:
        tasks_max: Limit of tasks; None: at most one per core of this host and `TASK_BYTES_MIN`, but more if a task
            would have more than `TASK_BYTES_MAX`.
    """
    total = sum(share.entry.bytes for share in shares)
    wanted = max(min(total // TASK_BYTES_MIN, os.cpu_count() or 1), -(-total // TASK_BYTES_MAX), 1)
    tasks: list[list[int]] = [[] for _ in range(min(tasks_max or wanted, len(shares)))]
    loads = [(0, number) for number in range(len(tasks))]
    for index in sorted(range(len(shares)), key=lambda index: -shares[index].entry.bytes):
        load, number = heapq.heappop(loads)
        tasks[number].append(index)
        heapq.heappush(loads, (load + shares[index].entry.bytes, number))
    return [[shares[index] for index in sorted(task)] for task in tasks]


WAITING_MAX: Final = 16_384
"""Limit of a writer's entries that wait in memory (25 MB, 50 with many tags), unless a micro-batch has more."""
_ALL: Final = Wanted()


class Planner:
    """Plans micro-batches of one query. Every method raises `ZoneError` if some of the data is lost.

    Args:
        root: The zone; it may not exist yet.
        wanted: The groups and tags to read.
        dedup: Whether rows that are already in an earlier entry are left out.
        report: Called once for each damaged line that was restored, with a text.
    """

    def __init__(self, root: Root, *, wanted: Wanted = _ALL, dedup: bool = True, report: Callable[[str], None]) -> None:
        self._zone = storage_of(root)
        self._wanted = wanted
        self._dedup = dedup
        self._tell = report
        self._told: set[str] = set()
        self._at: Offsets = {}
        self._ahead: Ahead | None = None
        """The entries after `_at`."""
        self._delivered = Delivered()
        self._served = ""

    def floors(self) -> Offsets:
        """The start of a new query: after the data that retention may have removed."""
        return Tail(self._zone).floors()

    def heads(self) -> Offsets:
        """The last number landed by each writer."""
        return Tail(self._zone).heads()

    def known(self) -> Offsets:
        """The last number seen of each writer."""
        return dict(self._ahead.last) if self._ahead is not None else {}

    def everything(self) -> list[Share]:
        """All rows of the zone, as a new query would read them."""
        start = self.floors()
        ahead = self._advance(start)
        ahead.fill(None)
        return self.plan(start, {**start, **ahead.last})

    def latest(self, start: Mapping[str, int], limit: Limit, target: Mapping[str, int] | None = None) -> Offsets:
        """The end of a micro-batch: writers take turns, one entry each, until the limit is reached.

        Args:
            limit: The limit; only batches that may have wanted rows count, with those rows.
            target: Entries after this are not taken.
        """
        ahead = self._advance(start)
        ahead.fill(None if limit == Limit() else WAITING_MAX)
        writers = sorted(ahead.waiting)
        turn = bisect_right(writers, self._served)  # after the writer served last: otherwise a small limit starves one
        ring = deque((writer, iter(ahead.waiting[writer])) for writer in writers[turn:] + writers[:turn])
        files = rows = nbytes = 0
        end = dict(start)
        while ring:
            writer, entries = ring.popleft()
            entry = next(entries, None)
            if entry is None or (target is not None and entry.seq > target.get(writer, -1)):
                continue
            if found := self._wanted.rows_of(entry):
                files, rows, nbytes = files + 1, rows + found, nbytes + entry.bytes
                if not limit.allows(files, rows, nbytes):
                    break
            end[writer], self._served = entry.seq, writer
            ring.append((writer, entries))
        return end

    def plan(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[Share]:
        """The shares of the micro-batch of these offsets; always the same for the same offsets."""
        ahead = self._advance(start)
        self._reach(ahead, start, end)
        entries = [
            entry
            for writer in sorted(end)
            for entry in self._between(ahead.waiting.get(writer, []), writer, start.get(writer, -1), end[writer])
        ]
        claimed = self._delivered.claim(entries) if self._dedup else ((entry, {}) for entry in entries)
        return [Share.of(entry, drop, self._wanted) for entry, drop in claimed if self._wanted.rows_of(entry)]

    def _between(self, waiting: list[Entry], writer: str, start: int, end: int) -> list[Entry]:
        entries = waiting[: bisect_right(waiting, end, key=seq_of)]
        floor = read_floor(self._zone, writer).seq if start < end else -1
        if start < floor and (len(entries) < end - start or any(map(self._wanted.rows_of, entries[: floor - start]))):
            raise PositionError(
                f"landing zone: number {start + 1} to {min(floor, end)} of writer {writer} were removed before this "
                "query read them. Give it a consumer name, from its first start on: retention keeps what a registered "
                "one has not read. To go on without those rows, start over with another checkpoint"
            )
        if len(entries) < end - start:
            raise _shorter(writer, end)
        return entries

    def _advance(self, start: Mapping[str, int]) -> Ahead:
        """Advance to this offset, or start again if it is an earlier one."""
        if start and not Tail(self._zone).writers():
            raise _vanished(self._zone, start)
        ahead = self._ahead
        if ahead is None or any(start.get(writer, -1) < seq for writer, seq in self._at.items()) or self._is_old(ahead):
            ahead = self._begin(start)
        try:
            self._reach(ahead, start, start)
        except ZoneError:  # also if retention removed lines just ahead, which are only needed for `dedup`
            ahead = self._begin(start)
            self._reach(ahead, start, start)
        for writer in start.keys() & ahead.writers:  # permanently removed writers are ignored
            if ahead.last.get(writer, -1) < start[writer]:
                raise _shorter(writer, start[writer])
        self._at = dict(start)
        return ahead

    def _begin(self, start: Mapping[str, int]) -> Ahead:
        self._at, self._ahead = {}, None
        self._delivered = Delivered()
        # The last line is read again, as proof that it is the same zone.
        last = {} if self._dedup else {writer: seq - 1 for writer, seq in start.items()}
        self._ahead = Ahead(self._zone, last, self._report)
        return self._ahead

    def _report(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _is_old(self, ahead: Ahead) -> bool:
        """Whether more than half of the lines read are removed by now, so that starting again costs almost nothing."""
        return self._dedup and ahead.removed() * 2 > self._delivered.entries

    def _reach(self, ahead: Ahead, start: Mapping[str, int], end: Mapping[str, int]) -> None:
        """Read all entries up to `end`, and count those up to `start` as delivered."""
        for entry in ahead.take_entries(start, end):
            if self._dedup:
                self._delivered.add_entry(entry)


def _vanished(zone: Storage, read: Collection[str]) -> ZoneError:
    missing = next((f"{zone}{'/' * bool(name)}{name}" for name in ("", MANIFEST) if not zone.has(name)), None)
    what = f"{missing} is missing" if missing else f"{zone}/{MANIFEST} has no writer"
    return ZoneError(
        f"landing zone: {what}, and this query has read from {', '.join(sorted(read))} there. Is the file system of "
        "the zone mounted? If the zone was removed for good, start the daemon that fills the new one first"
    )


def _shorter(writer: str, seq: int) -> PositionError:
    return PositionError(
        f"landing zone: the manifest of writer {writer} ends before number {seq}, which this query has planned. Was "
        "the zone replaced, or restored from an older copy? Restore all of it, or start over with another checkpoint"
    )
