"""Answers to pulls: what a slave says is not always what a master would mean by it."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from sidecar.core.records import Run, TopicPartition
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting.pulling import Node
from sidecar.sources.rocketmq.remoting.pulls import Pulls
from sidecar.sources.rocketmq.wire.frames import Frame, RequestCode
from sidecar.sources.rocketmq.wire.messages import decode
from sidecar.sources.rocketmq.wire.network import Link
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription
from tests.support.rocketmq_bytes import Stored, stored

TP = TopicPartition("orders", 0, "broker-a")
FOUND, RETRY, MOVED = 0, 20, 21


class Asked:
    """A connection that is up, and keeps what is asked for until a test answers.

    Questions for one message are answered at once: it stands at `position`, where all of these stand.
    """

    is_up = True
    position = 4096
    compacted = b""
    """What compaction left, if it ran."""
    moved_to: int | None = None
    """Where an operator set the offset."""

    def __init__(self) -> None:
        self.questions: list[int] = []
        self.offsets: list[int] = []
        self.suspends: list[int] = []
        self.answers: list[int] = []
        self._answered: Callable[[Frame], None]

    def ask(self, ask: Any, answered: Callable[[Frame], None], timeout_s: float) -> None:
        offset = int(ask.fields["queueOffset"])
        if ask.fields["maxMsgNums"] == "1":
            self.questions.append(offset)
            body = self.compacted or standing(offset, self.position)
            if self.moved_to is not None:
                ends = {"minOffset": "0", "maxOffset": "64", "nextBeginOffset": str(self.moved_to)}
                answered(Frame(MOVED, 1, 1, "", ends, b""))
                return
            answered(Frame(FOUND, 1, 1, "", {"minOffset": "0", "maxOffset": "64"}, body))
            return
        self.offsets.append(offset)
        self.suspends.append(int(ask.fields["suspendTimeoutMillis"]))
        self._answered = answered

    def answer(self, code: int, remark: str = "", body: bytes = b"", suggested: str = "0", **fields: int) -> None:
        """Answer what was asked last."""
        numbers = {"nextBeginOffset": 32, "maxOffset": 0, "minOffset": 0, **fields}
        self.answers.append(code)
        told = {name: str(number) for name, number in numbers.items()} | {"suggestWhichBrokerId": suggested}
        self._answered(Frame(code, 1, 1, remark, told, body))


def standing(offset: int, position: int) -> bytes:
    """A message there; one at another position was stored at another time."""
    return stored(Stored(offset=offset, position=position, born_ms=Stored().born_ms + position - Stored().position))


def packed(offset: int, size: int) -> bytes:
    """A message that unpacks to so many zeros."""
    return stored(Stored(zlib.compress(bytes(size)), offset=offset, sys_flag=1))


def at(link: Asked, *, is_slave: bool = False) -> Node:
    """A place to read at."""
    return Node(cast(Link, link), is_slave)


def pulling(master: Asked, slave: Asked) -> Pulls:
    """Reads a queue from its begin; whatever is suggested but 0 is the slave."""
    pulls = Pulls(Asks("me", "group"), 4 << 20)
    pulls.add_queue(
        TP, 0, Subscription("orders"), lambda number: at(slave, is_slave=True) if number != "0" else at(master)
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
    """What it left out, or does not have yet, is asked for again at the same offset, and no queue starts over."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.pulls.EMPTY_DELAY_S", 0.0)
    master, slave = Asked(), Asked()
    pulls = pulling(master, slave)
    master.answer(FOUND, body=stored(Stored(offset=0)), suggested="1", nextBeginOffset=1)
    pulls.ask()
    slave.answer(code, remark, nextBeginOffset=33)
    pulls.ask()
    assert (master.offsets, slave.offsets) == ([0, 1], [1])
    assert not pulls.findings.moved


@pytest.mark.parametrize("leave", ["take", "pause", "remove"])
def test_what_came_packed_counts_as_it_is_held(leave: str) -> None:
    """It fills what may be held, however small it came, and gives all of it back when it is taken or dropped."""
    link = Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=packed(0, 5 << 20), nextBeginOffset=1)
    assert pulls.is_full
    assert pulls._budget.held >= 5 << 20
    pulls.ask()
    assert link.offsets == [0]
    if leave == "take":
        assert [len(found.messages) for found in pulls.take() if isinstance(found, Run)] == [1]
    elif leave == "pause":
        pulls.pause([TP])
    else:
        pulls.remove([TP])
    assert (pulls._budget.held, pulls._budget.asked, pulls.is_full) == (0, 0, False)


