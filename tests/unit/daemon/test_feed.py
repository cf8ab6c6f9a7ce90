"""What the core gets from the source, and for how long the source is waited for. Everything around is a stand-in."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.daemon.delays.absent import NoDelays, NoTakeovers
from sidecar.daemon.feed import BUSY_POLL_S, DUE_POLL_S, Feed
from sidecar.daemon.taken import TakenPartition
from sidecar.sources.base import Assignment, ReadPast, SettledWindow
from sidecar.state.interface import PartitionSnapshot

TP, OTHER, COPIES = (TopicPartition("orders", number) for number in (0, 1, 2))


def assignment(tp: TopicPartition = TP, **more: Any) -> Assignment:
    """A partition that goes on from a commit."""
    given = {"resumed": True, "read_from": 5, **more}
    return Assignment(tp, "5c0pe001", PartitionState(5, 5), "id", 9, **given)


class Fed:
    """A feed without delayed messages."""

    def __init__(self, *, has_ledger: bool = False, delays: Any = None) -> None:
        delays = delays or NoDelays(NoTakeovers())
        self.pipeline: Any = Mock(paused=frozenset())
        self.pipeline.patience_ms.return_value = inf
        self.pipeline.copies_of.side_effect = lambda tps: frozenset({COPIES} if TP in tps else ())
        self.pipeline.load_settled.return_value = False
        self.source: Any = Mock(idle_poll_s=0.7)
        self.ids: Any = Mock(loading={}, **{"take.return_value": True})
        self.snapshots: Any = Mock(assignments={}, **{"load.return_value": {}})
        self.feed = Feed(self.pipeline, self.source, self.ids, self.snapshots, delays, has_ledger=has_ledger)

    @property
    def paused(self) -> Any:
        """What is paused last."""
        return self.source.pause.call_args.args[0]

    def waits(self) -> float:
        """For how long the source is waited for."""
        self.source.poll.return_value = []
        self.feed.poll()
        found: float = self.source.poll.call_args.args[0]
        return found


def test_a_partition_goes_to_the_core_at_once() -> None:
    """If its ids are there; the folder is read for all partitions together."""
    fed = Fed()
    fed.feed.take_partitions([assignment(), assignment(OTHER)])
    assert [call.args[0] for call in fed.pipeline.assign.call_args_list] == [TP, OTHER]
    assert (fed.snapshots.load.call_count, fed.source.pause.called, fed.feed.is_loading) == (1, False, False)
    assert fed.snapshots.assignments == {TP: assignment(), OTHER: assignment(OTHER)}
    fed.feed.take_partitions([])
    assert fed.snapshots.load.call_count == 1


def test_a_partition_whose_ids_are_being_loaded_waits() -> None:
    """It is paused with its copies, and what came of it is read when it is given; others are not held up."""
    fed = Fed()
    fed.ids.take_partition.side_effect = lambda found, *_: found.tp == OTHER
    taken = TakenPartition(assignment(), None, 0, 0.0, print)
    fed.ids.loading = {TP: taken}
    fed.feed.take_partitions([assignment(), assignment(OTHER)])
    assert [call.args[0] for call in fed.pipeline.assign.call_args_list] == [OTHER]
    assert (fed.paused, fed.feed.is_loading) == ({TP, COPIES}, True)
    fed.source.poll.return_value = [Run(TP, ["m"], 5, 5), Run(OTHER, ["m"], 7, 7), ReadPast(TP, 9)]
    fed.feed.poll()
    assert [call.args[0].tp for call in fed.pipeline.read.call_args_list] == [OTHER]
    fed.ids.loading = {}
    *_, then = fed.ids.take_partition.call_args_list[0].args
    then(taken)
    assert [call.args[0] for call in fed.pipeline.assign.call_args_list] == [OTHER, TP]
    assert fed.pipeline.read.call_args.args[0] == Run(TP, ["m"], 5, 5)
    assert fed.pipeline.read_past.call_args.args[:2] == (TP, 9)
    assert (fed.paused, fed.feed.is_loading) == (frozenset(), False)


def test_what_the_core_does_not_want_is_paused() -> None:
    """Its delayed messages are no matter of the source."""
    fed = Fed()
    fed.feed.flow(frozenset({OTHER, OTHER.store}))
    assert fed.paused == {OTHER}


SNAPSHOT = PartitionSnapshot(TP, "id", 9, 5, 0, (b"young", b"old"))


@pytest.mark.parametrize(
    ("known", "given", "has_ledger", "loads", "writes"),
    [
        (SNAPSHOT, {}, False, 5, False),
        (SNAPSHOT, {"resumed": False}, False, None, False),
        (None, {}, False, None, False),
        (replace(SNAPSHOT, topic_id="old"), {}, False, None, False),
        (replace(SNAPSHOT, incarnation=8), {}, False, None, False),
        (SNAPSHOT, {"settled": SettledWindow(9, 7)}, False, 7, False),
        (replace(SNAPSHOT, incarnation=8), {"settled": SettledWindow(8, 7)}, False, 7, True),
        (replace(SNAPSHOT, incarnation=8), {"settled": SettledWindow(8, 7)}, True, None, False),
        (SNAPSHOT, {"settled": SettledWindow(8, 7)}, False, None, True),
    ],
)  # fmt: skip
def test_a_window_of_the_folder_counts_where_it_is_of_these_messages(
    known: PartitionSnapshot | None, given: dict[str, Any], has_ledger: bool, loads: int | None, writes: bool
) -> None:
    """Below the limit; it is written again at once if another incarnation begins. A ledger knows better."""
    fed = Fed(has_ledger=has_ledger)
    fed.snapshots.load.return_value = {} if known is None else {TP: known}
    fed.feed.take_partitions([assignment(**given)])
    loaded = [call.args for call in fed.pipeline.load_settled.call_args_list]
    assert loaded == ([] if loads is None or known is None else [(TP, known.bitmaps, loads)])
    assert fed.snapshots.now.called == writes


def test_a_window_that_is_not_trusted_is_written_again() -> None:
    """Once for all partitions."""
    fed = Fed()
    fed.snapshots.load.return_value = {TP: SNAPSHOT, OTHER: SNAPSHOT}
    fed.pipeline.load_settled.side_effect = [True, False]
    fed.feed.take_partitions([assignment(), assignment(OTHER)])
    assert fed.snapshots.now.call_count == 1


def test_an_idle_core_lets_the_source_wait() -> None:
    """As long as the source likes."""
    assert Fed().waits() == 0.7


@pytest.mark.parametrize(("left_ms", "wait_s"), [(0.0, DUE_POLL_S), (7.0, 0.007)])
def test_what_the_core_waits_for_shortens_the_wait(left_ms: float, wait_s: float) -> None:
    """Not to nothing: the loop must not spin."""
    fed = Fed()
    fed.pipeline.patience_ms.return_value = left_ms
    assert fed.waits() == pytest.approx(wait_s)


@pytest.mark.parametrize(("due_s", "wait_s"), [(0.3, 0.3), (60.0, 0.7), (0.0, DUE_POLL_S)])
def test_messages_that_fall_due_shorten_the_wait(due_s: float, wait_s: float) -> None:
    """Not to nothing: one that cannot be read must not make the loop spin."""
    delays: Any = Mock(takeovers=NoTakeovers(), **{"poll.return_value": due_s})
    fed = Fed(delays=delays)
    assert fed.waits() == wait_s
    assert delays.poll.call_count == 1
    fed.feed.take_partitions([assignment()])
    assert delays.owned.take_partition.call_args.args == (assignment(),)


def test_a_restore_under_way_shortens_the_wait() -> None:
    """Its messages come by the inbox."""
    takeovers: Any = Mock(loading={}, is_adopting=True, **{"proved.return_value": [], "stale.return_value": {}})
    delays: Any = Mock(takeovers=takeovers, **{"poll.return_value": 60.0})
    assert Fed(delays=delays).waits() == BUSY_POLL_S
