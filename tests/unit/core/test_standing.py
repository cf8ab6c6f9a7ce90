"""What a committed state tells of single messages."""

from __future__ import annotations

import pytest

from sidecar.core.partition.promises import Phase, Standing, standing
from sidecar.core.partition_state import LaneState, PartitionState, SharedIntent, Tries, lane_key

A, B = lane_key("a"), lane_key("b")
STATE = PartitionState(10, 50, {A: LaneState(40, ((12, 15), (20, 25)))}, tries={(A, 20, 25): Tries(3, 9)})
SHARED = PartitionState(10, 50, {}, 30, (SharedIntent(10, 20, frozenset({B})),))


@pytest.mark.parametrize(
    ("state", "group", "offset", "found"),
    [
        (STATE, "a", 9, Standing(Phase.SETTLED)),
        (STATE, "a", 11, Standing(Phase.SETTLED)),
        (STATE, "a", 12, Standing(Phase.FIXED, 12, 15)),
        (STATE, "a", 25, Standing(Phase.FIXED, 20, 25, Tries(3, 9))),
        (STATE, "a", 26, Standing(Phase.SETTLED)),
        (STATE, "a", 40, Standing(Phase.OPEN)),
        (STATE, "a", 50, Standing(Phase.UNREAD)),
        (STATE, "b", 12, Standing(Phase.SETTLED)),
        (STATE, "b", 49, Standing(Phase.SETTLED)),
        (SHARED, "a", 20, Standing(Phase.FIXED, 10, 20)),
        (SHARED, "b", 20, Standing(Phase.SETTLED)),
        (SHARED, "b", 30, Standing(Phase.OPEN)),
    ],
)
def test_a_message_stands_where_a_successor_would_place_it(
    state: PartitionState, group: str, offset: int, found: Standing
) -> None:
    """Below the watermark, in a part of its group or of all, open, between them, and beyond what was read."""
    assert standing(state, group, offset) == found