def test_what_has_no_room_is_left_to_the_next_pull() -> None:
    """An answer that unpacks to more than may be held is taken up to there; the rest is asked for again."""
    link = Asked()
    pulls = pulling(link, link)
    sizes = {0: 3 << 20, 1: 3 << 20, 4: 1 << 20, 6: 1 << 20}
    read: list[tuple[int, int]] = []
    for _ in range(3):
        start = link.offsets[-1]
        body = b"".join(packed(offset, size) for offset, size in sizes.items() if offset >= start)
        link.answer(FOUND, body=body, nextBeginOffset=9)
        for found in pulls.take():
            if isinstance(found, Run):
                read += [(message.offset, len(message.body)) for message in found.messages]
        pulls.ask()
    assert read == list(sizes.items())
    assert link.offsets == [0, 1, 6, 9]


def test_large_messages_are_handed_on_one_by_one() -> None:
    """So a body is let go of when its row is made, and before the next one's is; small ones come together."""
    link = Asked()
    pulls = pulling(link, link)
    sizes = [1 << 20, 10, 10, 600_000, 600_000, 10]
    body = b"".join(packed(offset, size) for offset, size in enumerate(sizes))
    link.answer(FOUND, body=body, nextBeginOffset=9, maxOffset=9)
    taken = pulls.take()
    first = next(iter(taken))
    assert isinstance(first, Run)
    message = first.messages[0]
    del first
    found = [*taken]
    assert sys.getrefcount(message) == 2
    runs = [[len(one.body) for one in run.messages] for run in found if isinstance(run, Run)]
    assert runs == [[10, 10, 600_000], [600_000, 10]]
    assert [(run.first, run.last) for run in found if isinstance(run, Run)] == [(1, 3), (4, 5)]
    assert found[-1] == (TP, 9)


def test_of_all_outstanding_answers_one_alone_is_unpacked_beyond_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue has one on its way when they unpack to much: the others are asked for again, one after the other."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.pulls.EMPTY_DELAY_S", 0.0)
    links = [Asked() for _ in range(4)]
    pulls = pulling(links[0], links[0])
    for number, link in enumerate(links[1:], 1):
        pulls.add_queue(TP._replace(partition=number), 0, Subscription("orders"), lambda _, link=link: at(link))  # type: ignore[misc]
    pulls.ask()
    for _ in range(4):
        for link in links:
            if link.offsets.count(0) > len(link.answers):
                link.answer(FOUND, body=packed(0, 5 << 20), nextBeginOffset=1, maxOffset=1)
        assert pulls._budget.held < 6 << 20
        list(pulls.take())
        pulls.ask()
    assert all(link.offsets[-1] == 1 for link in links)


def test_an_answer_that_needs_all_the_room_waits_for_no_idle_queue() -> None:
    """What is kept free for the first message of a queue at its end may be kept for long."""
    idle, link = Asked(), Asked()
    pulls = pulling(idle, idle)
    idle.answer(19, maxOffset=0)
    pulls._queues[TP].not_before_s = 0
    pulls.ask()
    assert idle.suspends == [0, 5_000]
    other = TP._replace(partition=1)
    pulls.add_queue(other, 0, Subscription("orders"), lambda _: at(link))
    pulls._queues[other].answer_bytes = 1 << 30
    pulls.ask()
    assert link.offsets == [0]


def test_the_next_answer_is_expected_to_unpack_as_the_last_did() -> None:
    """By the share that unpacking added, but of no more messages than an answer holds; what came plain as it came."""
    link = Asked()
    pulls = pulling(link, link)
    one = pulls._queues[TP]
    link.answer(FOUND, body=packed(0, 50_000), nextBeginOffset=1)
    assert 32 * 50_000 <= one.answer_bytes < 33 * 50_000
    list(pulls.take())
    pulls.ask()
    link.answer(FOUND, body=stored(Stored(bytes(1_000), offset=1)), nextBeginOffset=2)
    assert one.answer_bytes == 256 << 10


def test_a_queue_that_waits_for_room_gets_it() -> None:
    """However busy another one is, which would ask again at each answer; and none of them waits for a message."""
    link, busy = Asked(), Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=packed(0, 5 << 20), nextBeginOffset=1, maxOffset=9)
    other = TP._replace(partition=1)
    pulls.add_queue(other, 0, Subscription("orders"), lambda _: at(busy))
    list(pulls.take())
    pulls._turn[TP] = pulls._turn.pop(TP)
    for offset in range(3):
        pulls.ask()
        if len(link.offsets) > 1:
            break
        busy.answer(FOUND, body=stored(Stored(offset=offset)), nextBeginOffset=offset + 1, maxOffset=9)
        list(pulls.take())
    assert (link.offsets, busy.offsets) == ([0, 1], [0])
    assert (link.suspends[-1], busy.suspends) == (0, [0])


