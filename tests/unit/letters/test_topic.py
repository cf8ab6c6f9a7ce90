"""Dead letters in a topic: how records are read, which are chosen, and what a replay leaves out. Clients are fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from sidecar.core.batching import Limits
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.letters import places as module
from sidecar.letters.places import ID_BASE, KafkaLetterTopic, LetterTopic, TopicLetter, TopicPlace, record_of
from sidecar.letters.plan import Stream
from sidecar.runtime.broker_letters import STORY
from sidecar.runtime.dead_letters import opened
from sidecar.state.beside import Chosen, LettersBeside, Totals
from sidecar.state.store import Store
from tests.support.letters import letter
from tests.support.spark.tasks import make_settings

CREATED = ck.TIMESTAMP_CREATE_TIME


class Message:
    """A record of the topic of dead letters."""

    def __init__(
        self, offset: int, partition: int = 0, *, story: dict[str, bytes] | None = None, own: Any = (),
        value: bytes = b"v", timestamp: tuple[int, int] = (CREATED, 5), error: int | None = None,
    ) -> None:  # fmt: skip
        texts = {
            "topic": b"orders", "partition": b"3", "offset": b"7", "group": b"p%C3%A4id", "reason": b"HTTP 400",
            "status": b"400", "attempts": b"2", **(story or {}),
        }  # fmt: skip
        self._headers: Any = [*own, *((name, texts[name.removeprefix("sidecar-")]) for name in STORY)]
        self._offset, self._partition, self._value = offset, partition, value
        self._timestamp, self._error = timestamp, error

    def headers(self) -> Any:
        return self._headers

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return self._partition

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def error(self) -> Any:
        return None if self._error is None else ck.KafkaError(self._error, "it says so")


def record(message: Message) -> TopicLetter:
    """The dead letter in a record."""
    found = record_of(message)
    assert found is not None
    return found


def test_a_record_is_a_letter_with_the_message_in_it() -> None:
    """Its story is behind the headers of the message."""
    found = record(Message(2, 4, own=[("tag", b"paid")]))
    one = found.letter
    assert (one.topic, one.partition, one.offset, one.group_name) == ("orders", 3, 7, "päid")
    assert (one.reason, one.status, one.first_at_ms, one.id) == ("HTTP 400", 400, 5, 2 * ID_BASE + 4)
    assert one.envelope is not None
    message = opened(one.envelope)
    assert (message.key, message.value, message.headers, message.timestamp_ms) == (b"k", b"v", [("tag", b"paid")], 5)
    assert found.topic == "orders"


def test_what_is_not_known_of_a_message_stays_open() -> None:
    """A status of 0 is none; a record without a timestamp has none."""
    one = record(Message(2, story={"status": b"0"}, timestamp=(ck.TIMESTAMP_NOT_AVAILABLE, 0))).letter
    assert (one.status, one.first_at_ms) == (None, 0)
    assert opened(one.envelope or b"").timestamp_ms is None


def test_copies_of_one_dead_letter_have_one_origin() -> None:
    """Wherever they are in the topic, and whenever a broker wrote them; another message has another one."""
    one = record(Message(2)).origin
    assert record(Message(9, 4, story={"reason": b"HTTP 413", "attempts": b"9"}, own=[("a", b"b")])).origin == one
    others = (
        Message(2, story={"offset": b"8"}), Message(2, story={"partition": b"4"}),
        Message(2, story={"topic": b"bills"}), Message(2, value=b"w"), Message(2, timestamp=(CREATED, 6)),
    )  # fmt: skip
    assert len({one, *(record(other).origin for other in others)}) == 6
    appended = [record(Message(2, timestamp=(ck.TIMESTAMP_LOG_APPEND_TIME, at))) for at in (5, 6)]
    assert appended[0].origin == appended[1].origin


@pytest.mark.parametrize("story", [{"partition": b"x"}, {"offset": b""}, {"status": b"?"}, {"topic": b"\xff"}])
def test_a_record_of_another_program_is_none(story: dict[str, bytes]) -> None:
    """So is one without such headers."""
    assert record_of(Message(2, story=story)) is None
    bare = Message(2)
    bare._headers = None
    assert record_of(bare) is None
    bare._headers = [("sidecar-topic", b"orders")]
    assert record_of(bare) is None


class Topic(LetterTopic):
    """A topic of two partitions, whose records are in memory."""

    def __init__(self, *messages: Message) -> None:
        super().__init__("dead")
        self.messages = messages
        self._bounds = {0: (0, 10), 1: (5, 8)}
        self.read: list[tuple[int, int, int]] = []

    def _read(self, number: int, start: int, end: int) -> Iterator[TopicLetter]:
        self.read.append((number, start, end))
        for message in self.messages:
            if message.partition() == number and start <= message.offset() < end:
                yield record(message)


def place(number: int, offset: int = 0) -> dict[str, bytes]:
    """The place of a message."""
    return {"partition": b"%d" % number, "offset": b"%d" % offset}


MESSAGES = (Message(2, 0, story=place(3, 1)), Message(4, 0, story=place(3, 2)), Message(6, 1, story=place(4, 1)))


def ids(letters: Any) -> list[int]:
    """The ids of some letters."""
    return [each.id for each in letters]


@pytest.mark.parametrize(
    ("after", "read"),
    [
        (0, [(0, 0, 10), (1, 5, 8)]),
        (2 * ID_BASE, [(0, 3, 10), (1, 5, 8)]),
        (6 * ID_BASE + 1, [(1, 7, 8)]),
        (2 * ID_BASE + 1, [(1, 5, 8)]),
        (9 * ID_BASE + 2, []),
    ],
)
def test_records_follow_an_id(after: int, read: list[tuple[int, int, int]]) -> None:
    """Partition by partition, each from its own first offset."""
    topic = Topic(*MESSAGES)
    list(topic.records(after))
    assert topic.read == read


def test_records_with_ids_are_read_between_them() -> None:
    """What is in no partition of the topic, or between two of them, is not there."""
    topic = Topic(*MESSAGES)
    wanted = [4 * ID_BASE, 1 * ID_BASE, 6 * ID_BASE + 1, 2 * ID_BASE + 9]
    assert ids(each.letter for each in topic.within(wanted)) == [4 * ID_BASE, 6 * ID_BASE + 1]
    assert topic.read == [(0, 1, 5), (1, 6, 7)]
    assert list(topic.within([99 * ID_BASE])) == []


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[LettersBeside]:
    """A state file."""
    with closing(Store(tmp_path)) as store:
        store.letters.put([letter(1)])
        with closing(LettersBeside(tmp_path, lambda _: None)) as found:
            yield found


LIMITS = Limits(2, 1 << 20)
Plan = Callable[..., TopicPlace]


@pytest.fixture
def plan(beside: LettersBeside) -> Plan:
    """Makes the place of the records of a topic."""
    return lambda *messages: TopicPlace(Topic(*messages), beside)


def parts(streams: Iterator[Stream]) -> list[tuple[TopicPartition, list[tuple[int, ...]], bool]]:
    """Of each stream its partition, the letters of its parts, and whether they were sent before."""
    return [(stream.tp, [part.letters for part in stream.parts], stream.again) for stream in streams]


def test_of_copies_one_is_listed(plan: Plan) -> None:
    """The first; a limit counts letters, and a choice is by the topic of the message."""
    found = plan(*MESSAGES, Message(7, 1, story=place(3, 1)))
    assert ids(found.each(Chosen())) == [2 * ID_BASE, 4 * ID_BASE, 6 * ID_BASE + 1]
    assert ids(found.each(Chosen(), limit=2)) == [2 * ID_BASE, 4 * ID_BASE]
    assert ids(found.each(Chosen(topic="bills"))) == []
    assert ids(found.each(Chosen(ids=(4 * ID_BASE,)))) == [4 * ID_BASE]
    assert ids(found.each(Chosen(topic="orders"), after=4 * ID_BASE)) == [6 * ID_BASE + 1, 7 * ID_BASE + 1]
    first = next(iter(found.each(Chosen())))
    assert found.totals(Chosen()) == Totals(3, 3 * first.size_bytes, 6 * ID_BASE + 1)
    assert found.totals(Chosen(topic="bills")) == Totals(0, 0, 0)


def test_letters_are_replayed_by_partition(plan: Plan) -> None:
    """In the order of their offsets, within the limits of a part."""
    more = (Message(8, 0, story=place(3, 0)), Message(1, 0, story=place(4, 0)))
    found = plan(*more, *MESSAGES)
    orders = [TopicPartition("orders", number) for number in (3, 4)]
    assert sorted(parts(found.streams(Chosen(), "receiver", LIMITS))) == [
        (orders[0], [(8 * ID_BASE, 2 * ID_BASE), (4 * ID_BASE,)], False),
        (orders[1], [(1 * ID_BASE, 6 * ID_BASE + 1)], False),
    ]


def test_letters_with_one_place_are_in_streams_of_their_own(plan: Plan) -> None:
    """The topic was created again: they are different messages."""
    found = plan(*(Message(offset, 0, story=place(3, 1), value=b"%d" % offset) for offset in (2, 4, 6)))
    streams = [
        (stream.scope, [part.letters for part in stream.parts])
        for stream in found.streams(Chosen(), "receiver", LIMITS)
    ]
    assert [letters for _, letters in streams] == [[(2 * ID_BASE,)], [(4 * ID_BASE,)], [(6 * ID_BASE,)]]
    assert len({scope for scope, _ in streams}) == 3


@pytest.mark.parametrize("bound", ["CHUNK_LETTERS", "CHUNK_BYTES"])
def test_a_topic_is_read_piece_by_piece(plan: Plan, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Only a piece of it is in memory, and each letter comes once."""
    monkeypatch.setattr(module, bound, 1)
    found = plan(*MESSAGES, Message(7, 1, story=place(3, 1)))
    seen = []
    for stream in found.streams(Chosen(), "receiver", LIMITS):
        assert len(found._loaded) == 1
        seen += [part.letters for part in stream.parts]
    assert seen == [(2 * ID_BASE,), (4 * ID_BASE,), (6 * ID_BASE + 1,)]


