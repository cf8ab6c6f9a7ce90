"""What is counted is what it costs: memory of the daemon itself beside what it says it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory import MIB, Point, filled, measure, silence
from tests.support.kafka import Broker

BUDGET = 32 * MIB
POINTS = [
    Point(8, 1, 8),  # the client's queue costs the most for each byte
    Point(3000, 30, 8),  # so do lanes
    Point(450, 1, 100, "envelope"),  # rows that stand alone
]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_memory_is_what_is_counted(kafka: Broker, tmp_path: Path, point: Point) -> None:
    """While a receiver is silent memory grows by 1.25 of what is held, and stays below 1.3 of the budget and 60 MiB."""
    with silence() as port, filled(kafka, point, point.enough(BUDGET)) as topic:
        found = measure(kafka, port, tmp_path, point, BUDGET, topic)
    assert found.keeps_bounds, f"{point}: {found}"
