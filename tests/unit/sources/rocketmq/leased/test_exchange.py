"""Messages that were in flight when a process died and that another member has: how who misses them gets them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count

import pytest

from sidecar.core.claims import Exchanged
from sidecar.core.partition_state import LaneState, PartitionState
from sidecar.sources.rocketmq.leased.columns import identity_of
from sidecar.sources.rocketmq.leased.recovery import packed, unpacked
from tests.support.leased_scene import A, Scene, handed, runs
from tests.support.memory_ledger import MemoryLedger

ONE = handed(5, b"\0\xff", unique="drawn\udcff", times=2)._replace(
    tag=b"\xfe", keys=(b"k1", b""), properties=(("a", b"\xff"), ("b", None)), born_ms=None
)


class Place:
    """A ledger as one member has it, which answers at once."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.problem = ""
        self._ledger = ledger
        self._found: Exchanged | None = None

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> None:
        """Look, and give."""
        self._found = self._ledger.exchange(group, missed, given)

    def exchanged(self) -> Exchanged | None:
        """What was found."""
        found, self._found = self._found, None
        return found


class Pair:
    """A process that died with two messages in flight, and another member of the group."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(lambda: 0.0)
        first = Scene()
        first.poll(handed(1, b"1", unique="1"), handed(2, b"2", unique="2"))
        self.begin = first.found[0].state.seen
        first.commit(PartitionState(self.begin, self.begin + 2, {A: LaneState(None, ((self.begin, self.begin + 1),))}))
        self.place = Place(self.ledger)
        self._state = first.state
        self.other = Scene(exchange=Place(self.ledger), clock=count().__next__)

    def come_back(self) -> None:
        """It is started again, and gets the second message."""
        self.back = Scene(self._state, exchange=self.place, clock=count().__next__)
        assert self.back.poll(handed(3, b"2", unique="2", times=1)) == []

    def turns(self) -> list[tuple[int, list[bytes]]]:
        """What the one that came back hands on, when both went round some times."""
        found = []
        for _ in range(4):
            found += runs(self.back.poll())
            self.other.poll()
        return found


def test_a_message_is_the_same_when_it_was_given() -> None:
    """Bytes, text that is no UTF-8 and what is absent go over as they are, without the handle."""
    assert unpacked(packed(ONE)) == ONE._replace(handle=None)
    assert identity_of(unpacked(packed(ONE))) == identity_of(ONE)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'[{"x": 1}]', json.dumps([None] * 14).encode()])
def test_something_else_is_no_message(text: bytes) -> None:
    """What somebody else wrote there is told from a message."""
    with pytest.raises(ValueError):
        unpacked(text)


def test_what_another_member_got_is_found() -> None:
    """The one that came back hands on all of its part under the old numbers; the other one keeps what it has."""
    pair = Pair()
    pair.come_back()
    pair.other.poll(handed(4, b"1", unique="1", times=1))
    assert pair.turns() == [(pair.begin, [b"1", b"2"])]
    pair.back.commit(PartitionState(pair.begin + 2, pair.begin + 2), at=1)
    pair.back.poll()
    assert (pair.back.client.acked, pair.other.client.acked) == ([3], [])


def test_what_another_member_has_settled_is_not_waited_for() -> None:
    """It had never been claimed, or its time was over: the rest goes out without it."""
    pair = Pair()
    pair.other.poll(handed(4, b"1", unique="1"))
    pair.other.settle(1)
    pair.come_back()
    assert pair.turns() == [(pair.begin + 1, [b"2"])]
    assert pair.back.events == []


def test_what_is_no_such_message_is_not_taken() -> None:
    """Something else under the name of a message that is missed is left, and the message awaited."""
    pair = Pair()
    missed = identity_of(handed(4, b"1", unique="1"))
    pair.come_back()
    for text in (b"no message", packed(handed(4, b"3"))):
        pair.ledger.exchange("g", [], {missed: text})
        assert pair.turns() == []
    assert runs(pair.back.poll(handed(4, b"1", unique="1"))) == [(pair.begin, [b"1", b"2"])]


def test_while_nobody_can_be_asked_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time after which a message is gone counts only while another member could give it."""
    monkeypatch.setattr("sidecar.sources.rocketmq.leased.recovery.GONE_AFTER_S", 0.0)
    pair = Pair()
    pair.place.problem = "away"
    pair.come_back()
    assert pair.turns() == []
    pair.place.problem = ""
    assert pair.turns() == [(pair.begin + 1, [b"2"])]
    assert pair.back.events == ["members.gone"]
