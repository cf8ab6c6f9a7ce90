"""What an operator asks of delayed messages while the daemon runs: one is shown, cancelled or released."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.answers import NOT_HELD, time_of
from sidecar.daemon.delays.changes import HeldChanges
from sidecar.daemon.delays.questions import One, Question
from sidecar.daemon.delays.requests import Requests
from sidecar.delay.interface import HeldStore
from sidecar.delay.rows import Held
from sidecar.errors import StateError
from tests.support.held_store import ModelStore
from tests.support.shell import Shell

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
DUE_MS = 7_200_000


class Scene:
    """An owned partition whose store holds two messages; changes are final once they are durable and committed."""

    def __init__(self) -> None:
        self.core, self.store = Shell().pipeline, ModelStore()
        self.core.assign(TP, "5c0pe001", PartitionState(0, 0))
        self.core.assign(TP.store, "5c0pe002", PartitionState(0, 0))
        self.number = self.store.number(b"p")
        rows: list[Any] = [
            Held((DUE_MS + i) << SEQUENCE_BITS, 10 + i, 0, None, NO_TAGS, b"k", b"", b"v") for i in range(2)
        ]
        self.positions = self.store.put(self.number, rows)
        self.store.writes.sync()
        self.core.books[TP.store].restore(2)
        self.is_loading = False
        store = cast(HeldStore, self.store)
        changes = HeldChanges(self.core, store, lambda then: then())
        self.changes = changes
        self.requests = Requests(
            self.core, store, {TP: self.number}, lambda tp: self.is_loading, changes, lambda: 5_000
        )

    def ask(self, what: str, offset: int = 10, tp: TopicPartition = TP, due_ms: int = DUE_MS) -> Future[Any]:
        """Ask, and let the main loop turn."""
        future: Future[Any] = Future()
        self.requests.ask(Question(One(what, tp, offset, due_ms), future))
        self.requests.tend()
        return future

    def commit(self) -> None:
        """All that is to be committed is."""
        for now_ms in (1_000.0, 2_000.0):
            items = [item for effect in self.core.step(now_ms) for item in getattr(effect, "items", ())]
            self.core.committed({item.tp: True for item in items}, now_ms)
            self.changes.tend(now_ms)


@pytest.fixture
def scene() -> Scene:
    """One that nobody has asked."""
    return Scene()


def test_a_message_is_shown(scene: Scene) -> None:
    """As it was produced, with its due time."""
    answer = scene.ask("show").result(0)
    assert (answer["outcome"], answer["due"]) == ("shown", time_of(scene.positions[0]))
    assert (answer["message"]["offset"], answer["message"]["key"], answer["message"]["value"]) == (10, "k", "v")


@pytest.mark.parametrize("what", ["show", "cancel", "release"])
def test_a_message_that_is_not_held_is_told(scene: Scene, what: str) -> None:
    """Of another offset, or another hour."""
    assert scene.ask(what, 99).result(0) == NOT_HELD
    assert scene.ask(what, due_ms=0).result(0) == NOT_HELD


@pytest.mark.parametrize("what", ["cancel", "release"])
def test_a_change_needs_the_exact_time(scene: Scene, what: str) -> None:
    """In a topic that was created again, another message of the hour may have the place: it is only shown."""
    due = [time_of(scene.positions[0])]
    assert scene.ask(what, due_ms=DUE_MS + 1).result(0) == {"outcome": "several", "due": due}
    assert scene.store.held(scene.number) == 2
    assert scene.ask("show", due_ms=DUE_MS + 1).result(0)["outcome"] == "shown"


def test_a_partition_of_another_member_is_told(scene: Scene) -> None:
    """It is asked instead."""
    assert scene.ask("show", tp=OTHER).result(0) == {"outcome": "not_owned"}


@pytest.mark.parametrize("what", ["show", "cancel"])
def test_a_question_waits_until_the_partition_is_there(scene: Scene, what: str) -> None:
    """What it holds is being restored; and its store may not be taken yet."""
    scene.is_loading = True
    future = scene.ask(what)
    assert not future.done()
    scene.is_loading = False
    scene.core.forget_partitions([TP.store])
    scene.requests.tend()
    assert not future.done()
    scene.core.assign(TP.store, "5c0pe002", PartitionState(0, 0))
    scene.requests.tend()
    assert future.done() if what == "show" else scene.store.held(scene.number) == 1


def test_a_cancelled_message_never_comes(scene: Scene) -> None:
    """The answer is final once a commit proves the ownership; the books have it."""
    future = scene.ask("cancel")
    assert (scene.store.held(scene.number), future.done()) == (1, False)
    scene.commit()
    assert future.result(0) == {"outcome": "cancelled", "due": time_of(scene.positions[0])}
    assert scene.core.books[TP.store].cancelled == 1
    assert scene.ask("cancel").result(0) == NOT_HELD


def test_a_released_message_is_due_now(scene: Scene) -> None:
    """It counts as delayed still; the answer has the due time that it had."""
    future = scene.ask("release")
    assert not future.done()
    following = scene.store.next(scene.number)
    assert following is not None and following >> SEQUENCE_BITS <= 5_000
    scene.commit()
    assert future.result(0) == {"outcome": "released", "due": time_of(scene.positions[0])}
    assert scene.core.books[TP.store].cancelled == 0


def test_an_ownership_that_ends_before_the_answer_is_told(scene: Scene) -> None:
    """Nobody knows whether the next owner has the change."""
    future = scene.ask("cancel")
    scene.core.forget_partitions([TP, TP.store])
    scene.changes.tend(1_000.0)
    assert future.result(0) == {"outcome": "lost"}


def test_a_question_that_nobody_waits_for_changes_nothing(scene: Scene) -> None:
    """The one who asked has gone."""
    future: Future[Any] = Future()
    scene.requests.ask(Question(One("cancel", TP, 10, DUE_MS), future))
    assert future.cancel()
    scene.requests.tend()
    assert scene.store.held(scene.number) == 2


def test_a_store_that_cannot_be_read_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason."""

    def broken(*_: Any, **__: Any) -> Any:
        raise StateError("Input/output error")

    monkeypatch.setattr(scene.store, "listed", broken)
    assert scene.ask("show").result(0) == {"outcome": "failed", "reason": "Input/output error"}