def test_what_was_replayed_does_not_come_again(plan: Plan) -> None:
    """Nor does a copy of it; what was refused again stays."""
    found = plan(*MESSAGES[:2])
    (stream,) = found.streams(Chosen(), "receiver", LIMITS)
    (part,) = stream.parts
    fixed = found.fix(part)
    assert ids(found.load(fixed)) == [2 * ID_BASE, 4 * ID_BASE]
    found.end_part(fixed, [2 * ID_BASE], ())
    later = plan(*MESSAGES[:2], Message(7, 1, story=place(3, 1)))
    assert ids(later.each(Chosen())) == [4 * ID_BASE]
    assert [part[1] for part in parts(later.streams(Chosen(), "receiver", LIMITS))] == [[(4 * ID_BASE,)]]
    assert later.pending() == []


def test_what_an_interrupted_replay_left_comes_first(plan: Plan) -> None:
    """Under the names that it had; copies of it are left out."""
    found = plan(*MESSAGES[:2])
    (stream,) = found.streams(Chosen(), "receiver", LIMITS)
    (part,) = stream.parts
    fixed = found.fix(part)
    later = plan(*MESSAGES, Message(7, 1, story=place(3, 1)))
    first, second = parts(later.streams(Chosen(), "receiver", LIMITS))
    assert first == (fixed.tp, [fixed.letters], True)
    assert second[1:] == ([(6 * ID_BASE + 1,)], False)


