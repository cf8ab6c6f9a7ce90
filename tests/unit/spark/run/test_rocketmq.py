"""How a range of RocketMQ is read in a task: of one topic from its first message to its last. The brokers are fakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from sidecar.config.model import Settings
from sidecar.core.records import Original, TopicPartition
from sidecar.errors import PositionError, UnavailableError
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage
from sidecar.sources.rocketmq.wire.requests import Subscription
from sidecar.spark.ranges import rocketmq as module
from tests.support.rocketmq_bytes import Stored, stored
from tests.support.spark.tasks import job_broker, make_settings

TP = TopicPartition("orders", 0, "a")


def settings(**source: Any) -> Settings:
    """A configuration of RocketMQ."""
    given = {"group": "g", "name_servers": "localhost:1", "topics": ["orders"], **source}
    document = make_settings("http://localhost:1/").model_dump(by_alias=True, exclude_unset=True)
    return Settings.model_validate({**document, "source": {"rocketmq": given}, "tags": {"subscribe": "paid"}})


def message(offset: int, *, packed: bool = False) -> StoredMessage:
    """A message, whose place in the commit log follows from its offset."""
    return StoredMessage(offset, b"v", b"", 5, 6, 1_000 + offset, b"hhhhpppp", 0, packed)


class Queue:
    """A queue with the messages from 2 to 9; `moved` makes it another one."""

    def __init__(self, source: Any, tp: TopicPartition) -> None:
        self.subscriptions: list[Subscription] = []

    moved = 0
    low, high = 2, 10
    silent = False
    packed: tuple[int, ...] = ()
    after: Any = None
    made: list[Queue] = []

    def pull(self, offset: int, subscription: Subscription, count: int) -> Frame:
        """The message at an offset."""
        assert count == 1
        if self.silent:
            return Frame(2, 1, 1, "", {}, b"")
        if not self.low <= offset < self.high:
            bounds = {"minOffset": str(self.low), "maxOffset": str(self.high)}
            return Frame(Code.PULL_OFFSET_MOVED, 1, 1, "", bounds, b"")
        body = stored(Stored(offset=offset, position=1_000 + offset + self.moved, born_ms=5 + self.moved))
        return Frame(Code.SUCCESS, 1, 1, "", {}, body)

    def messages(self, subscription: Subscription, start: int, end: int) -> Iterator[list[StoredMessage]]:
        """Those of a range, two at a time."""
        self.subscriptions.append(subscription)
        Queue.made.append(self)
        for first in range(max(start, self.low), min(end, self.high), 2):
            yield [message(offset, packed=offset in self.packed) for offset in range(first, min(end, first + 2))]
        if Queue.after is not None:
            Queue.after()

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Reads a range, and gives its offsets."""
    monkeypatch.setattr(module, "QueueReader", Queue)
    for name in ("moved", "silent", "low", "high", "after", "packed"):
        monkeypatch.setattr(Queue, name, getattr(Queue, name))
    monkeypatch.setattr(Queue, "made", [])

    def read(start: int, end: int, tp: TopicPartition = TP, **source: Any) -> list[int]:
        found = job_broker(settings(**source)).read(tmp_path, tp, start, end)
        assert found.told is None and found.lane is None
        return [each.offset for run in found.runs for each in run.messages]

    return read


def test_a_range_is_read_and_its_last_message_noted(read: Any, tmp_path: Path) -> None:
    """The next range is of the same topic if that message still stands."""
    assert read(2, 6) == [2, 3, 4, 5]
    path = tmp_path / "marks" / "orders-a:0"
    assert orjson.loads(path.read_bytes())[:2] == [5, 1_005]
    assert read(6, 10) == [6, 7, 8, 9]
    assert orjson.loads(path.read_bytes())[0] == 9


def test_a_topic_that_was_created_again_is_refused(read: Any) -> None:
    """LogExtent two ranges, and while one is being read: nothing of it counts then."""
    read(2, 6)
    Queue.moved = 500
    with pytest.raises(PositionError, match="the topic orders was deleted and created again"):
        read(6, 10)
    Queue.moved = 0
    Queue.after = lambda: setattr(Queue, "moved", 500)
    with pytest.raises(PositionError, match="belong to what was there before"):
        read(6, 10)


def test_a_queue_that_lost_its_end_is_refused(read: Any) -> None:
    """The message of before is behind its end."""
    read(2, 10)
    Queue.high = 5
    with pytest.raises(PositionError, match="lost messages"):
        read(10, 12)


