"""Delayed messages in the core: bounds that the simulator does not look at."""

from __future__ import annotations

from dataclasses import replace

from pyroaring import BitMap64

from sidecar.core.effects import Commit, Flow
from sidecar.core.partition.partition import CountedReach
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import STORES_MAX, LaneState, Other, PartitionState, SharedIntent, Stores, Tries
from sidecar.core.pipeline.commit_order import CommitOrder, Keep, Publish
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Run, TopicPartition
from sidecar.state.offset_map import Identity, decode, encode
from tests.simulation.delayed import TP, Circumstances
from tests.support.shell import Shell

HOUR = 3_600_000 << 20
"""An hour in positions."""
IDENTITY = Identity("cluster", "group", "topic", 5)


def test_the_span_of_delayed_messages_is_counted_in_messages() -> None:
    """An hour between two of them is two messages, and those below the committed watermark count no more."""
    reach = CountedReach(0, 0, 0)
    reach.advance(HOUR, 3)
    reach.advance(2 * HOUR, 4)
    assert reach.span == 7
    reach.commit(HOUR + 1)
    assert reach.span == 4


def test_a_full_state_of_positions_fits_into_the_metadata() -> None:
    """As many groups and intents as the room allows, spread over 30 days."""
    room, month = StateBudget().for_positions, 24 * 30 * HOUR
    base = 500_000 * HOUR
    spread = [base + month * i // 1_000 for i in range(1_000)]
    extra = room.extra_bytes // 10
    cuts = tuple((first, last) for first, last in zip(spread[::2], spread[1::2], strict=True))
    lanes = {
        (1 << 48) - 1 - i: LaneState(base + month, cuts[: 1 + extra] if i == 0 else ((base, base + month),))
        for i in range(room.lanes)
    }
    tries = {(key, *lane.intents[0]): Tries(16_000, 2_000_000) for key, lane in list(lanes.items())[: room.tries]}
    stores = Stores(1, tuple(Other(i << 40, 1 << 60, 1 << 34) for i in range(STORES_MAX)))
    state = PartitionState(base, base + month, lanes, None, (), tries)
    assert decode(encode(IDENTITY, b"rule", state), base, IDENTITY, b"rule").state == state
    many = room.extra_cuts_bytes * 10 // 16 // 14
    shared = tuple(SharedIntent(spread[i], spread[i] + month) for i in range(many))
    state = replace(state, lanes={}, tries={}, shared=shared, shared_from=base + month)
    assert decode(encode(IDENTITY, b"rule", state), base, IDENTITY, b"rule").state == state
    own = PartitionState(7, 9, stores=stores)
    assert decode(encode(IDENTITY, b"rule", own), 7, IDENTITY, b"rule").state == own


def test_a_full_store_stops_partitions_and_not_what_is_held() -> None:
    """Partitions are not read, what is held is, and all goes on when there is space again."""
    plan = Circumstances.of(1)
    pipeline = Pipeline(plan.reading, plan.batching, plan.rules, lambda: 0.5)
    for tp in (TP, TP.store):
        pipeline.assign(tp, "s", PartitionState(0, 0))
    pipeline.fill_store("no space")
    assert _flows(pipeline) == [frozenset({TP})]
    assert pipeline.status().stops == {"delay_full": "no space"}
    pipeline.fill_store("")
    assert _flows(pipeline) == [frozenset()]


def test_a_full_store_does_not_stop_what_it_waits_for() -> None:
    """Messages that the store has beyond the last commit are read again: until then it delivers nothing."""
    plan = Circumstances.of(1)
    pipeline = Pipeline(plan.reading, plan.batching, plan.rules, lambda: 0.5)
    pipeline.assign(TP, "s", PartitionState(0, 0))
    pipeline.know_held(TP, BitMap64([4]), Stores(1))
    pipeline.fill_store("no space")
    assert pipeline.partitions[TP].holding.deliverable_below == 0
    assert _flows(pipeline) == []
    pipeline.read_past(TP, 5, 0.0)
    assert _flows(pipeline) == [frozenset({TP})]


def test_commits_of_due_messages_follow_each_other_at_once() -> None:
    """Those of other messages are 20 ms apart."""
    assert _commit_times(TP.store) == [0, 5]
    assert _commit_times(TP) == [0, 20]


def _commit_times(tp: TopicPartition) -> list[int]:
    """When commits begin, for messages at 0 and 5 ms."""
    shell, begun = Shell(), list[int]()
    if tp.delayed:
        shell.pipeline.assign(tp, "s", PartitionState(0, 0))
    for now_ms in (0, 5, 19, 20):
        if now_ms % 5 == 0 and len(begun) < 2:
            shell.pipeline.read(Run(tp, [(now_ms, 0, None, b"x")], now_ms, now_ms), now_ms)
        if any(isinstance(effect, Commit) for effect in shell.pipeline.step(now_ms)):
            begun.append(now_ms)
            shell.pipeline.committed({tp: True}, now_ms + 1)
    return begun


def _flows(pipeline: Pipeline) -> list[frozenset[TopicPartition]]:
    return [effect.paused for effect in pipeline.step(0.0) if isinstance(effect, Flow)]


def test_the_newest_stores_are_listed() -> None:
    """Each owner with another store lists the one before; one that comes back is listed no more."""
    stores = Stores()
    for store in range(1, STORES_MAX + 4):
        stores = stores.taken_by(store, PartitionState(0, 10 * store, parked=store))
    listed = tuple(Other(i, 10 * (i + 1), i + 1) for i in range(3, STORES_MAX + 3))
    assert stores == Stores(STORES_MAX + 3, listed)
    assert (stores.void_from(STORES_MAX + 3), stores.void_from(3), stores.void_from(1)) == (None, 40, None)
    assert {other.store for other in stores.taken_by(5, PartitionState(0, 999)).others} == {
        3,
        4,
        *range(6, STORES_MAX + 4),
    }


def test_names_of_delayed_messages_are_marked() -> None:
    """In a log, a JSON object and a name; a partition and its delayed messages lead to each other."""
    queue = TopicPartition("t", 3, "a")
    assert (str(queue.store), str(TP.store)) == ("t[a:3+delayed]", "t[0+delayed]")
    assert queue.store.fields() == {"topic": "t", "partition": 3, "broker": "a", "delayed": True}
    assert (queue.store.source, queue.store.store, queue.store.queue) == (queue, queue.store, "a:3")
    assert not queue.delayed


def test_what_the_store_has_is_told_before_anything_is_read() -> None:
    """Until that is durable, a commit waits for the store."""
    plan = Circumstances.of(1)
    pipeline = Pipeline(plan.reading, plan.batching, plan.rules, lambda: 0.5)
    pipeline.assign(TP, "s", PartitionState(0, 0))
    token = pipeline.know_held(TP, BitMap64([4]), Stores(1))
    assert not pipeline.idle
    (item,) = pipeline.begin_commit([TP])
    assert item.puts
    assert item.state.stores == Stores(1)
    pipeline.held(TP, token, 0, 0.0)
    pipeline.committed({}, 0.0)
    (item,) = pipeline.begin_commit([TP])
    assert not item.puts


def _owning(stores: Stores) -> Pipeline:
    """A pipeline with a partition and its delayed messages, both committed."""
    plan = Circumstances.of(1)
    pipeline = Pipeline(plan.reading, plan.batching, plan.rules, lambda: 0.5)
    pipeline.assign(TP, "s", PartitionState(0, 0))
    pipeline.held(TP, pipeline.know_held(TP, BitMap64(), stores), 0, 0.0)
    pipeline.assign(TP.store, "d", PartitionState(0, 0))
    pipeline.committed({item.tp: True for item in pipeline.begin_commit([TP, TP.store])}, 0.0)
    pipeline.read_past(TP.store, 9, 0.0)
    return pipeline


def test_a_state_in_a_shared_store_is_committed_with_its_source() -> None:
    """The source's commit proves the ownership, though nothing of the source has changed."""
    shared, own = _owning(Stores(1, (), 5)), _owning(Stores(1))
    assert [item.tp for item in shared.commits.begin_commit([TP, TP.store])] == [TP.store, TP]
    assert [item.tp for item in own.commits.begin_commit([TP, TP.store])] == [TP.store]


def test_a_state_in_a_shared_store_counts_only_with_its_source() -> None:
    """One of a store that no other host has counts by itself."""
    for stores, results in ((Stores(1, (), 5), {TP: False, TP.store: False}), (Stores(1), {TP.store: True})):
        order = CommitOrder()
        items = _owning(stores).commits.begin_commit([TP, TP.store])
        assert isinstance(order.begin_commit(items), Keep)
        publish = order.ended(ok=True)
        assert isinstance(publish, Publish)
        assert publish.ended({item.tp: False for item in publish.items}) == results
        assert all(publish.ended({item.tp: True for item in publish.items}).values())


def test_a_state_is_not_committed_without_its_source() -> None:
    """A partition that was given up takes its delayed messages with it, though that is told later."""
    pipeline = _owning(Stores(1))
    pipeline.forget_partitions([TP])
    assert pipeline.begin_commit([TP.store]) == []


def test_an_owner_names_its_epoch() -> None:
    """The next owner's replaces it, and a store of one host has none."""
    stores = Stores().taken_by(1, PartitionState(0, 10), 8)
    assert stores == Stores(1, (), 8)
    assert stores.taken_by(1, PartitionState(0, 20), 9) == Stores(1, (), 9)
    assert stores.taken_by(2, PartitionState(0, 20)) == Stores(2, (Other(1, 20),))
    state = PartitionState(7, 9, stores=stores)
    assert decode(encode(IDENTITY, b"rule", state), 7, IDENTITY, b"rule").state == state
