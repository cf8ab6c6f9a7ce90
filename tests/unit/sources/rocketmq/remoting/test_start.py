"""Where a group on RocketMQ begins, and what is asked of several brokers at once, with links that are made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import QueueMark, QueueProgress, Told
from sidecar.sources.rocketmq.remoting.routes import Brokers
from sidecar.sources.rocketmq.remoting.start import MESSAGE_BYTES, QueueStartOffsets
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.network import Ask, Network
from sidecar.sources.rocketmq.wire.requests import Asks
from sidecar.state.offset_map import Identity, encode
from tests.support.rocketmq_bytes import Stored, stored

HERE, THERE = TopicPartition("orders", 0, "a"), TopicPartition("orders", 0, "b")


class MadeUpLink:
    """Up, and answers in the turn after it was asked; or refused."""

    def __init__(self, problem: str = "", answers: Mapping[int, Frame | None] | None = None) -> None:
        self.problem = problem
        self.is_up = not problem
        self.connection = 1
        self._answers = dict(answers or {})
        self._asked: list[tuple[int, Any]] = []
        self.most_at_once: Counter[int] = Counter()
        """By code, the largest number of requests that were under way."""

    def ask(self, ask: Ask, answered: Any, timeout_s: float) -> None:
        """Keep it for the next turn."""
        self._asked.append((ask.code, answered))
        self.most_at_once |= Counter(code for code, _ in self._asked)

    def check(self, now_s: float) -> None:
        """Answer what was asked."""
        asked, self._asked = self._asked, []
        for code, answered in asked:
            answered(self._answers[code])


def frame(code: int, **fields: str) -> Frame:
    """An answer."""
    return Frame(code, 0, 1, "", fields, b"")


def booted(stamp: int) -> Frame:
    """What a broker tells of itself that runs since then."""
    return Frame(Code.SUCCESS, 0, 1, "", {}, b'{"table":{"bootTimestamp":"%d"}}' % stamp)


NEW = {14: frame(Code.QUERY_NOT_FOUND), 30: frame(Code.SUCCESS, offset="1000")}
OLD = {14: frame(Code.SUCCESS, offset="7")}


def starts_of(*links: MadeUpLink, tell: Callable[..., None] = lambda *told: None) -> QueueStartOffsets:
    """With `start: latest`, on brokers a, b."""
    network = Network(None, None, lambda _: None)
    network.links.update({str(i): link for i, link in enumerate(links)})  # type: ignore[misc]
    found = dict(zip("ab", links, strict=True))
    asks = Asks("me", "g")
    brokers = Brokers(network, found.get)  # type: ignore[arg-type]
    return QueueStartOffsets(brokers, asks, "cluster", "latest", b"rule", tell, 8 * MESSAGE_BYTES)


def test_a_broker_that_is_down_costs_no_answer_of_another() -> None:
    """Asked together, the one that is up is waited for, though the other was refused."""
    up, down = MadeUpLink(answers=NEW), MadeUpLink("refused")
    network = Network(None, None, lambda _: None)
    network.links.update({"up": up, "down": down})  # type: ignore[dict-item]
    high = Asks("me", "g").high(HERE)
    answers = network.ask_all([(up, high), (down, high)], 5)  # type: ignore[list-item]
    assert answers == [NEW[30], None]


def test_a_new_group_begins_when_all_brokers_have_told() -> None:
    """A broker that is silent may know the group: nothing is decided, and it is named."""
    assert starts_of(MadeUpLink(answers=NEW), MadeUpLink("refused")).begin_starts([HERE, THERE], {}) == {"b"}
    assert starts_of(MadeUpLink(answers=NEW), MadeUpLink(answers=NEW)).begin_starts([HERE, THERE], {}) == set()


@pytest.mark.parametrize("other", [MadeUpLink(answers=NEW), MadeUpLink("refused")], ids=["new there", "silent"])
def test_a_group_that_one_broker_knows_is_not_new(other: MadeUpLink) -> None:
    """Nobody else is waited for: `latest` is for new groups."""
    assert starts_of(MadeUpLink(answers=OLD), other).begin_starts([HERE, THERE], {}) == set()


def test_a_group_of_which_another_queue_is_known_is_not_new() -> None:
    """A topic that is made again with fewer queues, without its offsets, is read from its first message."""
    answers = NEW | answering(0, 30, frame(Code.PULL_NOT_FOUND)) | {14: frame(Code.QUERY_NOT_FOUND)}
    starts, known = starts_of(MadeUpLink(answers=answers), MadeUpLink()), {HERE._replace(partition=7): known_with()}
    assert starts.begin_starts([HERE], known) == set()
    assert [one.read_from for one in starts.find([HERE], known).assignments] == [0]


def test_a_queue_that_is_just_being_made_begins_at_its_first_message() -> None:
    """Some brokers put the ends of a queue without a file at -1, where no message can be."""
    empty = frame(Code.SUCCESS, offset="-1")
    answers = {14: frame(Code.QUERY_NOT_FOUND), 30: empty, 31: empty, 11: frame(Code.PULL_NOT_FOUND), 28: booted(1)}
    starts = starts_of(MadeUpLink(answers=answers), MadeUpLink(answers=NEW))
    for is_new in (False, True):  # a new group begins at the end
        assert not is_new or starts.begin_starts([HERE, THERE], {}) == set()
        found = starts.find([HERE], {})
        assert [(one.state.watermark, one.read_from) for one in found.assignments] == [(0, 0)]


def begun_at(
    boot: int, committed: int, tell: Callable[..., None] = lambda *told: None, reset: int | None = None
) -> tuple[QueueStartOffsets, int]:
    """A queue known as read to 30, of which run 7 of the broker took 20 last, and 10 is on its disk in any case."""
    asks = Asks("me", "g")
    identity = Identity("cluster", asks.wire("g"), "", 5)
    known = QueueProgress(encode(identity, b"rule", PartitionState(30, 30)), 5, 30, 10, (), Told(7, 20))
    answers = {14: frame(Code.SUCCESS, offset=str(committed)), 30: frame(Code.SUCCESS, offset="30")}
    answers |= {31: frame(Code.SUCCESS, offset="0"), 11: frame(Code.PULL_NOT_FOUND), 28: booted(boot)}
    starts = starts_of(MadeUpLink(answers=answers), MadeUpLink(), tell=tell)
    if reset is not None:
        starts.resets[HERE] = reset
    (one,) = starts.find([HERE], {HERE: known}).assignments
    assert one.read_from is not None
    return starts, one.read_from


@pytest.mark.parametrize(("committed", "at"), [(20, 5), (4, 4), (5, 5)])
def test_of_two_resets_the_one_that_is_committed_came_last(committed: int, at: int) -> None:
    """Of one at 5 a pull was told; a broker that has an older commit than ours since then was reset once more."""
    assert begun_at(7, committed, reset=5)[1] == at


@pytest.mark.parametrize(
    ("boot", "committed", "at"),
    [(7, 19, 19), (7, 20, 30), (8, 19, 30), (8, 9, 9), (0, 19, 30)],
    ids=["set back", "killed before it was told", "forgotten in a crash", "older than it can forget", "not told"],
)
def test_an_older_commit_of_the_same_run_of_a_broker_was_set(boot: int, committed: int, at: int) -> None:
    """A broker whose process still runs forgets nothing; another run has what was told 15 s before."""
    assert begun_at(boot, committed)[1] == at


@pytest.mark.parametrize(("boot", "committed"), [(7, 20), (7, 25), (8, 19), (0, 19)])
def test_an_older_commit_that_may_have_been_set_is_a_problem_for_a_while(
    boot: int, committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is passed over is told by a warning, until its time is over or the offset is set again."""
    told: list[tuple[str, str]] = []
    starts, _ = begun_at(boot, committed, lambda event, level, fields: told.append((event, level)))
    assert told == [("commit.behind", "warning")]
    assert f"older offset {committed}" in starts.doubt()
    starts.resets[HERE] = 5
    starts.find([HERE], {})
    assert not starts.doubt(), "it was set again while the daemon ran"
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.start.DOUBT_S", 0.0)
    assert not begun_at(boot, committed)[0].doubt()