def test_messages_that_expired_are_no_other_topic(read: Any) -> None:
    """The first range has no message of before to look for, and a later one may have lost it to time."""
    assert read(0, 4) == [2, 3]
    Queue.low = 6
    assert read(4, 10) == [6, 7, 8, 9]


def test_a_broker_that_does_not_say_is_asked_again_later(read: Any) -> None:
    """The queue may be another one by now."""
    read(2, 6)
    Queue.silent = True
    with pytest.raises(UnavailableError, match="@5 cannot be read again"):
        read(6, 10)


def test_brokers_filter_where_they_can(read: Any) -> None:
    """By tags, or by SQL; what was handed back was wanted then, and is filtered here."""
    read(2, 4)
    read(2, 4, sql="a > 1", tp=TP._replace(topic="orders"))
    read(2, 4, tp=TP._replace(topic="%RETRY%g"))
    assert [queue.subscriptions[0] for queue in Queue.made] == [
        Subscription("orders", "paid"), Subscription("orders", "a > 1", "SQL92"), Subscription("%RETRY%g")
    ]  # fmt: skip


def test_bodies_that_cannot_be_unpacked_are_told(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one; they are delivered as they are."""
    told: list[int] = []
    monkeypatch.setattr(module, "log", SimpleNamespace(warning=lambda event, **fields: told.append(fields["offset"])))
    Queue.packed = (3, 5)
    assert read(2, 6) == [2, 3, 4, 5]
    assert told == [3, 5]


class Inquiry:
    """Brokers that are asked in a block."""

    joined: list[str] = []
    opened = closed = 0
    fails = False

    def __init__(self, source: Any, **more: Any) -> None:
        self.more = more
        self.network = self.routes = SimpleNamespace(cluster="c", brokers=dict)
        self.asks = SimpleNamespace(wire=lambda name: f"ns%{name}")

    def __enter__(self) -> Inquiry:
        Inquiry.opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        Inquiry.closed += 1

    def members(self) -> list[str]:
        """Of the group."""
        return self.joined

    def fetcher(self) -> Any:
        """What reads single messages."""

        def answer(tp: TopicPartition, offset: int, *more: Any) -> Any:
            if Inquiry.fails:
                raise UnavailableError("the broker restarts")
            return Original(b"k", b"v", [], offset)

        return SimpleNamespace(fetch=answer, message=answer, send_back=answer, close=lambda: None)


@pytest.fixture
def inquiry(monkeypatch: pytest.MonkeyPatch) -> type[Inquiry]:
    """In the place of the real one."""
    monkeypatch.setattr(module, "Inquiry", Inquiry)
    for name in ("joined", "opened", "closed", "fails"):
        monkeypatch.setattr(Inquiry, name, getattr(Inquiry, name))
    return Inquiry


def test_a_group_with_members_is_refused(inquiry: type[Inquiry], tmp_path: Path) -> None:
    """A daemon would deliver everything too."""
    source = job_broker(settings())
    source.refuse_members()
    inquiry.joined = ["c1", "c2"]
    with pytest.raises(UnavailableError, match="the consumer group g has 2 members"):
        source.refuse_members()
    assert (source.await_cluster(), source.claim("c", tmp_path, "orders")) == ("ns%c", "orders")


def test_a_filter_in_sql_is_checked_at_the_start(inquiry: type[Inquiry], monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers may not be able to, which no wait mends."""
    checked: list[Subscription] = []
    monkeypatch.setattr(inquiry, "check_filter", lambda _, links, filter_: checked.append(filter_), raising=False)
    job_broker(settings()).await_cluster()
    job_broker(settings(sql="a > 1")).await_cluster()
    assert checked == [Subscription("orders", "a > 1", "SQL92")]


def test_single_messages_are_read_by_one_client_until_it_fails(inquiry: type[Inquiry]) -> None:
    """A broker that is back may have another address, so it is asked for again."""
    with ExitStack() as stack:
        _, message_at = job_broker(settings()).single(stack)
        assert inquiry.opened == 0
        for _ in range(2):
            assert message_at(TP, 7) == Original(b"k", b"v", [], 7)
        assert (inquiry.opened, inquiry.closed) == (1, 0)
        inquiry.fails = True
        with pytest.raises(UnavailableError, match="the broker restarts"):
            message_at(TP, 7)
        assert inquiry.closed == 1
        inquiry.fails = False
        message_at(TP, 7)
        assert inquiry.opened == 2
    assert inquiry.closed == 2
