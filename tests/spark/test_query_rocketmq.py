"""`read_rocketmq` in a query of one's own, on a real node: plans and tasks without Spark, then a stream on Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from sidecar.core.records import TopicPartition
from sidecar.errors import PositionError, UnavailableError
from sidecar.spark import read_rocketmq, read_rocketmq_stream
from sidecar.spark.query import task
from sidecar.spark.query.options import parse_options
from sidecar.spark.query.source import QueryStreamReader
from sidecar.spark.ranges import broker
from sidecar.spark.ranges.walk import Span
from tests.support.kafka import unique
from tests.support.rocketmq import BROKER, Message, Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = 2
Row = dict[str, Any]


@pytest.fixture
def orders(rocketmq: Node) -> str:
    """A topic of two queues."""
    return rocketmq.create_topic(unique("orders"), QUEUES)


def send(node: Node, topic: str, ids: range, *, compress: str = "") -> dict[tuple[int, int], bytes]:
    """A message of each id in each queue, with one of three tags; gives the body by queue and offset back."""
    messages = [
        Message(b"v%d" % i, "abc"[i % 3], f"k{i}", queue, {"id": str(i)}, compress)
        for i in ids
        for queue in range(QUEUES)
    ]
    return dict(zip(node.send(topic, messages, queues=QUEUES), (one.body for one in messages), strict=True))


class Query:
    """Plans and reads as Spark does, one micro-batch after the other.

    Args:
        node: The node.
        topic: What is read.
        options: More options.
    """

    def __init__(self, node: Node, topic: str, **options: str) -> None:
        given = {"name_servers": node.name_server, "topics": topic}
        names = {name.replace("__", "."): text for name, text in options.items()}
        self.query = parse_options("rocketmq", given | names, stream=True)
        self.reader = QueryStreamReader(self.query)
        self.at = self._logged(self.reader.initialOffset())
        self.most = 1_000_000

    def _logged(self, offsets: Any) -> Any:
        return json.loads(json.dumps(offsets))

    def next(self) -> list[Row]:
        """The rows of the next micro-batch, which is read twice."""
        end = self._logged(self.reader.latestOffset(self.at, ReadMaxRows(self.most)))
        rows, again = ([*self._rows(end)] for _ in range(2))
        assert rows == again
        self.at = end
        return rows

    def _rows(self, end: Any) -> Iterator[Row]:
        for partition in self.reader.partitions(self.at, end):
            for batch in task.read_span(self.query, partition.value):
                yield from batch.to_pylist()


def ids_of(rows: list[Row]) -> list[tuple[int, bytes]]:
    """Queue and body, in order."""
    return sorted((row["partition"], row["value"]) for row in rows)


def bodies(ids: list[int]) -> list[tuple[int, bytes]]:
    """Of messages with these ids, in each queue."""
    return sorted((queue, b"v%d" % i) for i in ids for queue in range(QUEUES))


def test_micro_batches_of_queues(rocketmq: Node, orders: str, tmp_path: Path) -> None:
    """Tags by the broker's filter, ids over ranges, all columns; compressed bodies are unpacked."""
    there = send(rocketmq, orders, range(300), compress="lz4")
    query = Query(rocketmq, orders, tags__subscribe="a || b", dedup__by__header="id", state=str(tmp_path))
    query.most = 200
    rows = [row for _ in range(3) for row in query.next()]
    assert ids_of(rows) == bodies([i for i in range(300) if i % 3 < 2])
    one = next(row for row in rows if row["value"] == b"v4")
    assert (one["topic"], one["broker"], one["key"], one["tag"], one["group"]) == (orders, BROKER, b"k4", "b", "b")
    assert there[one["partition"], one["offset"]] == b"v4"
    assert ("id", b"4") in [(pair["key"], pair["value"]) for pair in one["headers"]]
    assert query.next() == []
    send(rocketmq, orders, range(280, 310))
    assert ids_of(query.next()) == bodies([i for i in range(300, 310) if i % 3 < 2])
    query.reader.stop()


def test_ids_of_a_first_micro_batch_that_no_task_reads(rocketmq: Node, orders: str, tmp_path: Path) -> None:
    """The next one reads its ranges for their ids."""
    send(rocketmq, orders, range(10))
    query = Query(rocketmq, orders, dedup__by__header="id", state=str(tmp_path))
    end = query._logged(query.reader.latestOffset(query.at, ReadMaxRows(query.most)))
    assert len(query.reader.partitions(query.at, end)) == QUEUES
    query.at = end
    send(rocketmq, orders, range(5, 15))
    assert ids_of(query.next()) == bodies([*range(10, 15)])
    query.reader.stop()


def test_a_start_in_between(rocketmq: Node, orders: str) -> None:
    """At a moment, or with what comes from now on."""
    send(rocketmq, orders, range(10))
    latest = Query(rocketmq, orders, start="latest")
    time.sleep(0.01)  # a start has milliseconds
    now = datetime.now(UTC).isoformat()
    send(rocketmq, orders, range(10, 20))
    for query in (latest, Query(rocketmq, orders, start=now)):
        assert ids_of(query.next()) == bodies([*range(10, 20)])
        query.reader.stop()


def test_what_is_lost_is_told(rocketmq: Node, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was created again or deleted, and a range that the broker does not have."""
    monkeypatch.setattr(broker, "PATIENCE_S", 0.0)
    send(rocketmq, orders, range(10))
    query = Query(rocketmq, orders)
    assert len(query.next()) == 20
    beyond = Span(TopicPartition(orders, 0, BROKER), "", 5, 20, is_first=True)
    with pytest.raises(UnavailableError, match=r":0\]@10 cannot be read: the broker has it no more, or not yet"):
        list(task.read_span(query.query, beyond))
    rocketmq.delete_topic(orders)
    rocketmq.create_topic(orders, QUEUES)
    with pytest.raises(PositionError, match=r"ends at 0 and was read to 10: it was created again.*another checkpoint"):
        query.next()
    query.reader.stop()
    rocketmq.delete_topic(orders)
    with pytest.raises(UnavailableError, match="do not know the topic"):
        Query(rocketmq, orders, start_timeout="200ms")


def test_a_query_on_spark(spark: SparkSession, rocketmq: Node, orders: str, tmp_path: Path) -> None:
    """A stream with ids over a restart, and a batch read."""
    got: list[tuple[int, bytes]] = []

    def run() -> None:
        frame = read_rocketmq_stream(
            spark,
            name_servers=rocketmq.name_server,
            topics=[orders],
            dedup={"by": {"header": "id"}},
            columns=["partition", "value"],
            state=tmp_path / "ids",
            max_offsets=100,
        )

        def take(batch: DataFrame, number: int) -> None:
            got.extend((row["partition"], bytes(row["value"])) for row in batch.collect())

        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()

    send(rocketmq, orders, range(100))
    run()
    assert sorted(got) == bodies([*range(100)])
    send(rocketmq, orders, range(50, 120))
    run()
    assert sorted(got) == bodies([*range(120)])
    frame = read_rocketmq(spark, name_servers=rocketmq.name_server, topics=[orders], tags={"subscribe": "c"})
    assert frame.columns[:4] == ["topic", "broker", "partition", "offset"]
    assert frame.count() == QUEUES * (33 + 24)
