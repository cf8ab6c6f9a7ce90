"""Snapshots of partitions' settled offsets, written periodically by the writer, and at the end. Decides nothing."""

from __future__ import annotations

import time
from functools import partial

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.record import LoopRecord
from sidecar.errors import SidecarError
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sources.base import Assignment
from sidecar.state.interface import PartitionSnapshot, State

EVERY_S = 5.0


class Snapshots:
    """The snapshots of the owned partitions; only for the main thread."""

    def __init__(self, pipeline: Pipeline, state: State, writer: Worker, inbox: Inbox, record: LoopRecord) -> None:
        self.assignments: dict[TopicPartition, Assignment] = {}
        """Assignments of the partitions that are written."""
        self._pipeline = pipeline
        self._state = state
        self._writer = writer
        self._inbox = inbox
        self._record = record
        self._writing = False
        self._write_at_s = time.monotonic() + EVERY_S

    def load(self) -> dict[TopicPartition, PartitionSnapshot]:
        return self._writer.wait(self._state.load_partitions)

    def tend(self, now_s: float) -> None:
        """Write a snapshot when it is due, unless the previous one is still being written."""
        if now_s < self._write_at_s:
            return
        self._write_at_s = now_s + EVERY_S
        rows = [] if self._writing else self._rows()
        if rows:
            self._writing = True
            self._writer.do(lambda: self._inbox.put(partial(self._ended, self._save(rows))))

    def _ended(self, reason: str, _: float) -> None:
        self._writing = False
        self._record.snapped(reason)

    def now(self) -> None:
        rows = self._rows()
        self._record.snapped(self._writer.wait(lambda: self._save(rows)))

    def _rows(self) -> list[PartitionSnapshot]:
        """Rows with settled offsets only: messages in flight are new again after a crash."""
        rows = []
        for tp, assignment in self.assignments.items():
            bitmaps, mark = self._pipeline.settled_offsets(tp)
            floor = assignment.state.watermark
            rows.append(PartitionSnapshot(tp, assignment.topic_id, assignment.incarnation, mark, floor, bitmaps))
        return rows

    def _save(self, rows: list[PartitionSnapshot]) -> str:
        """Save on the writer thread; return the reason of a failure, otherwise an empty text."""
        try:
            self._state.save_partitions(rows)
        except SidecarError as error:
            return str(error)
        return ""
