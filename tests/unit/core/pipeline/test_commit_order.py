"""The order of a commit: ids in the journal, ends of claims in the ledger, then the states."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from sidecar.core.claims import ClaimEnd, ClaimState
from sidecar.core.effects import CommitItem
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.commit_order import (
    CommitOrder,
    Journal,
    Keep,
    OrderError,
    Publish,
    Refuse,
    Settle,
    SettledIds,
    Step,
)
from sidecar.core.records import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
MARK = ClaimEnd(1, ClaimState.SUCCESS, [7], b"k" * 16)
OTHER_MARK = ClaimEnd(1, ClaimState.SUCCESS, [8], b"l" * 16)


def item(tp: TopicPartition = A, *ids: int, marks: tuple[ClaimEnd, ...] = ()) -> CommitItem:
    """A partition's state that settles these ids and claims."""
    return CommitItem(tp, "scope", PartitionState(5, 5), 0, array("q", ids) if ids else None, marks)


def journalled(step: Step | None) -> list[int]:
    """The ids that are to be written."""
    assert isinstance(step, Journal)
    return [number for segment in step.segments for number in segment.ids]


def test_ids_and_claims_are_durable_before_the_states() -> None:
    """First the journal, then the ledger, then the commit."""
    order, items = CommitOrder(), [item(A, 1, 2, marks=(MARK,))]
    assert journalled(order.begin_commit(items)) == [1, 2]
    assert order.ended(ok=True) == Settle((MARK,))
    assert order.ended(ok=True) == Publish(items)


def test_what_settles_nothing_is_committed_at_once() -> None:
    """Without ids and claims there is nothing to wait for."""
    order, items = CommitOrder(), [item()]
    assert order.begin_commit(items) == Publish(items)
    assert not order.busy


@pytest.mark.parametrize(("marks", "first"), [((), 0), ((MARK,), 1)])
def test_what_is_not_durable_is_not_committed(marks: tuple[ClaimEnd, ...], first: int) -> None:
    """A step that fails refuses the commit; the next one takes along what was not written, and no more."""
    order = CommitOrder()
    order.begin_commit([item(A, 1, marks=marks)])
    for _ in range(first):
        order.ended(ok=True)
    assert order.ended(ok=False) == Refuse([A])
    assert (order.unwritten_bytes > 0) == (not first)
    step = order.begin_commit([item(B, 2, marks=(OTHER_MARK,))])
    assert journalled(step) == ([2] if first else [1, 2])
    assert order.ended(ok=True) == Settle((*marks, OTHER_MARK))
    assert order.unwritten_bytes == 0


def test_ids_of_held_messages_are_durable_after_the_store_and_before_the_states() -> None:
    """Before the store has the messages they are not settled, and the commit settles them."""
    order = CommitOrder()
    assert journalled(order.begin_commit([replace(item(A, 1), puts=True)])) == [1]
    assert order.ended(ok=True) == Keep([])
    assert journalled(order.ended(ok=True, held=[SettledIds(A, "scope", 0, array("q", [2]))])) == [2]
    assert isinstance(order.ended(ok=True), Publish)
    assert order.unwritten_bytes == 0


def test_ids_of_held_messages_are_not_lost_with_their_commit() -> None:
    """If that is overtaken, the next one writes them."""
    order = CommitOrder()
    order.begin_commit([replace(item(), puts=True)])
    order.overtake()
    assert order.ended(ok=True, held=[SettledIds(A, "scope", 0, array("q", [2]))]) is None
    assert journalled(order.begin_commit([item()])) == [2]


def test_a_commit_that_is_overtaken_is_not_made() -> None:
    """Its step goes on to its end, what that wrote is not written again, and another commit follows."""
    order, items = CommitOrder(), [item(B, 2)]
    order.begin_commit([item(A, 1)])
    order.overtake()
    with pytest.raises(OrderError, match="begins while"):
        order.begin_commit(items)
    assert order.ended(ok=True) is None
    assert journalled(order.begin_commit(items)) == [2]
    assert order.ended(ok=True) == Publish(items)


def test_a_partition_that_was_given_up_is_not_named() -> None:
    """It may come back with what another owner committed, which an older state would undo."""
    order = CommitOrder()
    order.begin_commit([item(A, 1), item(B)])
    order.forget_partitions([A])
    assert order.ended(ok=True) == Publish([item(B)])
    order.begin_commit([item(A, 1)])
    order.forget_partitions([A])
    assert order.ended(ok=True) == Refuse([])
    order.forget_partitions([A])


def test_a_partition_that_starts_over_has_no_ids_of_before() -> None:
    """Those that could not be written yet are dropped, and so are those that are being written."""
    order = CommitOrder()
    order.begin_commit([item(A, 1), item(B, 2)])
    order.ended(ok=False)
    order.forget_ids(A)
    assert journalled(order.begin_commit([item(A, 3)])) == [2, 3]
    order.forget_ids(B)
    assert isinstance(order.ended(ok=True), Publish)
    assert order.unwritten_bytes == 0


def test_the_end_of_no_step_is_an_error() -> None:
    """A step is ended once."""
    with pytest.raises(OrderError, match="none was under way"):
        CommitOrder().ended(ok=True)
