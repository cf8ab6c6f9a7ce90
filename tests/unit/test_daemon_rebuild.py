"""What a restart rebuilds from the state: the windows of positions, of the same incarnation only."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from sidecar.config.model import Settings
from sidecar.core.carried import Carried
from sidecar.core.dedup import RotatingBitmap
from sidecar.core.records import TopicPartition
from sidecar.daemon.build import build
from sidecar.daemon.dispatcher import Writer
from sidecar.daemon.supervisor import Supervisor
from sidecar.sources.base import Assignment
from sidecar.sources.kafka_columns import KafkaColumns
from sidecar.state.interface import PartitionSnapshot
from sidecar.state.memory import MemoryState

TP = TopicPartition("orders", 0)
SETTINGS = {
    "source": {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["orders"]}},
    "sink": {"console": {}},
    "state": {"dir": "state"},
}


@pytest.mark.parametrize(("incarnation", "resumed", "known"), [(7, True, True), (8, True, False), (7, False, False)])
def test_positions_are_rebuilt_for_the_same_incarnation_alone(incarnation: int, resumed: bool, known: bool) -> None:
    """An offset that the snapshot holds is a duplicate after a restart, and new after an operator's reset."""
    written = RotatingBitmap()
    written.add_range(100, 199)
    state, writer = MemoryState(), Writer()
    state.save_partitions([PartitionSnapshot(TP, "topic-id", 7, 200, 0, written.dump())])
    pipeline, _ = build(Settings.model_validate(SETTINGS), KafkaColumns())
    unused = cast(Any, None)
    supervisor = Supervisor(pipeline, unused, unused, queue.SimpleQueue(), writer, state, unused, 1.0)
    found = Assignment(TP, "scope", Carried(200, 200), "topic-id", incarnation, resumed=resumed, read_from=200)
    supervisor.assigned([found])
    writer.close()
    assert pipeline.intake.positions.duplicated(TP, 150) is known
