"""The main loop's commits: which are made, and how they and rebalances are counted."""

from __future__ import annotations

import queue
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest

from sidecar.config.model import Settings
from sidecar.core.effects import Commit, CommitItem, Effect
from sidecar.core.partition.partition import Ownerships
from sidecar.core.partition_state import PartitionState, Stores
from sidecar.core.pipeline.commit_order import SettledIds
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.absent import NoTakeovers
from sidecar.daemon.delays.delays import Delays
from sidecar.daemon.supervisor import Supervisor
from sidecar.delay.interface import HeldStore
from sidecar.errors import StateError
from sidecar.runtime.build import build
from sidecar.runtime.worker import Worker
from sidecar.sources.base import Assignment, Source
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.state.interface import Rules, State
from tests.support.memory_state import MemoryState
from tests.support.process import wait_until

SETTINGS = {
    "source": {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["orders"]}},
    "sink": {"console": {}},
    "state": {"dir": "state"},
}
KEPT, GONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Core:
    """A pipeline that has one commit to make, and another partition to give up."""

    EFFECTS = Pipeline.EFFECTS
    remembers_ids = True

    def __init__(self) -> None:
        self.effects: list[Effect] = [Commit([CommitItem(KEPT, "scope", PartitionState(5, 5), 0, array("q", [7]))])]
        self.idle, self.state_lost, self.store_full = False, "", ""
        self.paused = self.owned = frozenset[TopicPartition]()
        self.partitions = Ownerships(b"\n")

    def step(self, now_ms: float) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def patience_ms(self, now_ms: float) -> float:
        return 0

    def forget_partitions(self, tps: object) -> None:
        pass

    def fence(self, tps: object) -> None:
        pass

    def is_sending(self, tps: object) -> bool:
        return False

    def in_flight(self, tps: object) -> int:
        return 0

    def begin_commit(self, tps: Iterable[TopicPartition]) -> list[CommitItem]:
        return []

    def take_held_ids(self) -> list[SettledIds]:
        return []

    def count_unwritten(self, nbytes: int) -> None:
        pass

    def lose_state(self, reason: str) -> None:
        pass

    def committed(self, results: Mapping[TopicPartition, bool], now_ms: float) -> None:
        pass


class Broker:
    """A source that remembers what was committed."""

    is_emptied = True

    def __init__(self) -> None:
        self.begun: list[CommitItem] = []
        self.made: list[CommitItem] = []

    def poll(self, timeout_s: float) -> list[Any]:
        return []

    def pause(self, tps: object) -> None:
        pass

    def commit(self, items: Sequence[CommitItem]) -> None:
        self.begun += items

    def commit_now(self, items: Sequence[CommitItem]) -> dict[TopicPartition, bool]:
        self.made += items
        return {}


def test_a_commit_that_waited_for_the_journal_while_a_partition_was_revoked_is_not_made() -> None:
    """Its end would be taken for that of the next commit, whose parts would be sent before they are durable."""
    broker, state, writer, inbox = Broker(), MemoryState(), Worker(), queue.SimpleQueue[Any]()
    core, unused = cast(Pipeline, Core()), cast(Any, None)
    supervisor = Supervisor(core, cast(Source, broker), unused, inbox, writer, state, unused)
    supervisor.turn()
    supervisor.listener.revoking([GONE])
    supervisor.turn()
    writer.close()
    assert broker.begun == []
    assert state.ids.load(KEPT) == [(0, array("q", [7]).tobytes())]


class Held:
    """A store of delayed messages that learns only in `poll` what is durable, as that of a changelog."""

    changes, synced, damages, broken, in_place = 1, 0, (), None, True
    has_answer = False

    @property
    def rows(self) -> Held:
        return self

    writes = rows

    def poll(self) -> None:
        self.synced = self.changes if self.has_answer else 0

    def begin_sync(self) -> None:
        pass

    def disk_bytes(self) -> int:
        return 0


@pytest.mark.timeout(20)
def test_a_revocation_takes_the_acknowledgements_that_a_commit_waits_for() -> None:
    """Nobody else does while it waits for the end of that commit: it would never end."""
    broker, writer, inbox, store, core = Broker(), Worker(), queue.SimpleQueue[Any](), Held(), Core()
    core.effects = [Commit([CommitItem(KEPT.store, "scope", PartitionState(5, 5), 0)])]
    unused = cast(Any, None)
    held = cast(HeldStore, store)
    delays = Delays(cast(Pipeline, core), held, unused, "g", Rules(b""), 1 << 30, unused, NoTakeovers())
    supervisor = Supervisor(
        cast(Pipeline, core), cast(Source, broker), unused, inbox, writer, MemoryState(), unused, delays=delays
    )
    supervisor.turn()
    store.has_answer = True
    supervisor.listener.revoking([GONE])
    writer.close()
    assert broker.begun == []


