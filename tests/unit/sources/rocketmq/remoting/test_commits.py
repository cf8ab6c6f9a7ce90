"""What is kept of commits to a broker, with a link, a clock and a state that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.core.effects import CommitItem
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.sources.rocketmq.remoting import commits as rocketmq_commits
from sidecar.sources.rocketmq.remoting.commits import FLUSHED_AFTER_S, IDLE_S, QueueCommits
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import Asks
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity
from tests.simulation.leased_broker import Inline
from tests.simulation.remoting_broker import Clock
from tests.support.memory_state import MemoryState

QUEUE = TopicPartition("orders", 0, "a")


TAKEN = Frame(Code.SUCCESS, 0, 1, "", {}, b"")


class TakingLink:
    """Takes each commit at once."""

    is_up, connection, problem = True, 1, ""
    is_orphaned = False

    def ask(self, ask: Ask, answered: Any, timeout_s: float = 0) -> None:
        """Answer."""
        answered(TAKEN)

    def check(self, now_s: float) -> None:
        """Nothing to do."""


IDENTITY = Identity("cluster", "g", "", 5)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In place of the module `time`."""
    clock = Clock()
    monkeypatch.setattr(rocketmq_commits, "time", clock)
    return clock


def commits_of(state: MemoryState, link: TakingLink | None = None) -> QueueCommits:
    """Commits of a queue that begins at its first message."""
    listener: Any = SimpleNamespace(committed=lambda *_: None)
    broker = link or TakingLink()
    cluster: Any = SimpleNamespace(
        asks=Asks("me", "g"),
        network=SimpleNamespace(ask_all=lambda asks, timeout_s: [TAKEN for _ in asks]),
        members=SimpleNamespace(is_orphaned=lambda _: broker.is_orphaned),
        brokers=SimpleNamespace(boot_of=lambda *_: 0),
        link=lambda _: broker if broker.is_up else None,
        connection=lambda _: broker.connection if broker.is_up else 0,
    )
    commits = QueueCommits(cluster, state, listener, b"rule")
    commits._disk = Inline()  # type: ignore[assignment]
    start = Assignment(QUEUE, IDENTITY.scope, PartitionState(0, 0), "", 5, resumed=False, read_from=0)
    commits.own(start, IDENTITY, None, (), -1)
    return commits


def commit(commits: QueueCommits, offset: int) -> None:
    """Make it durable."""
    commits.begin_commit([CommitItem(QUEUE, IDENTITY.scope, PartitionState(offset, offset))])
    commits.go_on()


def progress_of(state: MemoryState) -> QueueProgress:
    """What the state file knows of the queue."""
    progress = QueueProgress.load(state.load_progress()[ProgressKey.of(QUEUE)])
    assert progress is not None
    return progress


@pytest.mark.parametrize(("is_killed", "floor"), [(True, 0), (False, 10)], ids=["killed", "not killed"])
def test_what_a_killed_broker_is_told_again_is_not_on_its_disk_at_once(
    is_killed: bool, floor: int, clock: Clock
) -> None:
    """Until 15 s after it is back, an older offset may be one that it forgot, and is taken for no reset."""
    state, link = MemoryState(), TakingLink()
    commits = commits_of(state, link)
    commit(commits, 10)
    clock.now_s += FLUSHED_AFTER_S - 1
    if is_killed:
        link.connection += 1
        commits.start_at({QUEUE: 10})
    clock.now_s += 1
    commit(commits, 20)
    assert progress_of(state).floor == floor
    clock.now_s += FLUSHED_AFTER_S - 1
    commit(commits, 30)
    assert progress_of(state).floor == 10


def test_a_lock_that_lapsed_does_not_hold_up_what_is_on_the_brokers_disk(clock: Clock) -> None:
    """The broker writes what it took, whoever has the queue's lock."""
    state, link = MemoryState(), TakingLink()
    commits = commits_of(state, link)
    commit(commits, 10)
    commits._cluster.link = lambda _: None  # type: ignore[method-assign,assignment]
    clock.now_s += FLUSHED_AFTER_S
    commits.go_on()
    assert progress_of(state).floor == 10


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_commit_counts_only_if_the_lock_is_good_at_its_end(clock: Clock, is_waiting: bool) -> None:
    """The broker takes it from anybody, so another member may have begun at the older offset before it."""
    told: list[bool] = []
    state, link = MemoryState(), LapsingLink()
    commits = commits_of(state, link)
    listener: Any = SimpleNamespace(committed=lambda results, _: told.extend(results.values()))
    commits._listener = listener
    network: Any = SimpleNamespace(ask_all=lambda asks, timeout_s: [link.taken() for _ in asks])
    commits._cluster.network = network
    for lapses in (False, True):
        link.lapses = lapses
        if is_waiting:
            told += commits.now([CommitItem(QUEUE, IDENTITY.scope, PartitionState(10 + lapses, 20))]).values()
        else:
            commit(commits, 10 + lapses)
    assert told == [True, False]


class LapsingLink(TakingLink):
    """Takes each commit, and then the lock may be over."""

    lapses = False

    def taken(self) -> Frame:
        """The answer."""
        self.is_up = not self.lapses
        return TAKEN

    def ask(self, ask: Ask, answered: Any, timeout_s: float = 0) -> None:
        """Answer."""
        answered(self.taken())


def test_a_note_that_could_not_be_written_is_written_again(clock: Clock) -> None:
    """A queue that rests has no next commit that would tell the state file what the broker has."""
    state = MemoryState()
    commits = commits_of(state)
    commit(commits, 10)
    assert progress_of(state).told.offset == -1
    for failing in ("full", ""):
        state.failing = failing
        clock.now_s += IDLE_S
        commits.go_on()
    assert progress_of(state).told.offset == 10


def test_what_the_broker_took_is_noted_although_the_lock_lapsed(clock: Clock) -> None:
    """Else an operator's reset that comes after it seems to be a commit that a crash lost."""
    state, link = MemoryState(), TakingLink()
    commits = commits_of(state, link)
    commit(commits, 10)
    link.is_up = False
    clock.now_s += IDLE_S
    commits.go_on()
    assert progress_of(state).told.offset == 10


def test_what_a_broker_is_told_again_is_noted_at_once(clock: Clock) -> None:
    """An operator's reset may follow within the second after a broker is back."""
    state = MemoryState()
    commits = commits_of(state)
    commit(commits, 10)
    assert progress_of(state).told.offset == -1
    commits.start_at({QUEUE: 10})
    assert progress_of(state).told.offset == 10


@pytest.mark.parametrize("rests", [True, False])
def test_what_a_broker_had_before_it_went_away_is_not_on_its_disk(rests: bool, clock: Clock) -> None:
    """It may have been killed before it wrote that; whatever is older would be taken for a reset."""
    state, link = MemoryState(), TakingLink()
    commits = commits_of(state, link)
    commit(commits, 10)
    link.is_up, link.is_orphaned = False, True
    for _ in range(2):
        clock.now_s += FLUSHED_AFTER_S
        if rests:
            commits.go_on()
        else:
            commit(commits, 10)
    assert progress_of(state).floor == 0


def test_a_commit_of_what_a_queue_was_before_is_nobody_elses() -> None:
    """One that was on its way when the queue was taken again may be what the broker has."""
    commits = commits_of(MemoryState())
    commit(commits, 10)
    commits.disown(QUEUE)
    start = Assignment(QUEUE, IDENTITY.scope, PartitionState(0, 0), "", 5, resumed=False, read_from=0)
    commits.own(start, IDENTITY, None, (), 9)
    assert commits.queues[QUEUE].at_broker == 10
