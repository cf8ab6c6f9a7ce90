"""The thread that has dead letters kept: what a stop does to those that are on their way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from sidecar.core.records import DeadLetter
from sidecar.daemon.gravedigger import Buried, Gravedigger


class Slow:
    """A graveyard that stores when it is allowed to."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.stored = 0

    def bury(self, letters: Sequence[DeadLetter]) -> None:
        self.begun.set()
        assert self.may_end.wait(10)
        self.stored += 1


def test_a_close_waits_for_what_is_being_stored_and_drops_the_rest() -> None:
    """When `close` returns nothing is written any more, so that the state may be closed."""
    graveyard, inbox = Slow(), queue.SimpleQueue[object]()
    gravedigger = Gravedigger(graveyard, inbox)
    gravedigger.bury(1, [])
    gravedigger.bury(2, [])
    assert graveyard.begun.wait(10)
    threading.Timer(0.1, graveyard.may_end.set).start()
    gravedigger.close()
    gravedigger.close()
    assert graveyard.stored == 1
    assert (inbox.get_nowait(), inbox.empty()) == (Buried(1, "", 0), True)