def message(offset: int, position: int) -> Frame:
    """One message that stands there, stored at its own time."""
    ends = {"minOffset": "0", "maxOffset": "30", "nextBeginOffset": str(offset + 1)}
    one = Stored(offset=offset, position=position, born_ms=Stored().born_ms + position - 64)
    return Frame(Code.SUCCESS, 0, 1, "", ends, stored(one))


def known_with(*marks: QueueMark) -> QueueProgress:
    """Settled up to 20, in a run of the broker that is known."""
    identity = Identity("cluster", Asks("me", "g").wire("g"), "", 5)
    return QueueProgress(encode(identity, b"rule", PartitionState(20, 20)), 5, 20, 10, marks, Told(7, 20))


def answering(committed: int, high: int, message: Frame) -> dict[int, Frame]:
    """What a broker tells of the queue."""
    answers = {14: frame(Code.SUCCESS, offset=str(committed)), 30: frame(Code.SUCCESS, offset=str(high))}
    return answers | {31: frame(Code.SUCCESS, offset="0"), 11: message, 28: booted(7)}


@pytest.mark.parametrize(
    ("committed", "high", "mark", "below"),
    [(25, 30, 19, 20), (20, 30, 19, None), (3, 30, 19, 3), (20, 28, 25, 20), (20, 18, 18, 18), (20, 30, 29, 1 << 63)],
    ids=["moved on", "ours", "set back", "lost its end", "lost what was settled", "recreated"],
)
def test_held_messages_that_no_other_member_read_stay(committed: int, high: int, mark: int, below: int | None) -> None:
    """Those below the last watermark here, unless they come again; all of them if the topic is another one."""
    is_recreated = below == 1 << 63
    link = MadeUpLink(answers=answering(committed, high, message(mark, 80 if is_recreated else 64)))
    marks = [QueueMark(mark, 64, 1_700_000_000_001)]
    if mark >= 20 or high < 20:
        marks.insert(0, QueueMark(29, 96, 1))
    if high < 20:
        marks[1] = QueueMark(17, 64, 1_700_000_000_001)
        link._answers[11] = message(17, 64)
    (found,) = starts_of(link, MadeUpLink()).find([HERE], {HERE: known_with(*marks)}).assignments
    assert found.held_below == below


