"""Damage of the state that is found while the daemon runs; how the state itself deals with it is elsewhere."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from sidecar.core.records import TopicPartition
from sidecar.daemon.lifecycle import leave
from sidecar.daemon.supervisor import Supervisor
from sidecar.runtime.worker import Worker
from sidecar.state.database import DATABASE_FILE
from sidecar.state.interface import PartitionSnapshot
from sidecar.state.store import Store

TP = TopicPartition("orders", 3)


def test_damage_that_is_found_in_mid_life_is_told(tmp_path: Path) -> None:
    """A row that does not check when it is read, long after the start, has its line in the log."""
    nothing: Any = SimpleNamespace(
        EFFECTS=(),
        owned=(),
        remembers_ids=False,
        committed=lambda *_: None,
        begin_commit=lambda _: [],
        take_held_ids=list,
        count_unwritten=lambda _: None,
        lose_state=lambda _: None,
    )
    broker: Any = SimpleNamespace(commit_now=lambda _: {}, close=lambda: None)
    dead_letter_writer: Any = SimpleNamespace(close=lambda: None)
    unused: Any = None
    with contextlib.closing(Store(tmp_path)) as state, contextlib.closing(Worker()) as writer:
        state.save_partitions([PartitionSnapshot(TP, "id", 1, 5, 0, (b"", b""))])
        with contextlib.closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as other:
            other.execute("UPDATE partitions SET watermark = 6")
            other.commit()
        supervisor = Supervisor(nothing, broker, unused, queue.SimpleQueue(), writer, state, dead_letter_writer)
        assert state.load_partitions() == {}
        with structlog.testing.capture_logs() as lines:
            leave(supervisor, writer, state, dead_letter_writer)
    told = [(line["event"], line["what"], line["where"]) for line in lines if line["log_level"] == "error"]
    assert told == [("state.damaged", "partition", "orders:3")]
