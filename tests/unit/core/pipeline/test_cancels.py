"""Messages that cancel held ones, in the core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyroaring import BitMap64

from sidecar.core.effects import CancelHeld, HoldUntilDue
from sidecar.core.partition_state import PartitionState, Stores
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Run
from tests.simulation.delayed import START_MS, TP, Circumstances, Row

DUE = START_MS + 1_000


def _pipeline(*, ids: bool = False) -> Pipeline:
    plan = Circumstances.of(1)
    read_ids = (lambda tp, messages: [row[2] for row in messages]) if ids else None
    pipeline = Pipeline(replace(plan.reading, ids=read_ids), plan.batching, plan.rules, lambda: 0.5)
    pipeline.assign(TP, "s", PartitionState(0, 0))
    return pipeline


def _read(pipeline: Pipeline, *rows: Row) -> list[HoldUntilDue | CancelHeld]:
    pipeline.read(Run(TP, list(rows), rows[0][0], rows[-1][0]), 0.0)
    return [effect for effect in pipeline.step(0.0) if isinstance(effect, HoldUntilDue | CancelHeld)]


def test_what_is_to_be_held_goes_to_the_store_before_it_is_cancelled() -> None:
    """Of a run, each name is cancelled once, below the last message that names it."""
    held: Row = (0, 0, None, DUE, b"a", ())
    later: Row = (3, 0, None, DUE, b"a", ())
    hold, cancel = _read(
        _pipeline(), held, (1, 0, None, None, None, (b"a",)), (2, 0, None, None, None, (b"a", b"b")), later
    )
    assert isinstance(hold, HoldUntilDue)
    assert list(hold.messages) == [held, later]
    assert isinstance(cancel, CancelHeld)
    assert (cancel.names, cancel.token > hold.token) == ({b"a": 2, b"b": 2}, True)


@pytest.mark.parametrize("row", [(0, 3, None, None), (0, 0, 7, None), (0, 0, 7, DUE), (0, 0, None, "malformed")])
@pytest.mark.parametrize("ids", [False, True])
def test_a_message_that_cancels_is_filtered(row: tuple[int, int, int | None, int | str | None], *, ids: bool) -> None:
    """Whatever its tag, id and due time; its id is not remembered."""
    pipeline = _pipeline(ids=ids)
    assert len(_read(pipeline, (*row, b"a", (b"a",)))) == 1
    _read(pipeline, (1, 0, 7, None, None, ()))
    books = pipeline.books[TP]
    assert (books.consumed, books.filtered, books.in_flight) == (2, 1, 1)


def test_a_commit_waits_until_all_is_cancelled() -> None:
    """It needs the store until that is durable; messages that are held meanwhile change nothing about it."""
    pipeline = _pipeline()
    (cancel,) = _read(pipeline, (0, 0, None, None, None, (b"a",)))
    (hold,) = _read(pipeline, (1, 0, None, DUE, None, ()))
    assert pipeline.expects(cancel)
    pipeline.held(TP, hold.token, 0, 0.0)
    assert not pipeline.idle
    (item,) = pipeline.begin_commit([TP])
    assert (item.state.watermark, item.puts) == (2, True)
    pipeline.cancelled(TP, cancel.token)
    assert pipeline.puts.idle
    assert not pipeline.expects(cancel)
    pipeline.committed({}, 0.0)
    (item,) = pipeline.begin_commit([TP])
    assert not item.puts


def test_a_lost_partition_waits_for_nothing() -> None:
    """What the store says later is ignored."""
    pipeline = _pipeline()
    (cancel,) = _read(pipeline, (0, 0, None, None, None, (b"a",)))
    pipeline.forget_partitions([TP])
    assert pipeline.puts.idle
    pipeline.cancelled(TP, cancel.token)
    assert pipeline.puts.idle


def test_a_message_that_is_read_again_cancels_again() -> None:
    """Its commit may not have been made: the store must hear of it again."""
    pipeline = _pipeline()
    pipeline.assign(TP, "s", PartitionState(0, 2))
    pipeline.held(TP, pipeline.know_held(TP, BitMap64(), Stores(1)), 0, 0.0)
    (cancel,) = _read(pipeline, (0, 0, None, DUE, b"a", ()), (1, 0, None, None, None, (b"a",)))
    assert isinstance(cancel, CancelHeld)
    assert cancel.names == {b"a": 1}
    assert pipeline.books[TP].filtered == 1
