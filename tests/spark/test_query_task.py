"""Ranges of a query as tasks read them: tags, ids, windows of ids between ranges. A real broker, no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.books import Books
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError, UnavailableError
from sidecar.runtime.lane import is_built
from sidecar.spark.query.options import Query, parse_options
from sidecar.spark.query.task import begin_ids, read_span
from sidecar.spark.ranges import rows as columns_module
from sidecar.spark.ranges.walk import Span
from tests.support.kafka import Broker, produce, produce_transaction
from tests.support.produce import Outgoing

TOTAL = 3_000
Row = dict[str, Any]


def offsets(found: list[Row]) -> list[int]:
    """Of these rows."""
    return [row["offset"] for row in found]


@pytest.fixture(params=["on", "off"])
def lane(request: pytest.FixtureRequest) -> str:
    """Both ways to read."""
    if request.param == "on" and not is_built():
        pytest.skip("the fast lane was not compiled")
    return str(request.param)


class Reader:
    """Reads ranges of one partition, as the tasks of one query."""

    def __init__(self, broker: Broker, topic: str, folder: Path, *, lane: str = "off", **options: str) -> None:
        given = {"bootstrap_servers": broker.bootstrap, "topics": topic, "state": str(folder), "lane": lane}
        names = {name.replace("__", "."): text for name, text in options.items()}
        self.query: Query = parse_options("kafka", given | names, stream=True)
        self.tp = TopicPartition(topic, 0)
        self.told: list[Books] = []
        """What became of the messages of each range that was read to its end."""

    def batches(self, start: int, end: int) -> Iterator[Any]:
        """A range as a task has it."""
        span = Span(self.tp, "", start, end, is_first=start == 0, query="query")
        begin_ids(self.query, [span])  # as the driver does
        return read_span(self.query, span, self.told.append)

    def read(self, start: int, end: int) -> list[Row]:
        """All rows of a range."""
        return [row for batch in self.batches(start, end) for row in batch.to_pylist()]


@pytest.fixture
def filled(kafka: Broker, topic: str) -> str:
    """A topic whose ids come twice, far apart or close, with one of three tags; every 9th has no id."""
    messages = []
    for i in range(TOTAL):
        key = None if i % 9 == 0 else b"k%d" % (i % 1_000)
        messages.append(Outgoing(0, b'{"id": %d}' % (i % 1_000), key, [("tag", b"abc"[i % 3 : i % 3 + 1])]))
    produce(kafka.bootstrap, topic, messages)
    return topic


def expected(subscribe: str = "abc") -> list[int]:
    """The offsets of wanted messages whose id was not seen before: a tag is looked at first."""
    seen: set[int] = set()
    found = []
    for i in range(TOTAL):
        if "abc"[i % 3] not in subscribe:
            continue
        if i % 9 == 0 or i % 1_000 not in seen:
            found.append(i)
        if i % 9:
            seen.add(i % 1_000)
    return found


@pytest.mark.parametrize("subscribe", ["a || b || c", "b"])
def test_ids_are_known_from_range_to_range(
    kafka: Broker, filled: str, tmp_path: Path, subscribe: str, lane: str
) -> None:
    """Ranges that end anywhere, each read twice as after a kill, give each wanted id once, and count all messages."""
    tags = {"tags__from__header": "tag", "tags__subscribe": subscribe}
    reader = Reader(kafka, filled, tmp_path, lane=lane, dedup__by="key", **tags)
    found: list[int] = []
    borders = [0, 1, 700, 701, 1_000, 1_600, 2_999, TOTAL]
    for start, end in pairwise(borders):
        rows = reader.read(start, end)
        assert reader.read(start, end) == rows
        found += offsets(rows)
    assert found == expected(subscribe)
    assert reader.told[::2] == reader.told[1::2]
    total, filtered = Books(), 0 if subscribe != "b" else TOTAL * 2 // 3
    for books in reader.told[::2]:
        total += books
    duplicate = TOTAL - filtered - len(found)
    assert total == Books(TOTAL, delivered=len(found), duplicate=duplicate, filtered=filtered)


def test_a_range_that_is_not_read_to_its_end_is_read_again_for_its_ids(
    kafka: Broker, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query with `limit` closes a task early: later ranges know the ids all the same, and read them again once."""
    monkeypatch.setattr(columns_module, "ROWS_MAX", 100)
    reader = Reader(kafka, filled, tmp_path, dedup__by__json="$.id")
    batches = reader.batches(0, 200)
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]
    assert len(reader.read(200, 500)) == 300
    assert [books.consumed for books in reader.told] == [300], "what is read again for its ids does not count"
    for start, end in ((500, 700), (700, 800), (800, 1_000)):
        batches = reader.batches(start, end)
        assert next(batches).num_rows
        batches.close()  # type: ignore[attr-defined]
    kafka.delete_records(filled, {0: 800})  # what was read again once is not needed any more
    for _ in range(2):  # as after a kill
        assert offsets(reader.read(1_000, 1_900)) == []
    assert offsets(reader.read(1_900, 2_100)) == []


