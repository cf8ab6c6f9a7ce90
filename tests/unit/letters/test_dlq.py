"""Dead letters in a group's topic of RocketMQ: how its queues are read. The brokers are fakes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.config.model import Settings
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.letters import places as module
from sidecar.letters.places import ID_BASE, REASON, DeadLetterQueues
from sidecar.runtime.dead_letters import opened
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from tests.support.rocketmq_bytes import Stored, stored
from tests.support.spark.tasks import make_settings

TOPIC = "%DLQ%g"


def message(offset: int, **properties: str) -> bytes:
    """A message as the broker copied it."""
    given = {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "m1", "TAGS": "paid", **properties}
    pairs = [(name, value.encode()) for name, value in given.items() if value]
    return stored(Stored(topic=TOPIC, offset=offset, body=b"v", properties=pairs))


class Inquiry:
    """Brokers with these answers to pulls, by broker."""

    queues_there = [TopicPartition(TOPIC, 0, "a"), TopicPartition("orders", 0, "a"), TopicPartition(TOPIC, 0, "b")]
    low, high = 2, 5
    pulls: dict[str, list[Frame]] = {}
    asked: list[tuple[str, int]] = []

    def __init__(self, source: RocketMqSettings, beside: Sequence[str] = ()) -> None:
        assert list(beside) == [TOPIC]
        self.asks = SimpleNamespace(
            low=lambda tp: "low", high=lambda tp: "high", pull=lambda tp, start, _: start, plain=lambda topic: topic
        )

    def __enter__(self) -> Inquiry:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def queues(self) -> list[TopicPartition]:
        """All that are there."""
        return self.queues_there

    def answers(self, asks: Sequence[tuple[str, Any]], also: Collection[int] = ()) -> list[Frame]:
        """Ends, or the next answer to a pull."""
        return [self._answer(broker, ask) for broker, ask in asks]

    def _answer(self, broker: str, ask: Any) -> Frame:
        if isinstance(ask, str):
            return Frame(0, 1, 1, "", {"offset": str(self.low if ask == "low" else self.high)}, b"")
        self.asked.append((broker, ask))
        return self.pulls[broker].pop(0)


def answer(next_offset: int | None, *messages: bytes, code: int = Code.SUCCESS) -> Frame:
    """An answer to a pull."""
    fields = {} if next_offset is None else {"nextBeginOffset": str(next_offset)}
    return Frame(code, 1, 1, "", fields, b"".join(messages))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads the topic at brokers with these answers."""
    monkeypatch.setattr(module, "Inquiry", Inquiry)
    monkeypatch.setattr(Inquiry, "asked", [])

    def read(*, a: Sequence[Frame] = (), b: Sequence[Frame] = ()) -> DeadLetterQueues:
        end = [answer(5, code=Code.PULL_NOT_FOUND)]
        monkeypatch.setattr(Inquiry, "pulls", {"a": [*a] or end, "b": [*b] or end})
        given = {"group": "g", "name_servers": "localhost:1", "topics": ["orders"]}
        document = make_settings("http://localhost:1/").model_dump(by_alias=True, exclude_unset=True)
        settings = Settings.model_validate({**document, "source": {"rocketmq": given}, "tags": {}})
        assert settings.source.rocketmq is not None
        return DeadLetterQueues(settings, settings.source.rocketmq, stack)

    with ExitStack() as stack:
        yield read


def offsets(topic: DeadLetterQueues, after: int = 0) -> list[tuple[str, int]]:
    """Broker and offset of each letter."""
    return [(each.letter.broker, each.letter.offset) for each in topic.records(after)]


def test_a_letter_is_the_message_as_it_was_copied(read: Any) -> None:
    """It is known by the topic and the message of before."""
    (record,) = read(a=[answer(5, message(3))]).records()
    one = record.letter
    assert (one.topic, one.broker, one.offset, one.reason, one.status) == (TOPIC, "a", 3, REASON, None)
    assert (record.topic, one.group_name) == ("orders", "paid")
    assert opened(one.envelope or b"").value == b"v"
    assert one.id // ID_BASE == 3


def test_queues_are_read_from_end_to_end(read: Any) -> None:
    """An answer may have messages outside of what is asked for; the next pull is where the broker says."""
    topic = read(
        a=[
            answer(3, message(1), message(2)), answer(4, code=Code.PULL_RETRY_IMMEDIATELY),
            answer(9, message(4), message(5)),
        ],
        b=[answer(5, message(2), message(3), message(4))],
    )  # fmt: skip
    assert sorted(offsets(topic)) == [("a", 2), ("a", 4), ("b", 2), ("b", 3), ("b", 4)]
    assert sorted(Inquiry.asked) == [("a", 2), ("a", 3), ("a", 4), ("b", 2)]


@pytest.mark.parametrize("stuck", [2, 0])
def test_a_broker_that_does_not_go_on_is_not_asked_for_ever(read: Any, stuck: int) -> None:
    """Each pull is behind the one before, whatever it says."""
    topic = read(a=[answer(stuck, message(2)), answer(stuck, message(3)), answer(stuck, message(4))])
    assert [each for each in offsets(topic) if each[0] == "a"] == [("a", 2), ("a", 3), ("a", 4)]


@pytest.mark.parametrize("bad", [answer(None), answer(5, b"\x00\x00\x00\x09garbage")])
def test_an_answer_that_cannot_be_read_is_told(read: Any, bad: Frame) -> None:
    """With its place."""
    with pytest.raises(UnavailableError, match="@2 cannot be read"):
        offsets(read(a=[bad], b=[answer(5)]))


def test_copies_of_a_message_have_one_origin(read: Any) -> None:
    """In whichever queue they are; another message has another one, though its bytes are the same."""
    copies = [message(2), message(3), message(4, DLQ_ORIGIN_MESSAGE_ID="", ORIGIN_MESSAGE_ID="m2")]
    one, two, other = (record.origin for record in read(a=[answer(5, *copies)]).records())
    assert one == two != other


def test_a_message_of_another_topic_has_that(read: Any) -> None:
    """The one that it was retried from goes before."""
    (record,) = read(a=[answer(5, message(2, RETRY_TOPIC="bills"))]).records()
    assert record.topic == "bills"
    (bare,) = read(a=[answer(5, message(2, DLQ_ORIGIN_TOPIC=""))]).records()
    assert bare.topic == ""


def test_numbers_of_queues_stay(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a broker is added, ids of letters are the same; two queues never have one number."""
    before = {each.letter.broker: each.letter.id for each in read(a=[answer(5, message(2))]).records()}
    more = [TopicPartition(TOPIC, 0, name) for name in "0abz"]
    monkeypatch.setattr(Inquiry, "queues_there", more)
    monkeypatch.setattr(Inquiry, "pulls", {})
    numbered = module._numbered(more)
    assert {tp: number for number, tp in numbered.items()}[more[1]] == before["a"] % ID_BASE
    monkeypatch.setattr(module, "ID_BASE", 4)
    assert sorted(module._numbered(more)) == [0, 1, 2, 3]