def test_nothing_is_handed_on_before_the_message_read_last_is_seen_to_stand() -> None:
    """A topic that was made again has another message there, or none: then the queue is told to be another one."""
    link = Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=stored(Stored(offset=0)), nextBeginOffset=1)
    assert [type(found) for found in pulls.take()] == [Run]
    pulls.ask()
    link.position = 5000
    link.answer(FOUND, body=stored(Stored(offset=1)), nextBeginOffset=2)
    assert (link.questions, list(pulls.take())) == ([0], [])
    assert pulls.findings.replaced == {TP}


@pytest.mark.parametrize("left", [(7, 5000), (0, 5000)], ids=["removed", "moved"])
def test_compaction_of_the_message_read_last_stops_nothing(left: tuple[int, int]) -> None:
    """Later messages alone, or the same one at another place of the log, are not another queue."""
    link = Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=stored(Stored(offset=0)), nextBeginOffset=1)
    assert [type(found) for found in pulls.take()] == [Run]
    pulls.ask()
    offset, position = left
    link.compacted = stored(Stored(offset=offset, position=position))
    link.answer(FOUND, body=stored(Stored(offset=7)), nextBeginOffset=8)
    assert [found.first for found in pulls.take() if isinstance(found, Run)] == [7]
    assert not pulls.findings.replaced


def test_where_more_is_known_to_be_there_the_next_answer_proves_itself() -> None:
    """It begins with the message read last: no question, and that message is not handed on again."""
    link = Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=stored(Stored(offset=0)), nextBeginOffset=1, maxOffset=9)
    pulls.ask()
    body = stored(Stored(offset=0)) + standing(1, 5000)
    link.answer(FOUND, body=body, nextBeginOffset=2, maxOffset=9)
    pulls.ask()
    runs = [found for found in pulls.take() if isinstance(found, Run)]
    assert [(run.first, run.last) for run in runs] == [(0, 1)]
    assert (link.offsets, link.questions) == ([0, 0, 1], [])
    link.position = 6000
    link.answer(FOUND, body=standing(1, 6000), nextBeginOffset=2, maxOffset=9)
    assert not pulls.findings.replaced  # it brought nothing to be proven, as before a message that fills an answer
    pulls.ask()
    assert link.offsets == [0, 0, 1, 2]