def test_ids_that_are_missing_are_told(kafka: Broker, filled: str, tmp_path: Path) -> None:
    """A query whose folder is another one, or that has other ids than before, ends and lets no duplicate through."""
    Reader(kafka, filled, tmp_path / "a", dedup__by="key").read(0, 900)
    for folder, by in (("b", "key"), ("a", "{json: $.id}")):
        options = {"dedup__by": by} if by == "key" else {"dedup__by__json": "$.id"}
        with pytest.raises(StateError, match=r"\[0\]: no message ids of earlier micro-batches.*another checkpoint"):
            Reader(kafka, filled, tmp_path / folder, **options).read(900, 1_000)


def test_an_older_copy_of_the_checkpoint_is_told(kafka: Broker, filled: str, tmp_path: Path) -> None:
    """The ids before a range are removed once no replay needs them."""
    reader = Reader(kafka, filled, tmp_path, dedup__by="key")
    for start, end in pairwise([0, 100, 200, 300]):
        reader.read(start, end)
    with pytest.raises(StateError, match=r"only message ids of later micro-batches: the checkpoint is an older copy"):
        reader.read(50, 100)


def test_a_batch_read_keeps_nothing(kafka: Broker, filled: str, tmp_path: Path) -> None:
    """Duplicates are left out within its ranges."""
    given = {"bootstrap_servers": kafka.bootstrap, "topics": filled, "dedup.by": "key"}
    query = parse_options("kafka", given, stream=False)
    span = Span(TopicPartition(filled, 0), "", 0, TOTAL, is_first=True)
    found = [offset for batch in read_span(query, span) for offset in batch.column("offset").to_pylist()]
    assert found == expected()
    assert list(tmp_path.iterdir()) == []


def test_rows_have_what_the_messages_have(kafka: Broker, topic: str, tmp_path: Path, lane: str) -> None:
    """Nulls, empty and repeated headers, bytes that are no UTF-8, tags of several, gaps of aborted messages."""
    headers: list[Any] = [None, [], [("tag", b"a,b"), ("n", None)], [("tag", b"\xff"), ("tag", b"b")]]
    now_ms = int(time.time() * 1_000)
    kept = [
        Outgoing(0, None if i == 3 else b"\x00\xff%d" % i, (None, b"", b"k")[i % 3], headers[i % 4], now_ms + i)
        for i in range(8)
    ]
    produce_transaction(kafka.bootstrap, topic, kept, transactional_id=topic)
    produce_transaction(kafka.bootstrap, topic, kept[:4], transactional_id=topic, commit=False)
    reader = Reader(kafka, topic, tmp_path, lane=lane, tags__from__header="tag", tags__split=",")
    found = reader.read(0, kafka.end_offsets(topic)[0])
    assert offsets(found) == list(range(8))
    assert [row["value"] for row in found] == [message.value for message in kept]
    assert [row["key"] for row in found] == [message.key for message in kept]
    assert [round(row["timestamp"].timestamp() * 1_000) for row in found] == [now_ms + i for i in range(8)]
    assert [row["tag"] for row in found[:4]] == [None, None, "a", "percent:%FF"]
    assert [row["group"] for row in found[:4]] == ["", "", "a", "percent:%FF"]
    assert [row["headers"] for row in found[:2]] == [None, None]
    wanted = [[("tag", b"a,b"), ("n", None)], [("tag", b"\xff"), ("tag", b"b")]]
    assert [[(pair["key"], pair["value"]) for pair in row["headers"]] for row in found[2:4]] == wanted
    assert {(row["topic"], row["partition"]) for row in found} == {(topic, 0)}


def test_what_expired_unread_is_told(kafka: Broker, filled: str, tmp_path: Path, lane: str) -> None:
    """A range whose first messages are gone is an error, and not a shorter range."""
    kafka.delete_records(filled, {0: 10})
    with pytest.raises(UnavailableError, match=r"\[0\] was read to 5, and its log begins at 10"):
        Reader(kafka, filled, tmp_path, lane=lane).read(5, 20)
