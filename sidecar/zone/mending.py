"""Finds the entry of a damaged line in its data file. The only module that searches for data files."""

from __future__ import annotations

from pathlib import Path

from sidecar.zone.data import entry_in
from sidecar.zone.entry import Entry
from sidecar.zone.layout import data_folder


def find_entry(root: Path, writer: str, seq: int) -> Entry | None:
    """The entry of a number whose line is known to have been written, None without a complete data file.

    Raises:
        OSError: The folder cannot be read.
    """
    for path in sorted(data_folder(root, writer).glob(f"*/{seq:012d}-*")):
        entry = entry_in(path, path.relative_to(root).as_posix())
        if entry is not None and (entry.writer, entry.seq) == (writer, seq):
            return entry
    return None
