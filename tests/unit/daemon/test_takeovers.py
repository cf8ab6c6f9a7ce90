"""Taking over delayed messages on other threads, and what comes of a partition meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import Mock, call

import pytest
import structlog.testing

from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import PartitionState, Stores
from sidecar.core.records import Run, TopicPartition
from sidecar.daemon.delays.takeovers import RETRY_S, Takeovers
from sidecar.daemon.feed import Feed
from sidecar.daemon.record import OVERDUE_S
from sidecar.daemon.taken import TakenPartition
from sidecar.delay.changelog import takeover
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.reach import PutReach
from sidecar.delay.changelog.records import (
    KeptState,
    RecordLineage,
    claim,
    message_entry,
    message_key,
    state_entry,
    topic_hash,
)
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.rows import Held
from sidecar.errors import ConfigError, UnavailableError
from sidecar.runtime.worker import Call
from sidecar.sources.base import Assignment, ReadPast
from tests.support.model_changelog import ModelCache, ModelChangelog, ModelLog
from tests.support.model_table import ModelTable, ModelTables
from tests.support.process import wait_until

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
LINEAGE = RecordLineage(9, topic_hash("id"))


def name_of(tp: TopicPartition) -> bytes:
    """The store's name of a partition."""
    return str(tp).encode()


def assignment(tp: TopicPartition = TP, epoch: int = 0, store: int = 7) -> Assignment:
    """A partition that was assigned, with this epoch in its commit."""
    stores = Stores(store, (), epoch) if epoch else Stores()
    return Assignment(tp, "scope", PartitionState(0, 0, stores=stores), "id", 9, resumed=True, read_from=0)


class Log(ModelLog):
    """A changelog whose broker may be down, or may tell one record at a time."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.99)
        self.error: Exception | None = None
        self.batch = 1_000

    def open(self, tp: TopicPartition) -> int:
        if self.error is not None:
            raise self.error
        return super().open(tp)

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        return super().append(tp, entries)

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        records = [record for record in self.records if begin <= record.offset < end]
        for first in range(0, len(records), self.batch):
            yield records[first : first + self.batch]


class Counted(Takeovers):
    """Takeovers whose ends are counted."""

    ends = 0

    def _ended(self, *args: Any) -> None:
        self.ends += 1
        super()._ended(*args)


class Scene:
    """Takeovers, with the threads that they need."""

    def __init__(self) -> None:
        self.log = Log()
        self.cache = ModelCache()
        self.changelog = ModelChangelog(self.log)
        self.store = ChangelogStore(self.cache.local, self.changelog)
        self.inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.given: list[TakenPartition] = []
        self.now_s = 100.0
        self.threads: list[threading.Thread] = []
        self.takeovers = Counted(
            self.store, self.log, name_of, self._do, self.inbox, lambda: 1_000, lambda: self.now_s
        )  # fmt: skip

    def _do(self, job: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=job))
        self.threads[-1].start()

    def owner(self, *origins: int) -> int:
        """An earlier owner put these messages; its epoch."""
        epoch = self.log.add(claim()) + 1
        for origin in origins:
            value = message_entry(LINEAGE, Held(0, 0, 0, 0, NO_TAGS, None, b"", b"")).value
            self.log.add(ChangelogEntry(message_key((2_000 << 20) + origin, epoch, origin), value))
        return epoch

    def handle(self) -> TakenPartition | None:
        """Make the inbox's calls up to the end of an attempt; its partition, if it was taken over."""
        ends, given = self.takeovers.ends, len(self.given)
        while self.takeovers.ends == ends:
            self.inbox.get(timeout=10)(0.0)
        return self.given[-1] if len(self.given) > given else None

    def held(self, tp: TopicPartition = TP) -> int:
        """Number of messages of an owned partition."""
        return self.store.rows.held(self.store.number(name_of(tp)))

    def recover(self, after_s: float) -> None:
        """Take the partition over at the second attempt, when this time has passed."""
        self.log.error = UnavailableError("no broker answers")
        self.takeovers.begin_takeover(assignment(), None, self.given.append)
        self.handle()
        self.log.error = None
        self.now_s += after_s
        self.takeovers.tend()
        self.handle()
        self.commit()
        self.takeovers.proved()

    def commit(self, tp: TopicPartition = TP) -> None:
        """The first commit of the owner."""
        number = self.store.number(name_of(tp))
        self.store.keep(number, b"state", 0, 0)
        self.store.committed(number, 0)
        self.changelog.land(100)
        self.store.writes.poll()


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Takeovers; all their threads end."""
    scene = Scene()
    yield scene
    scene.takeovers.forget_partitions([TP, OTHER])
    for thread in scene.threads:
        thread.join(10)
        assert not thread.is_alive()


def test_messages_of_earlier_owners_are_restored(scene: Scene) -> None:
    """The store has them before the core has the partition."""
    epoch = scene.owner(1, 2, 3)
    begun = scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    assert (scene.handle(), scene.held()) == (begun, 3)


def test_more_messages_than_fit_into_the_inbox_are_restored(scene: Scene) -> None:
    """The thread waits until the main thread has taken some."""
    epoch = scene.owner(*range(20))
    scene.log.batch = 1
    scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    scene.handle()
    assert scene.held() == 20


def test_what_waits_for_the_main_thread_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has some thousand messages."""
    monkeypatch.setattr(takeover, "ROWS_AT_ONCE", 1)
    epoch = scene.owner(*range(20))
    scene.log.batch = 1
    scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    wait_until(lambda: scene.inbox.qsize() == 2, 10, "two calls wait")
    scene.threads[0].join(0.05)
    assert scene.inbox.qsize() == 2


