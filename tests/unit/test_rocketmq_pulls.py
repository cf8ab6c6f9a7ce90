"""Answers to pulls: what a slave says is not always what a master would mean by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.core.records import Run, TopicPartition
from sidecar.rocketmq.frames import Frame
from sidecar.rocketmq.requests import Asks, Subscription
from sidecar.sources.rocketmq_pulls import Place, Pulls
from tests.support.rocketmq_bytes import Stored, stored

TP = TopicPartition("orders", 0, "broker-a")
FOUND, RETRY, MOVED = 0, 20, 21


class Asked:
    """A connection that is up, and keeps what is asked for until a test answers."""

    is_up = True

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._answered: Callable[[Frame], None]

    def ask(self, ask: Any, answered: Callable[[Frame], None], timeout_s: float) -> None:
        self.offsets.append(int(ask.fields["queueOffset"]))
        self._answered = answered

    def answer(self, code: int, remark: str = "", body: bytes = b"", suggested: str = "0", **fields: int) -> None:
        """Answer what was asked last."""
        numbers = {"nextBeginOffset": 32, "maxOffset": 64, "minOffset": 0, **fields}
        told = {name: str(number) for name, number in numbers.items()} | {"suggestWhichBrokerId": suggested}
        self._answered(Frame(code, 1, 1, remark, told, body))


def pulling(master: Any, slave: Any) -> Pulls:
    """Reads a queue from its begin; whatever is suggested but 0 is the slave."""
    pulls = Pulls(Asks("me", "group"), 4 << 20)
    pulls.add(
        TP, 0, Subscription("orders"), lambda number: Place(slave, is_slave=True) if number != "0" else Place(master)
    )
    pulls.ask()
    return pulls


def test_where_the_last_answer_suggests_it_is_asked_next() -> None:
    """At the slave while the master says so, and at the master again when the slave does."""
    master, slave = Asked(), Asked()
    pulls = pulling(master, slave)
    master.answer(FOUND, body=stored(Stored(offset=0)), suggested="1", nextBeginOffset=1)
    pulls.ask()
    slave.answer(FOUND, body=stored(Stored(offset=1)), suggested="0", nextBeginOffset=2)
    pulls.ask()
    assert (master.offsets, slave.offsets) == ([0, 2], [1])
    (run,) = [found for found in pulls.take() if isinstance(found, Run)]
    assert (run.first, run.last) == (0, 1)


@pytest.mark.parametrize(
    ("code", "remark"), [(RETRY, "FOUND"), (2, "system busy"), (MOVED, "OFFSET_OVERFLOW_BADLY")], ids=str
)
def test_a_slave_that_refuses_or_lags_costs_no_message(code: int, remark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left out, or does not have yet, is asked for again at the same offset, and no queue begins anew."""
    monkeypatch.setattr("sidecar.sources.rocketmq_pulls.EMPTY_DELAY_S", 0.0)
    master, slave = Asked(), Asked()
    pulls = pulling(master, slave)
    master.answer(FOUND, body=stored(Stored(offset=0)), suggested="1", nextBeginOffset=1)
    pulls.ask()
    slave.answer(code, remark, nextBeginOffset=33)
    pulls.ask()
    assert (master.offsets, slave.offsets) == ([0, 1], [1])
    assert not pulls.moved