def test_the_end_of_a_queue_that_is_paused_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of it, so no answer to a pull tells that its log goes on: its end is asked for every 5 s."""
    asked: list[tuple[int, Callable[[Frame], None]]] = []
    now_s = 100.0
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.pulls.time.monotonic", lambda: now_s)

    class Master(Asked):
        def ask(self, ask: Any, answered: Callable[[Frame], None], timeout_s: float) -> None:
            asked.append((ask.code, answered))

    pulls = pulling(Master(), Asked())
    asked[-1][1](Frame(FOUND, 1, 1, "", {"nextBeginOffset": "0", "maxOffset": "64", "minOffset": "0"}, b""))
    pulls.pause([TP])
    pulls.ask()
    code, answered = asked[-1]
    assert (code, pulls.end_of(TP)) == (RequestCode.GET_MAX_OFFSET, 64)
    answered(Frame(0, 1, 1, "", {"offset": "70"}, b""))
    assert pulls.end_of(TP) == 70
    count = len(asked)
    pulls.ask()
    assert len(asked) == count
    now_s += 5.0
    pulls.ask()
    assert [code for code, _ in asked[count:]] == [RequestCode.GET_MAX_OFFSET]


def test_a_topic_that_is_away_breaks_no_connection() -> None:
    """Its broker refuses the pull and tells no offsets: it is asked again later."""
    link = Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=stored(Stored(offset=0)), nextBeginOffset=1, maxOffset=9)
    pulls.ask()
    link._answered(Frame(17, 1, 1, "no such topic", {}, b""))
    assert pulls.findings.refused[TP].code == 17


@pytest.mark.parametrize("late", [False, True], ids=["to a question for proof", "to a pull before a pause"])
def test_a_reset_is_obeyed_whichever_answer_tells_it(late: bool) -> None:
    """A broker tells it once, to whoever asks first."""
    link = Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=stored(Stored(offset=0)), nextBeginOffset=1)
    assert [type(found) for found in pulls.take()] == [Run]
    pulls.ask()
    if late:
        pulls.pause([TP])
        link.answer(MOVED, nextBeginOffset=0, maxOffset=9)
    else:
        link.moved_to = 0
        link.answer(FOUND, body=standing(1, 5000), nextBeginOffset=2)
    assert pulls.findings.moved == {TP: 0}


def test_what_waits_for_proof_is_asked_for_though_another_queue_has_no_room() -> None:
    """It takes the room that the other one waits for."""
    link = Asked()
    pulls = Pulls(Asks("me", "group"), 4 << 20)
    other = TP._replace(partition=1)
    for tp in (other, TP):
        pulls.add_queue(tp, 0, Subscription("orders"), lambda _: at(link), QueueMark(0, link.position, 0))
    held = pulls._queues[TP]
    held.next = 1
    pulls._proofs.wanted.add(TP)
    held.held, pulls._budget.held = decode(stored(Stored(offset=0))), 5 << 20
    pulls.ask()
    assert link.questions == [0]
    assert pulls._is_awaited


@pytest.mark.parametrize("code", [RETRY, 19], ids=["nothing of it is wanted", "nothing new"])
def test_a_queue_read_to_its_end_is_proven(code: int) -> None:
    """A topic made again may end where the old one did: no message beyond would ever tell."""
    link = Asked()
    pulls = pulling(link, link)
    link.answer(FOUND, body=stored(Stored(offset=0)), nextBeginOffset=1, maxOffset=1)
    link.position = 5000
    pulls.ask()
    link.answer(code, nextBeginOffset=2, maxOffset=2)
    assert (link.questions, pulls.findings.replaced) == ([0], {TP})


def test_a_queue_begun_in_its_middle_gets_a_mark() -> None:
    """Else nothing would tell a topic that is made again before anything was read of it."""
    link = Asked()
    pulls = Pulls(Asks("me", "group"), 4 << 20)
    pulls.add_queue(TP, 7, Subscription("orders"), lambda _: at(link))
    pulls.ask()
    link.answer(19, nextBeginOffset=7, maxOffset=7)
    pulls.ask()
    assert link.questions == [6]
    assert pulls.findings.found[TP].offset == 6


def test_a_queue_without_a_mark_whose_first_offset_goes_back_is_another_one() -> None:
    """Where all has expired there is no message to know it by."""
    link = Asked()
    pulls = Pulls(Asks("me", "group"), 4 << 20)
    pulls.add_queue(TP, 7, Subscription("orders"), lambda _: at(link))
    pulls.ask()
    link.answer(19, nextBeginOffset=7, minOffset=7, maxOffset=7)
    pulls._queues[TP].not_before_s = 0
    pulls._queues[TP].prove_at_s = 1e12
    pulls.ask()
    link.answer(19, nextBeginOffset=7, minOffset=0, maxOffset=7)
    assert pulls.findings.replaced == {TP}


@pytest.mark.parametrize("by", ["an answer", "a question"])
def test_the_first_offset_at_the_start_is_of_the_queue_that_was_there_then(by: str) -> None:
    """The topic may have been made again before the first pull."""
    link = Asked()
    pulls = Pulls(Asks("me", "group"), 4 << 20)
    pulls.add_queue(TP, 7, Subscription("orders"), lambda _: at(link), low=7)
    pulls.ask()
    if by == "an answer":
        link.answer(19, nextBeginOffset=7, minOffset=0, maxOffset=7)
    else:
        pulls._proofs.wanted.add(TP)
        pulls.ask()
        assert link.questions == [7]
    assert pulls.findings.replaced == {TP}


class Many(Asked):
    """Keeps all requests, of many queues, until they are answered together."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[Frame], None]] = []

    def ask(self, ask: Any, answered: Callable[[Frame], None], timeout_s: float) -> None:
        self.waiting.append(answered)

    def answer_all(self, body: bytes) -> None:
        """With one message each, and one that is left."""
        waiting, self.waiting = self.waiting, []
        for answered in waiting:
            told = {"nextBeginOffset": "1", "maxOffset": "2", "minOffset": "0", "suggestWhichBrokerId": "0"}
            answered(Frame(FOUND, 1, 1, "", told, body))


@pytest.mark.parametrize("paused", [False, True], ids=["taken", "dropped"])
def test_large_answers_are_not_asked_for_beyond_the_room(paused: bool) -> None:
    """What one queue answers is expected of those that were not asked yet, so little is dropped for want of room.

    Without that, 44 answers of 4 MiB were transferred for each message that had room.
    """
    link = Many()
    pulls = Pulls(Asks("me", "group"), 11 << 20)
    tps = [TP._replace(partition=number) for number in range(256)]
    for tp in tps:
        pulls.add_queue(tp, 0, Subscription("orders"), lambda _: at(link))
    pulls.ask()
    assert len(link.waiting) == 44
    if paused:
        pulls.pause(tps)
    link.answer_all(stored(Stored(bytes(4 << 20), offset=0)))
    for _ in range(3):
        pulls.pause([])
        list(pulls.take())
        pulls.ask()
        assert len(link.waiting) <= 2
        pulls.pause(tps)
        link.answer_all(stored(Stored(bytes(4 << 20), offset=0)))
