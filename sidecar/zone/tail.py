"""Follows the manifests of all writers of a zone, reading only what is new. Removes nothing, and remembers no entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sidecar.errors import ZoneError
from sidecar.storage import LineLog, Root, storage_of
from sidecar.storage.base import first_of
from sidecar.zone.data import find_entry
from sidecar.zone.entry import DamagedLineError, Entry, line_of, parse
from sidecar.zone.floor import Floor, read_floor
from sidecar.zone.layout import MANIFEST, manifest_folder

LINES_MAX = 16_384
"""Limit of lines that one poll takes of each writer: a bound of memory, not of progress."""
_RESTORE = "Restore manifest and data from a copy of the zone, and start again"
Report: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class _NextLine:
    """Position of the next line in a writer's manifest."""

    seq: int
    """Sequence number of the line."""
    at: int = 0
    """Offset in its segment; also 0 if lines of the segment are still to be skipped."""
    started: bool = False
    stuck: bool = False
    """Whether a later segment was seen while lines of this one are missing."""


class Tail:
    """A reader's place in the manifest of every writer. Only complete lines count, and no data folder is read.

    The order of one writer's entries is fixed forever; between writers there is none. A new writer appears by itself.
    An incomplete line is left for a later poll. A complete but damaged line is restored from its data file, which is
    reported once; if that is impossible, `poll` raises instead of skipping it. Every method raises `OSError` if the
    zone cannot be read.

    Args:
        root: The zone; it may not exist yet.
        after: Writer to the last sequence number that is already known; other writers are read from the oldest line.
            Omit it to learn all offsets that the manifests cover, also of entries that were read long ago.
        report: Called once for each damaged line.
    """

    def __init__(self, root: Root, after: Mapping[str, int] | None = None, report: Report = lambda text: None) -> None:
        self._zone = storage_of(root)
        self._logs: dict[str, LineLog] = {}
        self._after = dict(after or {})
        self._report = report
        self._places: dict[str, _NextLine] = {}

    def writers(self) -> list[str]:
        """The writers that have a manifest; none if there is no zone."""
        return self._zone.folders(MANIFEST)

    def poll(self, lines_max: int = LINES_MAX, skip: Collection[str] = ()) -> dict[str, list[Entry]]:
        """New entries by writer, in their order, without writers that have none. Empty if all is read.

        Args:
            lines_max: Limit for each writer; the rest comes with the next poll.
            skip: Writers that are left for a later poll.

        Raises:
            ZoneError: Entries that were not read yet are lost; the message has the place.
        """
        read = {writer: self._read(writer, lines_max) for writer in self.writers() if writer not in skip}
        return {writer: entries for writer, entries in read.items() if entries}

    def floors(self) -> dict[str, int]:
        """The last sequence number whose data may be gone, by writer: a new consumer begins after it."""
        return {writer: read_floor(self._zone, writer).seq for writer in self.writers()}

    def heads(self) -> dict[str, int]:
        """The last sequence number landed, by writer, found without reading all lines; -1 if there is none.

        Lines are not checked: in a folder, a damaged line may make the number one less or more.
        """
        return {writer: self._head(writer) for writer in self.writers()}

    def _head(self, writer: str) -> int:
        position = self._places.get(writer)
        log = self._log(writer)
        return log.head(first_of(log, position.seq) if position else read_floor(self._zone, writer).first)

    def _log(self, writer: str) -> LineLog:
        if writer not in self._logs:
            self._logs[writer] = self._zone.lines(manifest_folder(writer))
        return self._logs[writer]

    def _read(self, writer: str, lines_max: int) -> list[Entry]:
        entries: list[Entry] = []
        position = self._places.get(writer) or self._begin(writer)
        while len(entries) < lines_max:
            data = self._log(writer).read(position.seq, position.at)
            if data is None and self._removed(writer, position):
                position = self._begin(writer)
                continue
            if data and self._take(writer, position, data, entries, lines_max):
                continue
            if len(entries) == lines_max or not self._look_again(writer, position):
                break
        return entries

    def _look_again(self, writer: str, position: _NextLine) -> bool:
        """Whether the next segment exists already, so that this one must have been completed meanwhile."""
        log = self._log(writer)
        if not log.exists(first_of(log, position.seq) + log.segment_lines):
            return False
        if position.stuck:
            name = log.name(position.seq)
            raise ZoneError(f"landing zone: {name} lacks its lines from number {position.seq} on", hint=_RESTORE)
        position.stuck = True
        return True

    def _begin(self, writer: str) -> _NextLine:
        first = read_floor(self._zone, writer).first
        position = _NextLine(max(first, first_of(self._log(writer), self._after.get(writer, -1) + 1)))
        self._places[writer] = position
        return position

    def _removed(self, writer: str, position: _NextLine) -> bool:
        """Whether a missing segment existed before; then reading has to start again."""
        floor = read_floor(self._zone, writer)
        if floor.first <= position.seq:
            return False
        if position.started:
            raise _lost(writer, position.seq, floor)
        return True

    def _take(self, writer: str, position: _NextLine, data: bytes, entries: list[Entry], lines_max: int) -> bool:
        """Take the lines of a segment; return whether to continue with the next one."""
        log = self._log(writer)
        start, last = 0, first_of(log, position.seq) + log.segment_lines
        while position.seq < last and len(entries) < lines_max:
            end = data.find(b"\n", start)
            if end < 0:
                return False
            entry, length = self._parse(writer, position.seq, data[start:end])
            if entry is not None and entry.seq > self._after.get(writer, -1):
                entries.append(entry)
            start += length
            position.seq, position.at = position.seq + 1, position.at + length
            position.started, position.stuck = True, False
        if position.seq == last:
            position.at = 0
        return position.seq == last

    def _parse(self, writer: str, seq: int, line: bytes) -> tuple[Entry | None, int]:
        """The entry of a line and the bytes to advance by; no entry if it is lost and nobody needs its rows."""
        try:
            entry = parse(line)
            if (entry.writer, entry.seq) != (writer, seq):
                raise DamagedLineError(f"is of writer {entry.writer} and number {entry.seq}")
        except DamagedLineError as error:
            log = self._log(writer)
            where = f"line {seq - first_of(log, seq) + 1} of {log.name(seq)}"
            made = find_entry(self._zone, writer, seq)
            if made is not None:
                self._report(f"{where} {error}; it was made again from {made.file}")
                return made, len(line_of(made)) + 1
            if seq > read_floor(self._zone, writer).seq:
                raise ZoneError(
                    f"landing zone: {where} {error}, and number {seq} has no data file from which to restore it",
                    hint=_RESTORE,
                ) from error
            self._report(f"{where} {error}; its data was read by all and is removed")
            return None, len(line) + 1
        return entry, len(line) + 1


def _lost(writer: str, seq: int, floor: Floor) -> ZoneError:
    return ZoneError(
        f"landing zone: the manifest of writer {writer} from number {seq} to {floor.first - 1} was removed unread",
        hint="Register the consumer before it reads: retention keeps what a registered one has not acknowledged",
    )