def test_what_was_adopted_before_a_later_commit_was_found_does_not_count(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading starts over, and what a zombie put is void then."""
    monkeypatch.setattr(takeover, "ROWS_AT_ONCE", 1)
    first = scene.owner(1)
    second = scene.owner()
    value = message_entry(LINEAGE, Held(0, 0, 0, 0, NO_TAGS, None, b"", b"")).value
    scene.log.add(ChangelogEntry(message_key(3_000 << 20, first, 2), value))
    scene.log.batch = 1
    scene.log.add(state_entry(second, KeptState(is_proved=True, watermark=0, seen=0, state=b"")))
    scene.takeovers.begin_takeover(assignment(TP, first), None, scene.given.append)
    scene.handle()
    assert scene.held() == 1


def test_the_end_of_a_takeover_is_told(scene: Scene) -> None:
    """With the number of messages and the time that it took."""
    scene.takeovers.begin_takeover(assignment(TP, scene.owner(1, 2)), None, scene.given.append)
    scene.now_s += 3
    with structlog.testing.capture_logs() as lines:
        scene.handle()
    told = [(line["event"], line["topic"], line["partition"], line["count"], line["seconds"]) for line in lines]
    assert told == [("delay.restored", "orders", 0, 2, 3.0)]


def test_a_changelog_that_is_another_one_is_told(scene: Scene) -> None:
    """All that the earlier one held is lost."""
    scene.takeovers.begin_takeover(assignment(TP, 50, store=8), None, scene.given.append)
    with structlog.testing.capture_logs() as lines:
        scene.handle()
    assert "delay.changelog_lost" in [line["event"] for line in lines]


def test_a_partition_is_loading_until_its_epoch_is_proved(scene: Scene) -> None:
    """Nothing is read of it before the changelog has it."""
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.handle()
    before = (set(scene.takeovers.loading), scene.takeovers.proved())
    scene.commit()
    proved = [taken.assignment.tp for taken in scene.takeovers.proved()]
    assert (before, proved, set(scene.takeovers.loading)) == (({TP}, []), [TP], set())


def test_a_proved_partition_is_returned_once(scene: Scene) -> None:
    """What came meanwhile is handed over once."""
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.handle()
    scene.commit()
    scene.takeovers.proved()
    assert scene.takeovers.proved() == []


def test_a_broker_that_is_down_is_told(scene: Scene) -> None:
    """And the partition is not given to the core."""
    scene.log.error = UnavailableError("no broker answers")
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    with structlog.testing.capture_logs() as lines:
        assert scene.handle() is None
    assert [(line["event"], line["reason"]) for line in lines] == [("delay.not_restored", "no broker answers")]


def test_what_failed_is_tried_again(scene: Scene) -> None:
    """After a second, and with the messages that came since it began."""
    epoch = scene.owner(1)
    scene.log.error = UnavailableError("no broker answers")
    begun = scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    scene.handle()
    scene.log.error = None
    scene.now_s += RETRY_S
    scene.takeovers.tend()
    assert (scene.handle(), scene.held()) == (begun, 1)


def test_what_failed_is_not_tried_again_at_once(scene: Scene) -> None:
    """A broker that is down is not asked hundreds of times."""
    scene.log.error = UnavailableError("no broker answers")
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.handle()
    scene.now_s += RETRY_S / 2
    scene.takeovers.tend()
    assert len(scene.threads) == 1


def test_a_takeover_under_way_is_not_begun_twice(scene: Scene) -> None:
    """Each one claims the changelog."""
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.now_s += 60
    scene.takeovers.tend()
    assert len(scene.threads) == 1


def test_a_second_attempt_is_begun_once(scene: Scene) -> None:
    """Each one claims the changelog."""
    scene.log.error = UnavailableError("no broker answers")
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.handle()
    scene.now_s += RETRY_S
    for _ in range(2):
        scene.takeovers.tend()
    assert len(scene.threads) == 2


def test_a_full_disk_is_tried_again(scene: Scene) -> None:
    """Nothing of the failed attempt counts."""
    epoch = scene.owner(1, 2)
    scene.cache.refuses = True
    scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    scene.handle()
    scene.cache.refuses = False
    scene.now_s += RETRY_S
    scene.takeovers.tend()
    wait_until(lambda: scene.handle() is not None, 10, "it is taken over")
    assert scene.held() == 2


def test_a_changelog_that_cannot_be_used_ends_the_daemon(scene: Scene) -> None:
    """Only a person can change that."""
    scene.log.error = ConfigError("cleanup.policy=delete", hint="run")
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    with pytest.raises(ConfigError, match="cleanup"):
        scene.handle()


def test_a_partition_that_is_gone_is_forgotten(scene: Scene) -> None:
    """The end of its takeover comes later, and gives nothing to the core."""
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.takeovers.forget_partitions([TP])
    assert (scene.handle(), dict(scene.takeovers.loading)) == (None, {})


def test_a_partition_that_goes_before_it_is_proved_is_forgotten(scene: Scene) -> None:
    """Else it would be paused for ever."""
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.handle()
    scene.store.leave(scene.store.number(name_of(TP)))
    scene.takeovers.forget_partitions([TP])
    assert (dict(scene.takeovers.loading), scene.takeovers.proved()) == ({}, [])


def test_a_forgotten_takeover_leaves_no_messages(scene: Scene) -> None:
    """What it adopted would take up the disk."""
    epoch = scene.owner(1, 2)
    scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    for _ in range(2):
        scene.inbox.get(timeout=10)(0.0)
    before = sum(map(scene.cache.held, scene.cache.numbers()))
    scene.takeovers.forget_partitions([TP])
    assert (before, sum(map(scene.cache.held, scene.cache.numbers()))) == (2, 0)


def test_the_error_of_a_forgotten_takeover_ends_nothing(scene: Scene) -> None:
    """The topic is the next owner's."""
    scene.log.error = ConfigError("cleanup.policy=delete", hint="run")
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    scene.takeovers.forget_partitions([TP])
    assert scene.handle() is None


def test_a_forgotten_takeover_does_not_wait_for_the_main_thread(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its thread, one of four, would never end."""
    monkeypatch.setattr(takeover, "ROWS_AT_ONCE", 1)
    epoch = scene.owner(*range(20))
    scene.log.batch = 1
    scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    wait_until(lambda: scene.inbox.qsize() == 2, 10, "it waits")
    scene.takeovers.forget_partitions([TP])
    scene.threads[0].join(10)
    assert not scene.threads[0].is_alive()


def test_a_partition_that_comes_back_is_taken_over_again(scene: Scene) -> None:
    """What the first takeover brings does not count."""
    epoch = scene.owner(1, 2)
    scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    scene.takeovers.forget_partitions([TP])
    again = scene.takeovers.begin_takeover(assignment(TP, epoch), None, scene.given.append)
    ended = [taken for taken in (scene.handle(), scene.handle()) if taken is not None]
    assert (ended, scene.held()) == ([again], 2)


def test_a_partition_that_waits_for_long_is_a_problem(scene: Scene) -> None:
    """A large changelog takes its time; nobody has to do anything."""
    scene.takeovers.begin_takeover(assignment(), None, scene.given.append)
    before = scene.takeovers.problem
    scene.now_s += OVERDUE_S
    assert (before, scene.takeovers.problem) == ("", "orders[0] is not read yet: they are being restored")


def test_the_problem_has_the_reason_of_the_failure(scene: Scene) -> None:
    """And the number of other partitions."""
    scene.log.error = UnavailableError("no broker answers")
    for tp in (TP, OTHER):
        scene.takeovers.begin_takeover(assignment(tp), None, scene.given.append)
        scene.handle()
    scene.now_s += OVERDUE_S
    assert scene.takeovers.problem == "orders[0] and 1 more is not read yet: no broker answers"


def test_a_reason_ends_with_the_takeover(scene: Scene) -> None:
    """Another partition that waits later does so for its own."""
    scene.recover(RETRY_S)
    scene.takeovers.begin_takeover(assignment(OTHER), None, scene.given.append)
    scene.now_s += OVERDUE_S
    assert scene.takeovers.problem == "orders[1] is not read yet: they are being restored"


def test_the_problem_ends_with_the_takeover(scene: Scene) -> None:
    """Whatever failed before."""
    scene.recover(OVERDUE_S)
    assert scene.takeovers.problem == ""


def remembered(epoch: int, parked: int) -> Assignment:
    """A partition that goes on from the state folder, with this epoch and this number of parked parts."""
    found = assignment(TP, epoch)
    return replace(found, state=replace(found.state, parked=parked), is_remembered=True)


def test_a_folder_before_a_later_owner_in_the_changelog_is_not_believed(scene: Scene) -> None:
    """The broker lost that owner's commits too, which removed the parts that the folder counts."""
    first, second = scene.owner(), scene.owner()
    scene.log.add(state_entry(second, KeptState(is_proved=True, watermark=0, seen=0, state=b"state")))
    scene.takeovers.begin_takeover(remembered(first, 1), None, scene.given.append)
    assert scene.handle() is None
    assert (scene.takeovers.outdated, list(scene.takeovers.stale())) == ({TP}, [TP])
    scene.takeovers.forget_partitions([TP])
    assert (scene.takeovers.outdated, scene.takeovers.stale()) == (set(), {})


@pytest.mark.parametrize("parked", [0, 1])
def test_a_folder_of_the_last_owner_or_without_parked_parts_is_believed(scene: Scene, parked: int) -> None:
    """Which delayed messages count, the changelog tells."""
    first, second = scene.owner(), scene.owner()
    scene.log.add(state_entry(second, KeptState(is_proved=True, watermark=0, seen=0, state=b"state")))
    scene.takeovers.begin_takeover(remembered(second if parked else first, parked), None, scene.given.append)
    assert scene.handle() is not None
    assert not scene.takeovers.outdated


# The feed


class Fed:
    """A feed whose source returns what it is told to, and what the core gets of it."""

    def __init__(self) -> None:
        self.takeovers: Any = Mock(loading={}, outdated=set(), **{"proved.return_value": [], "stale.return_value": {}})
        self.pipeline: Any = Mock(paused=frozenset())
        self.pipeline.patience_ms.return_value = inf
        self.pipeline.copies_of.return_value = frozenset()
        self.source: Any = Mock(idle_poll_s=0.0)
        ids: Any = Mock(loading={}, **{"take.return_value": True})
        snapshots: Any = Mock(assignments={}, **{"load.return_value": {}})
        self.delays: Any = Mock(takeovers=self.takeovers, **{"poll.return_value": 0.0})
        self.read: list[object] = []
        self.pipeline.read.side_effect = lambda run, _: self.read.append(run)
        self.pipeline.read_past.side_effect = lambda tp, position, _: self.read.append(ReadPast(tp, position))
        self.feed = Feed(self.pipeline, self.source, ids, snapshots, self.delays, has_ledger=False)

    def poll(self, *items: object) -> None:
        """The source returns these."""
        self.source.poll.return_value = items
        self.feed.poll()


def run(first: int, tp: TopicPartition = TP) -> Run:
    """A run of one message."""
    return Run(tp, [first], first, first)


def test_an_assigned_partition_is_taken_over_before_the_core_has_it() -> None:
    """Else the core would read what is held already."""
    fed = Fed()
    fed.feed.take_partitions([assignment()])
    assert fed.takeovers.begin_takeover.call_count == 1
    assert not fed.pipeline.assign.called


def test_a_partition_that_is_taken_over_is_paused() -> None:
    """What came in a poll or two waits; more would take memory."""
    fed = Fed()
    fed.takeovers.loading = {TP: TakenPartition(assignment(), None, 0, 0.0, print)}
    fed.feed.take_partitions([assignment()])
    assert fed.source.pause.call_args.args == (frozenset({TP}),)


def test_messages_that_come_meanwhile_are_read_afterwards_in_order() -> None:
    """Before those that come later, each once."""
    fed = Fed()
    taken = TakenPartition(assignment(), None, 0, 0.0, print)
    fed.takeovers.loading = {TP: taken}
    fed.poll(run(0), ReadPast(TP, 5))
    fed.poll(run(5))
    assert fed.read == []
    fed.takeovers.loading = {}
    fed.takeovers.proved.return_value = [taken]
    fed.poll(run(6))
    assert fed.read == [run(0), ReadPast(TP, 5), run(5), run(6)]


def test_other_partitions_are_read_meanwhile() -> None:
    """A large changelog holds up its partition alone."""
    fed = Fed()
    fed.takeovers.loading = {TP: TakenPartition(assignment(), None, 0, 0.0, print)}
    fed.poll(run(0), run(3, OTHER))
    assert fed.read == [run(3, OTHER)]


def test_the_core_has_the_partition_when_it_was_taken_over() -> None:
    """It commits the epoch then."""
    fed = Fed()
    fed.feed.take_partitions([assignment()])
    *_, then = fed.takeovers.begin_takeover.call_args.args
    then(TakenPartition(assignment(), None, 0, 0.0, then))
    assert fed.pipeline.assign.call_args.args[0] == TP


def test_the_source_gives_a_stale_partition_again() -> None:
    """Another process has claimed it, or its offset does not fit; before anything more of it is read."""
    fed = Fed()
    fed.takeovers.stale.return_value = {TP: "another process has claimed it"}
    with structlog.testing.capture_logs() as logs:
        fed.poll(run(3, OTHER))
    fed.source.assert_has_calls([call.reload(TP), call.poll(fed.source.poll.call_args.args[0])])
    assert [(each["event"], each["reason"]) for each in logs] == [
        ("partition.reloaded", "another process has claimed it")
    ]


def test_the_source_does_not_go_on_from_an_outdated_folder() -> None:
    """It is told before it gives the partition again."""
    fed = Fed()
    fed.takeovers.outdated, fed.takeovers.stale.return_value = {TP}, {TP: "a later owner", OTHER: "claimed"}
    fed.poll()
    fed.source.assert_has_calls([call.distrust(TP), call.reload(TP), call.reload(OTHER)])
    assert fed.source.distrust.call_count == 1


def test_an_offset_that_does_not_fit_is_asked_for_again(scene: Scene) -> None:
    """Once: the same answer is believed, and what is read again is dropped."""
    table = ModelTable(lambda: 0.99)
    tables, lineage = ModelTables(table), RecordLineage(9, topic_hash("id"))
    epoch = table.claim()
    message = ChangelogEntry(
        message_key((2_000 << 20) + 3, epoch, 3),
        message_entry(lineage, Held(0, 0, 0, 0, NO_TAGS, None, b"", b"")).value,
    )
    table.write(epoch, [message, PutReach(lineage, 2, 4).entry()])
    takeovers = Counted(scene.store, tables, name_of, scene._do, scene.inbox, lambda: 1_000, lambda: scene.now_s)
    scene.takeovers = takeovers
    lower = replace(assignment(), state=PartitionState(1, 1), continues=True, end=10)
    takeovers.begin_takeover(lower, None, scene.given.append)
    assert scene.handle() is None
    assert list(takeovers.stale()) == [TP]
    takeovers.forget_partitions([TP])  # the source is asked
    assert takeovers.stale() == {}
    takeovers.begin_takeover(lower, None, scene.given.append)
    assert scene.handle() is not None
    scene.store.committed(scene.store.number(name_of(TP)), 0)
    assert takeovers.stale() == {}
    assert list(scene.store.rows.known(scene.store.number(name_of(TP)))) == []
    assert scene.held() == 0