def test_held_messages_below_the_commit_stay_without_a_state_file() -> None:
    """Nothing tells whose they are: none may be lost."""
    (found,) = (
        starts_of(MadeUpLink(answers=answering(20, 30, message(0, 64))), MadeUpLink()).find([HERE], {}).assignments
    )
    assert found.held_below == 20


def test_an_offset_beyond_the_end_is_of_no_other_member() -> None:
    """A broker that was killed has it of a topic that is gone: the state file knows better."""
    link = MadeUpLink(answers=answering(99, 30, message(19, 64)))
    mark = QueueMark(19, 64, 1_700_000_000_001)
    found = starts_of(link, MadeUpLink()).find([HERE], {HERE: known_with(mark)})
    assert [one.read_from for one in found.assignments] == [20]
    assert found.marks == {HERE: (mark,)}


@pytest.mark.parametrize(("committed", "at"), [(20, 20), (3, 3)], ids=["as known", "set back"])
def test_what_was_read_and_is_not_settled_is_read_again_where_a_queue_lost_its_end(committed: int, at: int) -> None:
    """The newest message of those that are there still was read; what was settled ends before it.

    An offset that only an operator can have set is obeyed there, too, though a pull beyond the end told of it.
    """
    link = MadeUpLink(answers=answering(committed, 28, message(25, 64)))
    marks = QueueMark(29, 80, 1), QueueMark(25, 64, 1_700_000_000_001)
    found = starts_of(link, MadeUpLink()).find([HERE], {HERE: known_with(*marks)})
    assert [one.read_from for one in found.assignments] == [at]
    assert found.marks == {HERE: marks[1:]}


