"""Appends rows to one file and remembers its parts, for trying things out. Without rotation."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from pathlib import Path

import structlog

from sidecar import files
from sidecar.config.sinks import FileSinkSettings
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, Framer, Verdict, group_label
from sidecar.errors import ConfigError, StateError
from sidecar.sinks.base import Context
from sidecar.sinks.formats import FormatName, body_chunks, make_framer

NAMES_MAX = 100_000
"""Number of parts that are remembered."""

log = structlog.get_logger()


def build(settings: FileSinkSettings, context: Context) -> FileSink:
    """The sink of these settings; a repair of the file is logged."""
    framer = make_framer(settings.format, context.columns, context.tags_of)
    sink = FileSink(settings.path, framer, settings.format)
    if sink.repaired:
        log.warning("file.repaired", reason=sink.repaired)
    return sink


class FileSink:
    """Writes each part once, completely or not at all, and acknowledges it once it is on the disk.

    Beside the file is ``FILE.parts``: a line for each part, with the file's length after it and the part's name. The
    line is written after the rows are on the disk; rows after the last length were never acknowledged and are cut off
    at the next start.

    Args:
        path: The file; created if it is missing, existing content stays.
        format: `json_array` writes an array for each part.

    Raises:
        ConfigError: The file cannot be opened, or is no file.
        StateError: Another process writes to it.

    Attributes:
        repaired: The repair at the start and its reason; empty if the file was complete.
    """

    def __init__(self, path: Path, framer: Framer, format: FormatName = "envelope") -> None:  # noqa: A002
        self.framer = framer
        self.repaired = ""
        self._format = format
        self._lock = threading.Lock()
        self._closed = False
        self._names: dict[str, None] = {}
        self._torn = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            self._names_path = path.with_name(f"{path.name}.parts")
            self._names_fd = os.open(self._names_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._open(path)
            files.sync(path.parent)
        except OSError as error:
            raise ConfigError(
                f"cannot write to {path}: {error.strerror}", hint="Choose another sink.file.path"
            ) from error

    def deliver(self, batch: Batch) -> Answer:
        """Append the parts that the file does not have yet; after a failure the file is as it was before."""
        with self._lock:
            try:
                return self._append(batch)
            except OSError as error:
                self._torn = True
                return Answer(Verdict.UNANSWERED, f"cannot write the file: {error.strerror}")

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)
                os.close(self._names_fd)

    def _open(self, path: Path) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise ConfigError(f"{path} is not a regular file", hint="To print rows, use sink.console")
        try:
            fcntl.flock(self._names_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(f"another process writes to {path}", hint="Give each sidecar its own file") from error
        self._end = os.fstat(self._fd).st_size
        if known := self._read_names():
            self._cut(known)
        elif self._end and os.pread(self._fd, 1, self._end - 1) != b"\n":
            # Another program's text stays; its last line is ended, so that the first row begins on its own line.
            os.pwrite(self._fd, b"\n", self._end)
            self._end += 1
            self.repaired = "the last line had no end and was ended"

    def _read_names(self) -> int:
        """Read `FILE.parts` without a torn last line; return the length that it confirms."""
        whole, _, _ = self._names_path.read_bytes().rpartition(b"\n")
        end = 0
        for line in whole.decode("utf-8", "replace").split("\n")[-NAMES_MAX:]:
            length, _, name = line.partition(" ")
            end = int(length) if length.isdecimal() else end
            self._names[name] = None
        self._names_end = len(whole) + 1 if whole else 0
        os.ftruncate(self._names_fd, self._names_end)
        return end

    def _cut(self, known: int) -> None:
        if known < self._end:
            self.repaired = f"{self._end - known} bytes of a write that was cut short were removed"
            os.ftruncate(self._fd, known)
            self._end = known

    def _append(self, batch: Batch) -> Answer:
        if self._closed:
            return Answer(Verdict.BUSY, "the sink is closed")
        self._mend()
        end, lines = self._end, []
        fresh = {f"{group_label(part.group)} {part.name}": part for part in batch.parts}
        for name, part in fresh.items():
            if name not in self._names:
                end = self._write(part, end)
                lines.append(f"{end} {name}\n")
        if lines:
            os.fsync(self._fd)
            names = "".join(lines).encode()
            files.write_at(self._names_fd, names, self._names_end)
            os.fsync(self._names_fd)
            self._end, self._names_end = end, self._names_end + len(names)
            self._names.update(dict.fromkeys(line.partition(" ")[2][:-1] for line in lines))
            while len(self._names) > NAMES_MAX:
                del self._names[next(iter(self._names))]
        return Answer(Verdict.ACK)

    def _mend(self) -> None:
        """Undo a failed write; otherwise continue at the end, which another program may have moved."""
        if self._torn:
            os.ftruncate(self._fd, self._end)
            os.ftruncate(self._names_fd, self._names_end)
            self._torn = False
        self._end = os.fstat(self._fd).st_size

    def _write(self, part: Part, at: int) -> int:
        for chunk in body_chunks(self._format, part.fragments):
            at = files.write_at(self._fd, chunk, at)
        return files.write_at(self._fd, b"\n", at) if self._format == "json_array" else at
