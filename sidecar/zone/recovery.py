"""Repairs that a writer makes after a crash, before it lands anything. Readers may be active at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sidecar import files
from sidecar.errors import ZoneError
from sidecar.storage import LineLog, Lines, Storage
from sidecar.storage.base import first_of
from sidecar.zone.data import entry_in, find_entry
from sidecar.zone.entry import DamagedLineError, Entry, line_of, parse
from sidecar.zone.floor import read_floor
from sidecar.zone.layout import data_folder, seq_of


class Recovery:
    """Repairs one writer's manifest and data; its lock must be held.

    * A last line that lacks only its line feed gets it. A torn line is restored from its data file, which was durable
      before the line was begun. Without a complete data file the line is cut off.
    * A damaged line is restored in its place.
    * A complete data file without a line is entered: the process ended between the two, and when its batch is sent
      again its name is known. Removing it would have the same result, but with a manifest that lost its end (restored
      from an older copy) the data would be lost, too. Incomplete and hidden files are removed, and files that retention
      had begun to remove. In an object store, files of failed attempts are removed, too.
    * A complete data file, or a floor, beyond the next number is not from a crash, as each number is entered before the
      next is begun: the manifest is an older one, and nothing is removed.

    Args:
        report: Called once for each repair, with a text.
    """

    def __init__(self, zone: Storage, log: LineLog, writer: str, report: Callable[[str], None]) -> None:
        self._zone = zone
        self._log = log
        self._writer = writer
        self._report = report
        self._floor = read_floor(zone, writer)
        self.lines: Lines
        """The last segment; known after `run`, like the rest."""
        self.seq = 0
        """Sequence number of the next entry."""
        self.names: list[Entry] = []
        """The latest readable entries, oldest first."""

    @property
    def head(self) -> Entry | None:
        """The last readable entry; None if nothing was landed yet."""
        return self.names[-1] if self.names else None

    def run(self) -> None:
        """Make all repairs; the writer continues from the state that is then known.

        Raises:
            OSError: Files cannot be read or written.
            ZoneError: The floor is damaged, or the manifest is older than the data.
        """
        earlier = -(-self._log.remembered // self._log.segment_lines)
        found = self._log.segments(0)
        segments = [first for first in found if first >= self._floor.first][-1 - earlier :] or [self._floor.first]
        self.lines, self.seq = self._log.open(segments[0]), segments[0]
        try:
            for first in segments:
                self._read(first)
            self._sweep()
            self._log.remove(first for first in found if first < self._floor.first)
        except BaseException:
            self.lines.close()
            raise

    def _read(self, first: int) -> None:
        """Take the lines of a segment, which becomes the last one."""
        last, self.lines, self.seq = self.lines, self._log.open(first), first
        last.close()
        for entry in self._scan(self.lines, first):
            self.seq += 1
            if entry is not None:
                self.names.append(entry)

    def _scan(self, lines: Lines, first: int) -> Iterator[Entry | None]:
        """The entries of a segment, None for a lost one; the segment is complete afterwards."""
        data = self._log.read(first) or b""
        start, seq = 0, first
        while start < len(data):
            where = f"line {seq - first + 1} of {self._log.name(first)}"
            end = data.find(b"\n", start)
            text = data[start:] if end < 0 else data[start:end]
            entry = self._whole(text, seq)
            if entry is None or end < 0:
                made = entry or find_entry(self._zone, self._writer, seq)
                if made is None and end < 0:
                    lines.cut(start)
                    self._report(f"{where} was torn; {len(text)} bytes of it were cut off")
                    return
                if made is None:
                    self._tell_lost(where, seq)
                else:
                    text = line_of(made)
                    lines.mend(start, text)
                    self._report(f"{where} was damaged or torn; it was made again")
                entry = made
            start += len(text) + 1
            seq += 1
            yield entry
        lines.end = start

    def _whole(self, text: bytes, seq: int) -> Entry | None:
        try:
            entry = parse(text)
        except DamagedLineError:
            return None
        return entry if (entry.writer, entry.seq) == (self._writer, seq) else None

    def _tell_lost(self, where: str, seq: int) -> None:
        if seq > self._floor.seq:
            self._report(f"{where} is damaged and has no data file to make it again from: readers will stop there")

    def _sweep(self) -> None:
        """Enter complete data files after the last line, and remove useless files."""
        if self._floor.seq >= self.seq:
            raise self._older(self.seq, f"data up to number {self._floor.seq} was removed as read")
        useless: list[str] = []
        entered = {entry.seq: entry.file for entry in self.names}
        found = [(name.rpartition("/")[2], name) for name in self._zone.files(data_folder(self._writer))]
        for last, name in sorted(found):
            seq = seq_of(last)
            if seq is not None and self._floor.seq < seq < self.seq and entered.get(seq, name) == name:
                continue
            if seq == self.seq and (entry := self._whole_in(name, seq)):
                self._enter(entry)
                entered[seq] = name
                self._report(f"{name} had no line in the manifest; it was entered")
            elif seq is not None and seq > self.seq and entry_in(self._zone, name) is not None:
                raise self._older(self.seq, f"{name} is whole")
            elif last[0] == files.HIDDEN or seq is not None:
                useless.append(name)
        self._zone.remove(useless)
        for name in useless:
            self._report(f"{name} was left unfinished or half removed; it was removed")

    def _whole_in(self, name: str, seq: int) -> Entry | None:
        entry = entry_in(self._zone, name)
        return entry if entry and (entry.writer, entry.seq) == (self._writer, seq) else None

    def _older(self, seq: int, why: str) -> ZoneError:
        return ZoneError(
            f"landing zone: the manifest of writer {self._writer} in {self._zone} ends before number {seq}, which has "
            f"no whole data file, and {why}",
            hint=f"Restore manifest/{self._writer} as it was last; when there is no copy, move it and "
            f"data/{self._writer} out of the zone: a new writer begins, and only those files have what was not read",
        )

    def _enter(self, entry: Entry) -> None:
        self._zone.sync(entry.file)
        if self.seq == first_of(self._log, self.seq) and self.lines.end:
            last, self.lines = self.lines, self._log.open(self.seq)
            last.close()
        self.lines.append(line_of(entry))
        self.names.append(entry)
        self.seq += 1
