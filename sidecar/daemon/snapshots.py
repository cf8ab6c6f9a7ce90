"""Snapshots of what was settled of partitions: written by the writer now and then, and at the end. Decides nothing."""

from __future__ import annotations

import time
from typing import NamedTuple

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.record import Record
from sidecar.errors import SidecarError
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sources.base import Assignment
from sidecar.state.interface import PartitionSnapshot, State

EVERY_S = 5.0


class Snapped(NamedTuple):
    """A snapshot was written, or not. Comes to the inbox."""

    reason: str
    """Why not; empty when it was."""


class Snapshots:
    """The snapshots of the partitions that are ours; only for the main thread.

    Args:
        pipeline: Knows what is settled.
        state: Keeps them.
        writer: Waits for the disk.
        inbox: Takes a `Snapped` for each that was written meanwhile.
        record: Is told how they end.
    """

    def __init__(self, pipeline: Pipeline, state: State, writer: Worker, inbox: Inbox[Snapped], record: Record) -> None:
        self.assignments: dict[TopicPartition, Assignment] = {}
        """Of the partitions that are written."""
        self._pipeline = pipeline
        self._state = state
        self._writer = writer
        self._inbox = inbox
        self._record = record
        self._writing = False
        self._write_at_s = time.monotonic() + EVERY_S

    def load(self) -> dict[TopicPartition, PartitionSnapshot]:
        """Those of earlier lives."""
        return self._writer.wait(self._state.load_partitions)

    def tend(self, now_s: float) -> None:
        """Write one when that is due, unless the one before is still being written."""
        if now_s < self._write_at_s:
            return
        self._write_at_s = now_s + EVERY_S
        rows = [] if self._writing else self._rows()
        if rows:
            self._writing = True
            self._writer.do(lambda: self._inbox.put(Snapped(self._save(rows))))

    def ended(self, snapped: Snapped) -> None:
        """The one being written was, or could not be."""
        self._writing = False
        self._record.snapped(snapped.reason)

    def now(self) -> None:
        """Write one, and wait for it."""
        rows = self._rows()
        self._record.snapped(self._writer.wait(lambda: self._save(rows)))

    def _rows(self) -> list[PartitionSnapshot]:
        """Only what is settled: what is in flight is new again after a crash."""
        rows = []
        for tp, assignment in self.assignments.items():
            partition = self._pipeline.partitions[tp]
            bitmaps = self._pipeline.intake.positions.dump(partition)
            mark, floor = partition.reach.committed, assignment.state.watermark
            rows.append(PartitionSnapshot(tp, assignment.topic_id, assignment.incarnation, mark, floor, bitmaps))
        return rows

    def _save(self, rows: list[PartitionSnapshot]) -> str:
        """On the writer thread; returns why it could not be written, empty when it was."""
        try:
            self._state.save_partitions(rows)
        except SidecarError as error:
            return str(error)
        return ""
