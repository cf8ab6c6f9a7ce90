"""`read_kafka` in a query of one's own, on real Spark and Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.spark import read_kafka, read_kafka_stream
from sidecar.spark.ranges.broker import PATIENCE_S
from tests.support.kafka import Broker, MakeTopic, produce
from tests.support.produce import Outgoing
from tests.support.spark.examples import example

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
TWICE = 400
"""Ids of each partition that come again; others come once."""


@pytest.fixture
def orders(kafka: Broker, make_topic: MakeTopic) -> str:
    """A topic whose first ids come again at the end of each partition."""
    topic = make_topic(PARTITIONS)
    send(kafka, topic, [*range(1_000), *range(TWICE)])
    return topic


def send(kafka: Broker, topic: str, ids: list[int]) -> None:
    """A message of each id in each partition, with one of two tags."""
    messages = [
        Outgoing(p, b"v", None, [("id", b"%d" % i), ("tag", b"ab"[i % 2 : i % 2 + 1])]) for i in ids for p in range(3)
    ]
    produce(kafka.bootstrap, topic, messages)


def test_a_stream_gives_each_id_once_over_restarts(
    spark: SparkSession, kafka: Broker, orders: str, tmp_path: Path
) -> None:
    """Micro-batches, a later run with messages that repeat ids of the earlier one, a `limit` that stops early."""
    got: list[tuple[int, bytes]] = []
    cut: list[int] = []

    def run() -> int:
        frame = read_kafka_stream(
            spark,
            bootstrap_servers=kafka.bootstrap,
            topics=[orders],
            dedup={"by": {"header": "id"}},
            columns=["partition", "headers"],
            state=tmp_path / "ids",
            max_offsets=900,
        )

        def take(batch: DataFrame, number: int) -> None:
            if number == 1:  # a task that is ended early stores no ids, and an action may read a range twice
                cut.append(batch.limit(1).count())
            got.extend((row["partition"], bytes(row["headers"][0]["value"])) for row in batch.collect())

        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(take).trigger(availableNow=True).start()
        query.awaitTermination()
        return len(query.recentProgress)

    assert run() >= 4
    assert cut == [1]
    once = sorted((p, b"%d" % i) for p in range(PARTITIONS) for i in range(1_000))
    assert sorted(got) == once
    send(kafka, orders, [*range(700, 1_000), 5_000])
    run()
    assert sorted(got) == sorted(once + [(p, b"5000") for p in range(PARTITIONS)])


ACTIONS: dict[str, Callable[[DataFrame], object]] = {
    "limit of cached rows": lambda batch: batch.persist().limit(1).collect(),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("action", ACTIONS)
def test_ids_are_known_whatever_of_the_first_micro_batches_is_read(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, tmp_path: Path, action: str
) -> None:
    """Tasks that were never begun or were ended early, in the first micro-batch and in a later one."""
    topic = make_topic(PARTITIONS)
    send(kafka, topic, [*range(20), *range(10, 30), *range(20, 40), *range(60)])
    frame = read_kafka_stream(
        spark,
        bootstrap_servers=kafka.bootstrap,
        topics=[topic],
        dedup={"by": {"header": "id"}},
        columns=["partition", "headers"],
        state=tmp_path / "ids",
        max_offsets=PARTITIONS * 20,
    )
    got: list[tuple[int, bytes]] = []

    def take(batch: DataFrame, number: int) -> None:
        if number in (0, 2):
            ACTIONS[action](batch)
        else:
            got.extend((row["partition"], bytes(row["headers"][0]["value"])) for row in batch.collect())

    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()
    assert sorted(got) == [(p, b"%d" % i) for p in range(PARTITIONS) for i in (*range(20, 30), *range(40, 60))]


def test_a_batch_read_has_all_that_is_there(spark: SparkSession, kafka: Broker, orders: str) -> None:
    """Tags and ids as in the daemon, all columns, and SQL on top of it; an empty topic has no rows."""
    settings: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "topics": [orders]}
    frame = read_kafka(
        spark, **settings, tags={"from": {"header": "tag"}, "subscribe": "b"}, dedup={"by": {"header": "id"}}
    )
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "tag", "group", "headers"]
    rows = frame.groupBy("partition", "tag").count().collect()
    assert {(row["partition"], row["tag"], row["count"]) for row in rows} == {(p, "b", 500) for p in range(PARTITIONS)}
    assert read_kafka(spark, **settings).count() == PARTITIONS * (1_000 + TWICE)
    assert read_kafka(spark, **settings, start="latest").count() == 0
    start, end = {orders: {0: 10, 1: "latest", 2: "earliest"}}, {orders: {0: 30, 1: "latest", 2: 5}}
    some = read_kafka(spark, **settings, start=start, end=end).groupBy("partition").count().collect()
    assert {(row["partition"], row["count"]) for row in some} == {(0, 20), (2, 5)}


def test_columns_are_those_of_the_connector(spark: SparkSession, kafka: Broker, topic: str) -> None:
    """A query may change from one to the other: nulls, empty values, no headers, and several."""
    headers: list[list[tuple[str, bytes | None]] | None] = [None, [], [("a", b"1"), ("a", None), ("b", b"")]]
    messages = [Outgoing(0, (None, b"", b"v")[i], (b"", b"k", None)[i], headers[i]) for i in range(3)]
    produce(kafka.bootstrap, topic, messages)
    names = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", topic)
    rows = theirs.option("includeHeaders", "true").load().select(*names).collect()
    assert [row["headers"] for row in rows[:2]] == [None, None]
    ours = read_kafka(spark, bootstrap_servers=kafka.bootstrap, topics=[topic], columns=names)
    assert ours.collect() == rows


def test_the_example_can_be_pasted(
    spark: SparkSession, kafka: Broker, orders: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stream and batch read of docs/spark.md; the file has the daemon's settings."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(
        f"source: {{kafka: {{bootstrap_servers: '{kafka.bootstrap}', group_id: g, topics: [{orders}]}}}}\n"
        "tags: {from: {header: tag}, subscribe: b}\nsink: {http: {url: 'http://localhost:1/'}}\n"
    )
    values = {
        "localhost:9092": kafka.bootstrap, '["orders"]': f'["{orders}"]', "paid || refunded": "a || c",
        "/mnt/shared/orders": str(tmp_path), "orders.yaml": str(file),
    }  # fmt: skip
    names: dict[str, Any] = {"spark": spark}
    example("## In a query of your own")(values, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert f"|    b| {PARTITIONS * (1_000 + TWICE) // 2}|" in capsys.readouterr().out
    rows = spark.read.parquet(str(tmp_path / "table"))
    assert rows.columns == ["timestamp", "tag", "value"]
    assert {(row["tag"], row["count"]) for row in rows.groupBy("tag").count().collect()} == {("a", PARTITIONS * 500)}


def test_a_missing_topic_is_waited_for_as_long_as_the_start_timeout_says(spark: SparkSession, kafka: Broker) -> None:
    """Spark passes the text of the error on."""
    frame = read_kafka(spark, bootstrap_servers=kafka.bootstrap, topics=["none-such"], start_timeout="1s")
    began_s = time.monotonic()
    with pytest.raises(Exception, match="does not know the topic none-such for 1 s"):
        frame.count()
    assert time.monotonic() - began_s < PATIENCE_S
