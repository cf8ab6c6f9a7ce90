"""Whether a queue that librocketmq reads is still what it was, by what a broker answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.native.cluster import READ_S, Marks
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.requests import Asks
from tests.support.rocketmq_bytes import Stored, stored

TP = TopicPartition("orders", 0, "broker-a")
STORED_MS = Stored().born_ms + 1


class Held:
    """A connection that is up and keeps each question until a test answers it."""

    is_up = True

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def ask(self, ask: Any, answered: Callable[[Frame | None], None], timeout_s: float) -> None:
        assert timeout_s > 0
        self.offsets.append(int(ask.fields["queueOffset"]))
        self._answered = answered

    def answer(self, position: int) -> None:
        """The message asked for last stands at this place of the commit log."""
        born_ms = Stored().born_ms + (position - 50)
        body = stored(Stored(offset=self.offsets[-1], position=position, born_ms=born_ms))
        self._answered(Frame(Code.SUCCESS, 1, 1, "", {"minOffset": "0", "maxOffset": "64"}, body))


@pytest.fixture
def held() -> Held:
    """The broker."""
    return Held()


@pytest.fixture
def marks(held: Held) -> Marks:
    """One message was read, and it stands."""
    marks = Marks(Asks("me", "group"), lambda _: held)  # type: ignore[arg-type,return-value]
    marks.read(TP, QueueMark(5, 50, STORED_MS))
    marks.ask(READ_S)
    held.answer(position=50)
    return marks


def test_what_was_read_after_the_question_is_asked_for_next(held: Held, marks: Marks) -> None:
    """An answer proves what was read before it was asked for, and never what came meanwhile: it may be another's."""
    marks.read(TP, QueueMark(6, 60, STORED_MS))
    marks.ask(3 * READ_S)
    marks.read(TP, QueueMark(7, 1, STORED_MS))
    held.answer(position=50)
    marks.ask(5 * READ_S)
    assert held.offsets == [5, 5, 6]
    assert not marks.replaced


def test_another_message_in_its_place_tells_that_a_queue_was_replaced(held: Held, marks: Marks) -> None:
    """It is told until the queue starts over, though the new one has messages of its own by then."""
    marks.read(TP, QueueMark(6, 1, STORED_MS))
    marks.ask(3 * READ_S)
    held.answer(position=7)
    assert marks.replaced == {TP}
    marks.forget_partitions([TP])
    assert not marks.replaced
    assert not marks.by_queue()
