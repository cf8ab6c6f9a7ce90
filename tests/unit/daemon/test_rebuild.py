"""What a restart rebuilds from the state: the windows of positions, of the same incarnation only."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest
from pyroaring import BitMap64
from structlog.testing import capture_logs

from sidecar.config.model import Settings
from sidecar.core.lineage import Lineage
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.core.windows.bitmap import RotatingBitmap
from sidecar.daemon.supervisor import Supervisor
from sidecar.runtime.build import build
from sidecar.runtime.worker import Worker
from sidecar.sources.base import Assignment, SettledWindow
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.state.interface import PartitionSnapshot
from tests.support.memory_state import MemoryState

TP = TopicPartition("orders", 0)
SETTINGS = {
    "source": {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["orders"]}},
    "sink": {"console": {}},
    "state": {"dir": "state"},
}


def assigned(state: MemoryState, found: Assignment) -> Pipeline:
    """The core after a start that got this partition."""
    writer = Worker()
    pipeline, _ = build(Settings.model_validate(SETTINGS), KafkaColumns())
    unused = cast(Any, None)
    supervisor = Supervisor(pipeline, unused, unused, queue.SimpleQueue(), writer, state, unused)
    supervisor.listener.assigned([found])
    writer.close()
    return pipeline


@pytest.mark.parametrize(("incarnation", "resumed", "known"), [(7, True, True), (8, True, False), (7, False, False)])
def test_positions_are_rebuilt_for_the_same_incarnation_alone(incarnation: int, resumed: bool, known: bool) -> None:
    """An offset that the snapshot holds is a duplicate after a restart, and new after an operator's reset."""
    written = RotatingBitmap()
    written.add_range(100, 199)
    state = MemoryState()
    state.save_partitions([PartitionSnapshot(TP, "topic-id", 7, 200, 0, written.dump())])
    found = Assignment(TP, "scope", PartitionState(200, 200), "topic-id", incarnation, resumed=resumed, read_from=200)
    pipeline = assigned(state, found)
    bitmaps = map(BitMap64.deserialize, pipeline.settled_offsets(TP)[0])
    assert any(150 in one for one in bitmaps) is known


def test_positions_that_are_no_bitmaps_count_as_none() -> None:
    """Sound rows that another version wrote: the daemon starts, and its next commit replaces them."""
    state = MemoryState()
    state.save_partitions([PartitionSnapshot(TP, "topic-id", 7, 200, 0, (b"no", b""))])
    found = Assignment(TP, "scope", PartitionState(200, 200), "topic-id", 7, resumed=True, read_from=200)
    with capture_logs() as logged:
        pipeline = assigned(state, found)
    assert not any(map(BitMap64.deserialize, pipeline.settled_offsets(TP)[0]))
    assert [each["where"] for each in logged if each["event"] == "state.damaged"] == [f"{TP.topic}:{TP.queue}"]


@pytest.mark.parametrize(("trusted_below", "known"), [(150, True), (140, False)])
def test_what_is_not_trusted_of_a_window_is_not_found_by_a_later_start(trusted_below: int, known: bool) -> None:
    """A later start finds commits that were made since, and would take what stands there by then for settled."""
    written = RotatingBitmap()
    written.add_range(130, 149)
    state = MemoryState()
    state.save_partitions([PartitionSnapshot(TP, "topic-id", 7, 100, 0, written.dump())])
    for below in (trusted_below, 200):
        settled = SettledWindow(7, below)
        found = Assignment(TP, "scope", PartitionState(100, 100), "topic-id", 7, True, 100, Lineage(), settled)  # noqa: FBT003
        pipeline = assigned(state, found)
    young, _ = pipeline.settled_offsets(TP)[0]
    assert (145 in BitMap64.deserialize(young)) is known