def test_letters_of_a_part_are_read_again_if_they_are_not_at_hand(plan: Plan) -> None:
    """By offset; one that the topic has no more is left out."""
    found = plan(*MESSAGES[:2])
    (stream,) = found.streams(Chosen(), "receiver", LIMITS)
    (part,) = stream.parts
    later = plan(MESSAGES[1])
    assert ids(later.load(part)) == [4 * ID_BASE]


class Client:
    """A consumer of a topic with these messages in its partitions 0 and 1."""

    def __init__(self, *answers: list[Message], error: Any = None, fails: bool = False) -> None:
        self.answers, self.error, self.fails = list(answers), error, fails
        self.assigned: list[tuple[int, int]] = []

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        if self.fails:
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT, "no broker"))
        found = type("Found", (), {"error": self.error, "partitions": {1: None, 0: None}})
        return type("All", (), {"topics": {topic: found}})

    def get_watermark_offsets(self, tp: Any, timeout_s: float) -> tuple[int, int]:
        return (2, 5) if tp.partition == 0 else (4, 4)

    def assign(self, tps: Any) -> None:
        self.assigned += [(tp.partition, tp.offset) for tp in tps]

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        return self.answers.pop(0) if self.answers else []

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Client], KafkaLetterTopic]:
    """Makes the topic of a client."""
    monkeypatch.setattr(module, "TIMEOUT_S", 0.05)

    def read(client: Client) -> KafkaLetterTopic:
        monkeypatch.setattr(ck, "Consumer", lambda _: client)
        return KafkaLetterTopic(make_settings("http://localhost:1/"), "dead")

    return read


def test_a_topic_is_read_up_to_its_end_as_it_was(read: Any) -> None:
    """What is produced meanwhile is not; a partition without records is not asked."""
    client = Client([Message(2)], [], [Message(3), Message(4), Message(5)])
    topic = read(client)
    assert ids(each.letter for each in topic.records()) == [2 * ID_BASE, 3 * ID_BASE, 4 * ID_BASE]
    assert (client.assigned, topic.foreign) == ([(0, 2)], 0)


def test_records_that_are_no_dead_letters_are_counted(read: Any) -> None:
    """They are left out."""
    topic = read(Client([Message(2, story={"offset": b"x"}), Message(3), Message(4, story={"offset": b"x"})]))
    assert ids(each.letter for each in topic.records()) == [3 * ID_BASE]
    assert topic.foreign == 2


@pytest.mark.parametrize("last", [Message(4, error=ck.KafkaError._PARTITION_EOF), Message(5)])
def test_compacted_or_cut_off_records_end_the_reading_too(read: Any, last: Message) -> None:
    """The last offset may have no record."""
    assert ids(each.letter for each in read(Client([Message(2), last])).records()) == [2 * ID_BASE]


def test_a_broker_that_fails_is_told(read: Any) -> None:
    """An error of a record, silence, a topic that is not there, and no broker."""
    clients = [
        Client([Message(2, error=ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)]),
        Client([Message(2)]),
        Client(error=ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)),
        Client(fails=True),
    ]
    for client in clients:
        with pytest.raises(UnavailableError, match="the dead letters in dead cannot be read"):
            list(read(client).records())