def test_only_commits_that_succeed_are_timed() -> None:
    """A failed one is counted as such and has no duration; where nothing was to be committed nothing is counted."""
    supervisor, writer = supervised()
    supervisor.listener.committed({KEPT: True, GONE: True}, 0.2)
    supervisor.listener.committed({KEPT: True, GONE: False}, 0.0)
    supervisor.listener.committed({}, 0.0)
    supervisor.listener.revoking([])
    writer.close()
    assert supervisor.record.commits.counts == {"ok": 1, "failed": 1}
    timings = supervisor.record.commits.seconds.read()
    assert (sum(timings.counts), timings.total) == (1, 0.2)


class LostState(MemoryState):
    """A state that is not where it was, until it is found."""

    is_lost = True

    def check_in_place(self) -> None:
        if self.is_lost:
            raise StateError("state.db was removed")


def test_nothing_is_committed_while_the_state_is_lost() -> None:
    """What a commit settles may stand in a file that nobody will find: it waits until the state is back."""
    broker, state = Broker(), LostState()
    supervisor, writer = supervised(broker, state)
    begin = [Assignment(tp, "scope", PartitionState(5, 5), "", 1, resumed=True, read_from=5) for tp in (KEPT, GONE)]
    supervisor.listener.assigned(begin)
    supervisor.turn()
    supervisor.listener.revoking([GONE])
    assert broker.begun == broker.made == []
    assert supervisor.pipeline.status().stops == {"state_lost": "state.db was removed"}
    state.is_lost = False
    wait_until(lambda: supervisor.turn() and broker.begun, 10, "it is committed")
    writer.close()
    assert [item.tp for item in broker.begun] == [KEPT]
    assert supervisor.pipeline.status().stops == {}


def test_a_stop_does_not_wait_for_a_state_that_is_lost() -> None:
    """Nothing can be settled then, so a stop is complete at once."""
    supervisor, writer = supervised(state=LostState())
    supervisor.listener.assigned([Assignment(KEPT, "scope", PartitionState(5, 5), "", 1, resumed=True, read_from=5)])
    assert supervisor.turn()
    supervisor.drain(5.0)
    assert not supervisor.turn()
    writer.close()


def test_a_reload_is_no_rebalance() -> None:
    """A partition that is read again from its commit is counted as that, and not as lost and assigned."""
    supervisor, writer = supervised()
    supervisor.listener.assigned([])
    supervisor.listener.reloading(KEPT)
    supervisor.listener.assigned([Assignment(KEPT, "scope", PartitionState(5, 5), "", 1, resumed=True, read_from=5)])
    supervisor.listener.lost([KEPT])
    supervisor.listener.assigned([Assignment(KEPT, "scope", PartitionState(5, 5), "", 1, resumed=True, read_from=5)])
    writer.close()
    assert supervisor.record.rebalances == {"assigned": 2, "reloaded": 1, "lost": 1}


@pytest.mark.parametrize(("epoch", "is_left"), [(9, True), (0, False)])
def test_delayed_messages_of_a_store_that_is_not_configured_are_told(epoch: int, is_left: bool) -> None:
    """A commit with an epoch has some in a changelog or a database; they stay there until the store is back."""
    supervisor, writer = supervised()
    state = PartitionState(5, 5, stores=Stores(7 if epoch else 0, (), epoch))
    supervisor.listener.assigned([Assignment(KEPT, "scope", state, "", 1, resumed=True, read_from=5)])
    assert [str(KEPT) in problem.text for problem in supervisor.delays.problems()] == [True] * is_left
    supervisor.listener.lost([KEPT])
    writer.close()
    assert supervisor.delays.problems() == []


def supervised(broker: Broker | None = None, state: State | None = None) -> tuple[Supervisor, Worker]:
    """A supervisor of the real pipeline on a broker that takes every commit, and its writer."""
    pipeline, _ = build(Settings.model_validate(SETTINGS), KafkaColumns())
    writer, unused = Worker(), cast(Any, None)
    source, state = cast(Source, broker or Broker()), state or MemoryState()
    return Supervisor(pipeline, source, unused, queue.SimpleQueue(), writer, state, unused), writer
