"""Restoring message ids: off the main loop, partition by partition, in nobody's way."""

from __future__ import annotations

import queue
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import Mock

import pytest

from sidecar.config.model import Settings
from sidecar.core.effects import Commit, CommitItem
from sidecar.core.intake.identities import Identities
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.daemon import ids as daemon_ids
from sidecar.daemon.lifecycle import leave
from sidecar.daemon.rebalances import RebalanceListener
from sidecar.daemon.supervisor import Supervisor
from sidecar.errors import StateError
from sidecar.runtime.build import build
from sidecar.runtime.dead_letters import DeadLetterWriter
from sidecar.runtime.worker import Senders, Worker
from sidecar.sources.base import Assignment, Source
from sidecar.state.interface import IdSegment, StoredIds
from tests.support.memory_state import Disk, MemoryIds, MemoryState
from tests.support.process import wait_until

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
SETTINGS: dict[str, Any] = {
    "source": {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["orders"]}},
    "sink": {"console": {}},
    "state": {"dir": "state"},
    "dedup": {"by": "key", "as": "int"},
}


class Message:
    """A row with an offset and an id."""

    def __init__(self, offset: int, number: int) -> None:
        self.place = offset, number

    def offset(self) -> int:
        return self.place[0]

    def key(self) -> bytes:
        return b"%d" % self.place[1]

    def value(self) -> bytes:
        return b"{}"


class Columns:
    """Reads those."""

    def offsets(self, messages: Sequence[Message]) -> Any:
        return [message.offset() for message in messages]

    def keys(self, messages: Sequence[Message]) -> Any:
        return [message.key() for message in messages]

    def values(self, messages: Sequence[Message]) -> Any:
        return [message.value() for message in messages]

    def timestamps(self, messages: Sequence[Message]) -> Any:
        return [0 for _ in messages]

    def headers(self, messages: Sequence[Message]) -> Any:
        return [[] for _ in messages]

    def details(self, messages: Sequence[Message]) -> Any:
        return [None for _ in messages]


class Broker:
    """A source that hands over what the test has ready, paused or not."""

    name = "test"
    idle_poll_s = 0.05
    is_emptied = True
    listener: RebalanceListener

    def __init__(self) -> None:
        self.ready: list[Run] = []
        self.paused: frozenset[TopicPartition] = frozenset()

    def poll(self, timeout_s: float) -> list[Run]:
        ready, self.ready = self.ready, []
        return ready

    def pause(self, tps: Any) -> None:
        self.paused = frozenset(tps)

    def commit(self, items: Sequence[CommitItem]) -> None:
        self.listener.committed({item.tp: True for item in items}, 0.0)

    def commit_now(self, items: Sequence[CommitItem]) -> dict[TopicPartition, bool]:
        return {item.tp: True for item in items}

    def close(self) -> None:
        pass


class SlowIds(MemoryIds):
    """Sorts the ids of one partition when the test lets it, or not at all."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.go_on = threading.Event()
        self.failing_sorts = 0

    def sort(self, tp: TopicPartition, *, merge: bool = True) -> StoredIds:
        if tp == ORDERS:
            self.go_on.wait(20)
        if self.failing_sorts:
            self.failing_sorts -= 1
            raise StateError("the disk is broken")
        return super().sort(tp)


class SlowState(MemoryState):
    """A state with such ids."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = self.slow = SlowIds(self._disk)


