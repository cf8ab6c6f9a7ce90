"""Appends batches to a Delta table, many at a time, each once: see `table.parts`. Uses no Spark and no HTTP."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sidecar import files, threads
from sidecar.config.table_layout import DeltaSinkSettings, TableLayout, layout_of
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from sidecar.sinks.base import Context
from sidecar.sinks.table.by_deltalake import steps
from sidecar.sinks.table.parts import PartsTable, line_of
from sidecar.sinks.table.upkeep import Upkeep, no_counts
from sidecar.zone.rows import RowFramer

COMMIT_BYTES_MAX: Final = 64 << 20
"""Limit of rows' bytes in a commit; a larger batch is committed alone."""
PAUSES: Final = 9
"""After a commit, no commit is made for this many times its duration: it takes 27 us for each file in the log (140 ms
at 5,000 files), so the longer the log, the fewer and larger the commits."""
PAUSE_MAX_S: Final = 5.0
NOTES: Final = "table-maintenance.json"
"""Name of the file in the state folder."""
BY_DEFAULT: Final = TableLayout(section="sink.delta")


def build(settings: DeltaSinkSettings, context: Context) -> DeltaSink:
    """The sink of these settings."""
    framer = RowFramer(context.columns, context.tags_of, context.groups)
    return DeltaSink(settings.path, framer, layout_of(settings, "sink.delta"), context.state_dir / NOTES)


class _Waiting(NamedTuple):
    batch: Batch
    answer: Future[Answer]


class DeltaSink:
    """Acknowledges a batch when the commit that has its rows and names is durable.

    Callers wait while one thread commits all batches that wait at that moment: the more wait, the fewer commits.

    Args:
        path: The table: a path, or a URL that deltalake supports. Created if it is missing.
        notes: File with the time of the last maintenance; required with maintenance.

    Raises:
        ConfigError: The table cannot be opened or created, has other columns or partitions, or features that deltalake
            lacks.
    """

    def __init__(
        self, path: str, framer: RowFramer, layout: TableLayout = BY_DEFAULT, notes: Path | None = None
    ) -> None:
        self.framer = framer
        self._table = PartsTable(path, layout)
        self.maintained = no_counts(layout.maintenance)
        """Maintenance by operation and result."""
        self._upkeep = None
        if layout.maintenance.is_on:
            assert notes is not None, "as documented"
            path, read, write = self._table.path, partial(files.read_from, notes), partial(files.put, notes)
            self._upkeep = Upkeep(path, layout.maintenance, steps(path), read, write, self.maintained)
        self._work: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._held: _Waiting | None = None
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        """Started with the first batch."""

    def deliver(self, batch: Batch) -> Answer:
        """Append the parts that the table does not have yet, together with other waiting batches."""
        waiting = _Waiting(batch, Future())
        with self._guard:
            if self._closed.is_set():
                return _CLOSED
            self._work.put(waiting)
            if self._thread is None:
                self._thread = threads.start(self._run, "sink-delta")
                if self._upkeep is not None:
                    threads.start(partial(self._maintain, self._upkeep), "sink-upkeep")
            thread = self._thread
        return threads.result(waiting.answer, thread)

    def close(self) -> None:
        """Answer waiting batches with a retry, and end once a commit under way has ended."""
        with self._guard:
            if not self._closed.is_set():
                self._closed.set()
                self._work.put(None)
        if self._thread is not None:
            self._thread.join()

    def _maintain(self, upkeep: Upkeep) -> None:
        """Commit beside the other thread, like another process; `close` does not wait for an operation under way."""
        while not self._closed.wait(upkeep.wait_s()):
            upkeep.tend()

    def _run(self) -> None:
        while group := self._next():
            begun_s = time.monotonic()
            answers = [_CLOSED] * len(group)
            try:
                if not self._closed.is_set():
                    answers = self._table.append([waiting.batch for waiting in group])
            except Exception as error:  # noqa: BLE001  # whoever waits must be answered, and the thread live on
                answer = Answer(Verdict.UNANSWERED, f"the sink failed: {type(error).__name__}: {line_of(error)}")
                answers = [answer] * len(group)
            for waiting, answer in zip(group, answers, strict=True):
                waiting.answer.set_result(answer)
            del group, waiting  # releases the batches while waiting for more
            self._closed.wait(min(PAUSES * (time.monotonic() - begun_s), PAUSE_MAX_S))

    def _next(self) -> list[_Waiting]:
        """All waiting batches, up to `COMMIT_BYTES_MAX`; none if the sink is closed and nothing waits."""
        first = self._held or self._work.get()
        self._held = None
        group = [first] if first else []
        size = sum(waiting.batch.nbytes for waiting in group)
        while group and not self._work.empty():
            more = self._work.get()
            if more is None:
                self._work.put(None)  # the end mark; it is read again after this group
                break
            size += more.batch.nbytes
            if size > COMMIT_BYTES_MAX:
                self._held = more
                break
            group.append(more)
        return group


_CLOSED: Final = Answer(Verdict.BUSY, "the sink is closed")
