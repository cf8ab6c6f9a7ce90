"""Repairs that a writer makes after a crash, before it lands anything. Readers may be active at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sidecar import files
from sidecar.errors import ZoneError
from sidecar.zone.data import entry_in, find_entry
from sidecar.zone.entry import DamagedLineError, Entry, line_of, parse
from sidecar.zone.floor import read_floor
from sidecar.zone.layout import data_folder, first_of, manifest_folder, segment_path, seq_of


@dataclass(slots=True)
class Recovered:
    """The state from which the writer continues."""

    lines: files.Lines
    """The last segment."""
    head: Entry | None
    """The last readable entry, None if nothing was landed yet."""
    seq: int
    """Sequence number of the next entry."""
    names: list[Entry] = field(default_factory=list)
    """The latest entries, oldest first."""


class Recovery:
    """Repairs one writer's manifest and data; its lock must be held.

    * A last line that lacks only its line feed gets it. A torn line is restored from its data file, which was durable
      before the line was begun. Without a complete data file the line is cut off.
    * A damaged line is restored in its place.
    * A complete data file without a line is entered: the process ended between the two, and when its batch is sent
      again its name is known. Removing it would have the same result, but with a manifest that lost its end (restored
      from an older copy) the data would be lost, too. Incomplete and hidden files are removed, and files that retention
      had begun to remove.
    * A complete data file, or a floor, beyond the next number is not from a crash: each number is entered before the
      next is begun. Then the manifest is an older one, and nothing is removed.

    Args:
        root: The zone.
        writer: The writer.
        report: Called once for each repair, with a text.
    """

    def __init__(self, root: Path, writer: str, report: Callable[[str], None]) -> None:
        self._root = root
        self._writer = writer
        self._report = report
        self._floor = read_floor(root, writer)

    def run(self, entries_max: int) -> Recovered:
        """Make all repairs.

        Args:
            entries_max: Number of the latest entries to return.

        Raises:
            OSError: Files cannot be read or written.
            ZoneError: The floor is damaged, or the manifest is older than the data.
        """
        segments = sorted(int(path.stem) for path in manifest_folder(self._root, self._writer).glob("[0-9]*.log"))
        first = segments[-1] if segments else first_of(self._floor.seq + 1)
        lines = files.Lines(segment_path(self._root, self._writer, first))
        try:
            recovered = Recovered(lines, None, first)
            self._read_last(recovered)
            self._read_earlier(recovered, segments[:-1], entries_max)
            recovered.head = recovered.names[-1] if recovered.names else None
            self._sweep(recovered)
        except BaseException:
            recovered.lines.close()
            raise
        return recovered

    def _read_last(self, recovered: Recovered) -> None:
        for entry in self._scan(recovered.lines, recovered.seq):
            recovered.seq += 1
            if entry is not None:
                recovered.names.append(entry)

    def _read_earlier(self, recovered: Recovered, segments: list[int], entries_max: int) -> None:
        for first in reversed(segments):
            if len(recovered.names) >= entries_max:
                break
            with contextlib.closing(files.Lines(segment_path(self._root, self._writer, first))) as lines:
                recovered.names[:0] = [entry for entry in self._scan(lines, first) if entry is not None]

    def _scan(self, lines: files.Lines, first: int) -> Iterator[Entry | None]:
        """The entries of a segment, None for a lost one; the segment is complete afterwards."""
        path = segment_path(self._root, self._writer, first)
        data = files.read_from(path) or b""
        start, seq = 0, first
        while start < len(data):
            where = f"line {seq - first + 1} of {path.relative_to(self._root)}"
            end = data.find(b"\n", start)
            text = data[start:] if end < 0 else data[start:end]
            entry = self._whole(text, seq)
            if entry is None or end < 0:
                made = entry or find_entry(self._root, self._writer, seq)
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

    def _sweep(self, recovered: Recovered) -> None:
        """Enter complete data files after the last line, and remove useless files."""
        if self._floor.seq >= recovered.seq:
            raise self._older(recovered.seq, f"data up to number {self._floor.seq} was removed as read")
        useless: list[tuple[Path, str]] = []
        folder = data_folder(self._root, self._writer)
        for path in sorted(folder.glob("*/*"), key=lambda path: path.name):
            seq = seq_of(path.name)
            if seq is not None and self._floor.seq < seq < recovered.seq:
                continue
            name = path.relative_to(self._root).as_posix()
            if seq == recovered.seq and (entry := find_entry(self._root, self._writer, seq)) and entry.file == name:
                self._enter(recovered, entry)
                self._report(f"{name} had no line in the manifest; it was entered")
            elif seq is not None and seq > recovered.seq and entry_in(path, name) is not None:
                raise self._older(recovered.seq, f"{name} is whole")
            elif path.name[0] == files.HIDDEN or seq is not None:
                useless.append((path, name))
        for path, name in useless:
            files.remove(path)
            self._report(f"{name} was left unfinished or half removed; it was removed")

    def _older(self, seq: int, why: str) -> ZoneError:
        return ZoneError(
            f"landing zone: the manifest of writer {self._writer} in {self._root} ends before number {seq}, which has "
            f"no whole data file, and {why}",
            hint=f"Restore manifest/{self._writer} as it was last; when there is no copy, move it and "
            f"data/{self._writer} out of the zone: a new writer begins, and only those files have what was not read",
        )

    def _enter(self, recovered: Recovered, entry: Entry) -> None:
        files.sync((self._root / entry.file).parent)
        if recovered.seq == first_of(recovered.seq) and recovered.lines.end:
            last, recovered.lines = recovered.lines, files.Lines(segment_path(self._root, self._writer, recovered.seq))
            last.close()
        recovered.lines.append(line_of(entry))
        recovered.names.append(entry)
        recovered.head, recovered.seq = entry, recovered.seq + 1
