"""Prints rows, for trying things out. Nothing is kept."""

from __future__ import annotations

import errno
import os
import threading

from sidecar.config.sinks import ConsoleSinkSettings
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Framer, Verdict
from sidecar.sinks.base import Context
from sidecar.sinks.formats import FormatName, body_chunks, make_framer


def build(settings: ConsoleSinkSettings, context: Context) -> ConsoleSink:
    """The sink of these settings."""
    return ConsoleSink(make_framer(settings.format, context.columns, context.tags_of), settings.format)


class ConsoleSink:
    """Writes each batch to a file descriptor, rows as they are, batches one after the other.

    After a failure a batch is written again from its start, so rows may be seen twice.

    Args:
        format: `json_array` prints an array for each batch.
        fd: The descriptor; written to directly, as a buffered stream would fail once more when the process ends.
    """

    def __init__(self, framer: Framer, format: FormatName = "envelope", fd: int = 1) -> None:  # noqa: A002
        self.framer = framer
        self._format = format
        self._fd = fd
        self._lock = threading.Lock()
        self._torn = False
        self._closed = False

    def deliver(self, batch: Batch) -> Answer:
        """Print a batch; a reader that went away halts the intake."""
        try:
            with self._lock:
                return self._print(batch)
        except OSError as error:
            self._torn = True
            return _failure(error)

    def close(self) -> None:
        """Answer every later call with a retry; the descriptor belongs to the caller and stays open."""
        self._closed = True

    def _print(self, batch: Batch) -> Answer:
        if self._closed:
            return Answer(Verdict.BUSY, "the sink is closed")
        if self._torn:
            write_all(self._fd, b"\n")  # ends the interrupted row, so that the next begins on its own line
            self._torn = False
        for chunk in body_chunks(self._format, batch.fragments()):
            write_all(self._fd, chunk)
        if self._format == "json_array":
            write_all(self._fd, b"\n")
        return Answer(Verdict.ACK)


def _failure(error: OSError) -> Answer:
    if error.errno in (errno.EPIPE, errno.EBADF):
        return Answer(Verdict.HALT, "standard output is closed: there is no reader")
    return Answer(Verdict.UNANSWERED, f"cannot write to standard output: {error.strerror}")


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, in as many calls as necessary."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