def test_the_end_of_a_queue_that_grows_is_no_reset() -> None:
    """An offset beyond the end is sent back to it, though the queue is longer by the time at which its end is told."""
    moved = frame(Code.PULL_OFFSET_MOVED, minOffset="0", maxOffset="18", nextBeginOffset="18")
    starts = starts_of(MadeUpLink(answers=answering(20, 30, moved)), MadeUpLink())
    assert list(starts.find([HERE], {HERE: known_with(QueueMark(19, 64, 1_700_000_000_001))}).failed) == [HERE]
    assert not starts.resets


def test_a_reset_is_obeyed_where_a_queue_lost_its_end_too() -> None:
    """It is told once, and waits for as long as the broker does not tell where the queue begins."""
    link = MadeAgainLink(answers=answering(3, 28, message(25, 64)))
    marks = QueueMark(29, 80, 1), QueueMark(25, 64, 1_700_000_000_001)
    starts, known = starts_of(link, MadeUpLink()), {HERE: known_with(*marks)}
    starts.resets[HERE] = 3
    assert list(starts.find([HERE], known).failed) == [HERE]
    link.low = link._answers[31] = frame(Code.SUCCESS, offset="0")
    found = starts.find([HERE], known)
    assert ([one.read_from for one in found.assignments], found.marks) == ([3], {HERE: marks[1:]})
    assert not starts.resets


def test_a_reset_told_to_the_question_for_the_last_message_is_kept() -> None:
    """It is told once, so the next time it is known."""
    moved = frame(Code.PULL_OFFSET_MOVED, minOffset="0", maxOffset="30", nextBeginOffset="3")
    link = MadeUpLink(answers=answering(20, 30, moved))
    starts, known = starts_of(link, MadeUpLink()), {HERE: known_with(QueueMark(19, 64, 1_700_000_000_001))}
    assert list(starts.find([HERE], known).failed) == [HERE]
    link._answers[11] = message(19, 64)
    assert [one.read_from for one in starts.find([HERE], known).assignments] == [3]


def test_a_run_of_a_broker_that_is_over_proves_no_reset() -> None:
    """Killed after it told what is committed and before it told its start, it may have forgotten the newest commits."""
    link = MadeUpLink(answers=answering(20, 30, message(19, 64)))
    starts, known = starts_of(link, MadeUpLink()), {HERE: known_with(QueueMark(19, 64, 1_700_000_000_001))}
    assert [one.read_from for one in starts.find([HERE], known).assignments] == [20]
    link.connection += 1
    link._answers |= {14: frame(Code.SUCCESS, offset="19"), 28: None}
    assert list(starts.find([HERE], known).failed) == [HERE]


@pytest.mark.parametrize(("committed", "moved"), [(20, set()), (21, {HERE})], ids=["ours", "another member's"])
def test_a_commit_taken_after_a_reset_was_told_is_no_other_members(committed: int, moved: set[TopicPartition]) -> None:
    """The queue begins at 7 by then, though the broker has, as the state file, what was settled before: 7 is kept."""
    starts = starts_of(MadeUpLink(answers=answering(committed, 30, message(19, 64))), MadeUpLink())
    assert starts.has_moved([HERE], {HERE: 7}, {HERE: known_with()}) == moved


class MadeAgainLink(MadeUpLink):
    """Another topic is there from the second turn on, of which the broker tells this as its first offset."""

    low: Frame | None = None

    def check(self, now_s: float) -> None:
        """Answer what was asked."""
        super().check(now_s)
        self._answers[31] = self.low


@pytest.mark.parametrize(
    ("low", "at"), [(frame(Code.SUCCESS, offset="0"), [0]), (None, []), (frame(Code.NO_PERMISSION), [])],
    ids=["told", "silent", "refused"],
)  # fmt: skip
def test_a_topic_that_is_made_again_between_two_answers_begins_at_its_own_first_message(
    low: Frame | None, at: list[int]
) -> None:
    """The offset at which the old one began, told just before, is none of it; what cannot be told is asked later."""
    link = MadeAgainLink(answers=answering(20, 30, message(19, 99)) | {31: frame(Code.SUCCESS, offset="16")})
    link.low = low
    found = starts_of(link, MadeUpLink()).find([HERE], {HERE: known_with(QueueMark(19, 64, 1_700_000_000_001))})
    assert [one.read_from for one in found.assignments] == at
    assert len(found.failed) == 1 - len(at)


