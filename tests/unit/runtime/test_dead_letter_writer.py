"""The thread that has dead letters kept: what a stop does to those that are on their way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest

from sidecar.core.records import DeadLetter, TopicPartition
from sidecar.errors import StateError
from sidecar.runtime.dead_letters import DeadLettersInState, DeadLetterWriter, Originals
from sidecar.runtime.worker import Call
from tests.support.memory_state import MemoryState


class Slow:
    """A store that stores when it is allowed to."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.stored = 0

    def store(self, letters: Sequence[DeadLetter]) -> None:
        self.begun.set()
        assert self.may_end.wait(10)
        self.stored += 1

    def close(self) -> None:
        """Nothing is open."""


def test_a_close_waits_for_what_is_being_stored_and_drops_the_rest() -> None:
    """When `close` returns nothing is written any more, so that the state may be closed."""
    store, inbox, told = Slow(), queue.SimpleQueue[Call](), list[str]()
    dead_letter_writer = DeadLetterWriter(store, inbox)
    for _ in range(2):
        dead_letter_writer.store([], lambda reason, _: told.append(reason))
    assert store.begun.wait(10)
    threading.Timer(0.1, store.may_end.set).start()
    dead_letter_writer.close()
    dead_letter_writer.close()
    assert store.stored == 1
    inbox.get_nowait()(0.0)
    assert (told, inbox.empty()) == ([""], True)


def test_a_store_that_is_closed_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is still being read at the broker when the patience is over does not reach a closed state."""
    state, begun, may_end = MemoryState(), threading.Event(), threading.Event()
    monkeypatch.setattr("sidecar.runtime.dead_letters.PATIENCE_S", 0.0)

    def fetch(tp: TopicPartition, offset: int) -> None:
        begun.set()
        assert may_end.wait(10)

    inbox, told = queue.SimpleQueue[Call](), list[str]()
    writer = DeadLetterWriter(DeadLettersInState(state.letters, Originals("ndjson", fetch)), inbox)
    letter = DeadLetter(TopicPartition("orders", 0), 7, "9f3ac2d1", "paid", "bad", b"row")
    writer.store([letter], lambda reason, _: told.append(reason))
    assert begun.wait(10)
    writer.close()
    may_end.set()
    inbox.get(timeout=10)(0.0)
    assert told == [str(StateError("dead letters are stored no more: the process ends"))]
    assert state.letters.count() == 0