class Life:
    """A supervisor of the real pipeline."""

    def __init__(self) -> None:
        pipeline, sink = build(Settings.model_validate(SETTINGS), cast(Any, Columns()))
        self.broker, self.state, self.writer = Broker(), SlowState(), Worker()
        inbox = self.inbox = queue.SimpleQueue[Any]()
        self.senders = Senders(sink, 1, inbox)
        self.letters = DeadLetterWriter(Mock(), inbox)
        self.supervisor = Supervisor(
            pipeline,
            cast(Source, self.broker),
            self.senders,
            inbox,
            self.writer,
            self.state,
            self.letters,
        )
        self.broker.listener = self.supervisor.listener

    def assign(self, *tps: TopicPartition, seen: int = 0, resumed: bool = True) -> None:
        self.supervisor.listener.assigned(
            [Assignment(tp, "scope", PartitionState(0, seen), "", 1, resumed, 0) for tp in tps]
        )

    def hand_over(self, tp: TopicPartition, first: int, *numbers: int) -> None:
        messages = [Message(first + i, number) for i, number in enumerate(numbers)]
        self.broker.ready.append(Run(tp, messages, first, first + len(numbers) - 1))

    def settle(self, tp: TopicPartition, generation: int, *numbers: int) -> None:
        """Have a commit made that settles ids, and wait for its end."""
        counts = self.supervisor.record.commits.counts
        before = sum(counts.values())
        item = CommitItem(tp, "scope", PartitionState(5, 5), generation, array("q", numbers))
        self.supervisor.pipeline._output.effects.append(Commit([item]))
        self.until(lambda: sum(counts.values()) > before)

    def until(self, holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline_s
            self.supervisor.turn()

    def books(self, tp: TopicPartition) -> tuple[int, int]:
        books = self.supervisor.pipeline.books.get(tp)
        return (books.consumed, books.duplicate) if books else (0, 0)


@contextmanager
def living() -> Iterator[Life]:
    """A life, ended at the end."""
    life = Life()
    try:
        yield life
    finally:
        life.state.slow.go_on.set()
        life.supervisor.ids.close()
        life.senders.close(1.0)
        life.writer.close()


def ids(*numbers: int) -> bytes:
    """An array of ids as bytes."""
    return array("q", numbers).tobytes()


def test_what_comes_before_the_ids_waits_for_them() -> None:
    """Partitions are paused until their ids are restored; what came of them meanwhile meets those ids."""
    with living() as life:
        life.state.ids.append([IdSegment(ORDERS, 3, ids(7)), IdSegment(OTHER, 1, ids(8))])
        life.assign(ORDERS, OTHER)
        assert life.broker.paused == {ORDERS, OTHER}
        life.hand_over(ORDERS, 0, 7, 9)
        life.supervisor.turn()
        assert life.books(ORDERS) == (0, 0)
        life.state.slow.go_on.set()
        life.until(lambda: not life.supervisor.ids.loading)
        life.hand_over(OTHER, 0, 8, 9)
        life.until(lambda: life.books(OTHER) == (2, 1) and life.books(ORDERS) == (2, 1))
        assert life.broker.paused == frozenset()
        status = life.supervisor.ids.status(time.monotonic())
        assert (status.remembered, status.loading) == (4, 0)


def test_a_partition_that_is_not_restored_is_paused_alone() -> None:
    """Others are read and committed while one waits, and the wait is a problem after 10 s."""
    with living() as life:
        life.state.ids.append([IdSegment(ORDERS, 3, ids(7))])
        life.assign(ORDERS, OTHER)
        life.until(lambda: OTHER in life.supervisor.pipeline.partitions)
        life.hand_over(OTHER, 0, 1, 2)
        life.until(lambda: life.books(OTHER) == (2, 0))
        assert life.broker.paused == {ORDERS}
        assert ORDERS not in life.supervisor.pipeline.partitions
        now_s = time.monotonic()
        assert life.supervisor.ids.status(now_s).loading == 1
        assert list(life.supervisor.ids.problems(now_s)) == []
        [problem] = life.supervisor.ids.problems(now_s + 11)
        assert problem.kind == "ids_loading"
        assert "orders[0]" in problem.text


@pytest.mark.parametrize("how", ["revoking", "lost", "stop"])
def test_nothing_waits_for_ids(how: str) -> None:
    """A revocation, a loss and a stop are done at once while ids are restored; what comes of them later is ignored."""
    with living() as life:
        life.state.ids.append([IdSegment(ORDERS, 3, ids(7))])
        life.assign(ORDERS, seen=5)
        begun_s = time.monotonic()
        if how == "stop":
            life.supervisor.drain(5.0)
            while life.supervisor.turn():
                pass
            leave(life.supervisor, life.writer, life.state, life.letters)
            life.supervisor.ids.close()
        else:
            getattr(life.supervisor.listener, how)([ORDERS])
        assert time.monotonic() - begun_s < 1
        life.state.slow.go_on.set()
        time.sleep(0.05)
        life.supervisor._loop.take()
        assert how == "stop" or ORDERS not in life.supervisor.pipeline.partitions


def test_a_partition_that_comes_back_is_restored_again() -> None:
    """What was sorted for an earlier ownership is not taken for the later one's."""
    with living() as life:
        life.state.slow.go_on.set()
        life.assign(ORDERS)
        wait_until(lambda: not life.inbox.empty(), 10, "it was sorted")
        life.supervisor.listener.lost([ORDERS])
        life.state.ids.append([IdSegment(ORDERS, 3, ids(7))])
        life.state.slow.go_on.clear()
        life.assign(ORDERS)
        life.supervisor.turn()
        assert ORDERS not in life.supervisor.pipeline.partitions
        life.state.slow.go_on.set()
        life.until(lambda: ORDERS in life.supervisor.pipeline.partitions)
        life.hand_over(ORDERS, 0, 7)
        life.until(lambda: life.books(ORDERS) == (1, 1))


def test_ids_that_cannot_be_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition waits until they can be: without them, twins of what is remembered would pass."""
    monkeypatch.setattr(daemon_ids, "RETRY_S", 0.01)
    with living() as life:
        life.state.ids.append([IdSegment(ORDERS, 3, ids(7))])
        life.state.slow.go_on.set()
        life.state.slow.failing_sorts = 2
        life.assign(ORDERS)
        life.until(lambda: ORDERS in life.supervisor.pipeline.partitions)
        assert life.state.slow.failing_sorts == 0
        life.hand_over(ORDERS, 0, 7)
        life.until(lambda: life.books(ORDERS) == (1, 1))


def test_an_operators_reset_knows_no_id() -> None:
    """Ids of before the reset are dropped, also those that wait for the journal; the partition waits for that."""
    with living() as life:
        life.state.slow.go_on.set()
        life.state.ids.append([IdSegment(ORDERS, 3, ids(7))])
        life.state.failing = "full"
        life.settle(ORDERS, 3, 8)
        life.assign(ORDERS, resumed=False)
        life.supervisor.turn()
        assert ORDERS not in life.supervisor.pipeline.partitions
        life.state.failing = ""
        life.until(lambda: ORDERS in life.supervisor.pipeline.partitions)
        assert life.state.ids.load(ORDERS) == []
        life.settle(OTHER, 0, 9)
        assert life.state.ids.load(OTHER) == [(0, ids(9))]
        assert life.state.ids.load(ORDERS) == []


def test_settled_ids_are_sorted_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once enough were journalled the state sorts them, and they take no more memory here."""
    monkeypatch.setattr(daemon_ids, "FILED_MAX", 100)
    monkeypatch.setattr(daemon_ids, "FILED_MIN", 100)
    with living() as life:
        life.state.slow.go_on.set()
        life.assign(ORDERS)
        life.until(lambda: ORDERS in life.supervisor.pipeline.partitions)
        life.hand_over(ORDERS, 0, *range(150))
        window = cast(Identities, life.supervisor.pipeline.intake.identities).window(ORDERS)
        life.until(lambda: life.books(ORDERS) == (150, 0))
        life.settle(ORDERS, 0, *range(120))
        life.until(lambda: sum(map(len, window.young.stored)) >= 120)  # the pipeline's own commit may add the others
        assert (sum(map(len, window.young.runs)) <= 30, len(window)) == (True, 150)
        status = life.supervisor.ids.status(time.monotonic())
        assert status.remembered == 150
        assert status.file_bytes > 0


def test_old_generations_are_dropped_once() -> None:
    """With the first ids of a new generation the journal forgets what is older than the one before it."""
    with living() as life:
        for generation in (0, 1, 2):
            life.settle(ORDERS, generation, generation)
        assert life.state.ids.load(ORDERS) == [(1, ids(1)), (2, ids(2))]


def test_ids_that_cannot_be_written_are_held() -> None:
    """Settled ids that wait for a full disk count in what is held, and no more once they are written."""
    with living() as life:
        before = life.supervisor.pipeline.gate.held_bytes
        life.state.failing = "full"
        life.settle(ORDERS, 0, *range(1000))
        assert life.supervisor.pipeline.gate.held_bytes - before >= 8000
        life.state.failing = ""
        life.settle(ORDERS, 0, 1000)
        assert life.supervisor.pipeline.gate.held_bytes == before
        assert life.state.ids.load(ORDERS) == [(0, ids(*range(1001)))]
