"""The thread that has dead letters kept: what a stop does to those that are on their way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from sidecar.core.records import DeadLetter
from sidecar.runtime.dead_letter_writer import DeadLetterWriter, LettersStored


class Slow:
    """A store that stores when it is allowed to."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.stored = 0

    def store(self, letters: Sequence[DeadLetter]) -> None:
        self.begun.set()
        assert self.may_end.wait(10)
        self.stored += 1


def test_a_close_waits_for_what_is_being_stored_and_drops_the_rest() -> None:
    """When `close` returns nothing is written any more, so that the state may be closed."""
    store, inbox = Slow(), queue.SimpleQueue[object]()
    dead_letter_writer = DeadLetterWriter(store, inbox)
    dead_letter_writer.store(1, [])
    dead_letter_writer.store(2, [])
    assert store.begun.wait(10)
    threading.Timer(0.1, store.may_end.set).start()
    dead_letter_writer.close()
    dead_letter_writer.close()
    assert store.stored == 1
    assert (inbox.get_nowait(), inbox.empty()) == (LettersStored(1, "", 0), True)