def test_a_new_queue_begins_where_the_topic_begins_that_is_there_by_then() -> None:
    """All of the old topic's messages had expired; its first offset may lie behind the new one's messages."""
    answers = answering(0, 30, frame(Code.PULL_NOT_FOUND)) | {14: frame(Code.QUERY_NOT_FOUND)}
    link = MadeAgainLink(answers=answers | {31: frame(Code.SUCCESS, offset="16")})
    link.low = frame(Code.SUCCESS, offset="0")
    assert [start.read_from for start in starts_of(link, MadeUpLink()).find([HERE], {}).assignments] == [0]


def test_messages_are_asked_for_within_the_room() -> None:
    """Of 256 queues each may answer with 4 MiB: only so many are asked at the same time, and all have their start."""
    link = MadeUpLink(answers=answering(20, 30, message(19, 64)))
    tps = [HERE._replace(partition=number) for number in range(256)]
    known = dict.fromkeys(tps, known_with(QueueMark(19, 64, 1_700_000_000_001)))
    found = starts_of(link, MadeUpLink()).find(tps, known)
    assert [one.read_from for one in found.assignments] == [20] * 256
    assert link.most_at_once[11] == 8


def test_no_message_is_asked_for_without_a_mark() -> None:
    """There is nothing to compare it with."""
    link = MadeUpLink(answers=answering(20, 30, message(0, 64)))
    assert starts_of(link, MadeUpLink()).find([HERE], {}).assignments
    assert link.most_at_once[11] == 0


class CompactedLink(MadeUpLink):
    """Compaction left one message of the queue, at offset 25, and moved it.

    Args:
        left: Its mark when it was read.
    """

    def __init__(self, left: QueueMark) -> None:
        super().__init__(answers=answering(20, 30, frame(Code.PULL_NOT_FOUND)))
        self._left = left

    def ask(self, ask: Ask, answered: Any, timeout_s: float) -> None:
        """A pull from before it on gets it."""
        if ask.code == 11:
            left = Stored(offset=self._left.offset, position=7, born_ms=self._left.stored_ms - 1)
            fields = {"minOffset": str(left.offset), "maxOffset": "30", "nextBeginOffset": str(left.offset + 1)}
            self._answers[11] = Frame(Code.SUCCESS, 0, 1, "", fields, stored(left))
        super().ask(ask, answered, timeout_s)


@pytest.mark.parametrize(
    "marks", [[19], [19, 18], [25, 19]], ids=["the last is removed", "all are removed", "the last is left, elsewhere"]
)
def test_compaction_makes_no_queue_another_one(marks: list[int]) -> None:
    """Though the message read last is removed, or elsewhere in the log: reading goes on behind what was settled."""
    told: list[str] = []
    of_queue = [QueueMark(offset, 640 + offset, 1_700_000_000_000 + offset) for offset in marks]
    link = CompactedLink(QueueMark(25, 665, 1_700_000_000_025))
    starts = starts_of(link, MadeUpLink(), tell=lambda event, *_: told.append(event))
    found = starts.find([HERE], {HERE: known_with(*of_queue)})
    assert [(one.read_from, one.continues) for one in found.assignments] == [(20, True)]
    assert (found.marks, told) == ({HERE: tuple(of_queue)}, [])


def test_several_doubted_queues_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is named, and the others are counted."""
    starts, _ = begun_at(7, 20)
    until_s, offset = starts._doubts[HERE]
    assert " more" not in starts.doubt()
    monkeypatch.setattr(starts, "_doubts", {HERE._replace(partition=n): (until_s, offset) for n in range(3)})
    assert starts.doubt().startswith(f"{HERE._replace(partition=0)} and 2 more: ")
