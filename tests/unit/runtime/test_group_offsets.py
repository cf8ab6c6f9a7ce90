"""What the broker has of a partition of the group, as an operator sees it."""

from __future__ import annotations

import pytest

from sidecar.core.records import TopicPartition
from sidecar.runtime.group_offsets import PartitionOffsets


@pytest.mark.parametrize(
    ("committed", "low", "high", "lag"),
    [(10, 5, 50, 40), (50, 5, 50, 0), (3, 5, 50, 45), (None, 5, 50, 45), (None, 0, 0, 0), (60, 5, 50, 0), (0, 0, 9, 9)],
)
def test_lag_is_what_can_still_be_read(committed: int | None, low: int, high: int, lag: int) -> None:
    """What the log has lost before it was read is none of it, and neither is an offset behind the log's end."""
    assert PartitionOffsets(TopicPartition("orders", 0), committed, None, low, high, "").lag == lag
