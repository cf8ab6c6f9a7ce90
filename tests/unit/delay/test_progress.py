"""Progress of delayed messages, as a store keeps it."""

from __future__ import annotations

from sidecar.core.partition_state import LaneState, PartitionState
from sidecar.delay.progress import HeldProgress, restored
from sidecar.state.offset_map import Identity

IDENTITY = Identity("", "group", "store", 0)
STATE = PartitionState(5 << 40, 9 << 40, {7: LaneState(None, ((6 << 40, 7 << 40),))})


def test_what_was_kept_comes_back() -> None:
    """State, topic and incarnation."""
    progress = HeldProgress(IDENTITY, STATE, "topic", 12)
    assert restored(progress.encoded(b"rule"), IDENTITY, b"rule") == progress


def test_a_new_partition_begins_at_the_start() -> None:
    """Nothing is settled, and no incarnation is known."""
    assert restored(None, IDENTITY, b"rule") == HeldProgress(IDENTITY, PartitionState(0, 0), "", 0)


def test_under_other_rules_all_is_open_again_in_another_scope() -> None:
    """Names stand for the groups of other rules: they are not used again."""
    found = restored(HeldProgress(IDENTITY, STATE, "topic", 12).encoded(b"rule"), IDENTITY, b"else")
    assert found.state == PartitionState(5 << 40, 5 << 40)
    assert found.identity.scope != IDENTITY.scope
    again = restored(found.encoded(b"else"), IDENTITY, b"else")
    assert again == found
