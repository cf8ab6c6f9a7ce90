"""The listener and the notebooks of `examples`, on real Spark and Kafka."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from sidecar.spark import listen, read_kafka_stream
from tests.support.jars import ROOT
from tests.support.kafka import Broker, MakeTopic, produce
from tests.support.landing import batch, writer
from tests.support.process import http_get, wait_until
from tests.support.produce import Outgoing
from tests.support.spark.examples import example

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTEBOOKS = ROOT / "examples" / "notebooks"
WAIT_S = 30.0


def run(spark: SparkSession, name: str, **values: str) -> dict[str, Any]:
    """Run the cells of a notebook with these parameters; return its names.

    The session is that of the tests: `getOrCreate` gives it back, whatever a notebook asks for. Between two cells Spark
    tells its listeners what it did, as it would while a person reads.
    """
    context: Any = spark.sparkContext._jsc.sc()
    notebook: Any = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    names: dict[str, Any] = {}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert (cell.outputs, cell.execution_count) == ([], None), "outputs are cleared in git"
        exec(compile(ast.parse(cell.source), f"{name}, {cell.id}", "exec"), names)
        context.listenerBus().waitUntilEmpty()
        if "parameters" in cell.metadata.get("tags", ()):
            assert values.keys() == names.keys() - {"__builtins__"}
            names |= values
    return names


def send(kafka: Broker, topic: str) -> None:
    """To each of two partitions: 60 ids, the first 20 of them twice; a third of the tags is wanted by nobody."""
    ids = [*range(60), *range(20)]
    tags = (b"paid", b"refunded", b"created")
    messages = [Outgoing(p, b"v", None, [("id", b"%d" % i), ("tag", tags[i % 3])]) for i in ids for p in (0, 1)]
    produce(kafka.bootstrap, topic, messages)


def told(text: str) -> dict[tuple[str, str], float]:
    """The samples of a query by metric and partition."""
    found = re.findall(r'^(\w+)\{partition="(\d)",query="orders",topic="[^"]+"\} (\S+)$', text, flags=re.MULTILINE)
    return {(name, partition): float(value) for name, partition, value in found}


BOOKS = {"consumed": 80, "filtered": 26, "duplicate": 14, "delivered": 40}
"""Of each partition, once `send` was called."""


def test_the_notebook_about_kafka(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has each id once; the listener tells consumed, filtered, duplicate and delivered messages exactly."""
    topic = make_topic(2)
    send(kafka, topic)
    names = run(spark, "kafka", broker=kafka.bootstrap, topic=topic, lake=str(tmp_path))
    rows = spark.read.parquet(str(tmp_path / "orders")).collect()
    assert (len(rows), {row["tag"] for row in rows}) == (80, {"paid", "refunded"})
    samples = told(capsys.readouterr().out)
    assert samples == {
        (f"sidecar_messages_{name}_total", partition): count for name, count in BOOKS.items() for partition in "01"
    }
    assert http_get(f"{names['listener'].url}/livez")[0] == 0, "it is closed"


def test_the_notebook_about_a_zone(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows the groups of the zone, and appends the rows of one group to a table."""
    zone = writer(tmp_path / "zone")
    for at, group in enumerate(("paid", "created", "paid")):
        zone.land(batch(5 * at, 5, group))
    zone.close()
    run(spark, "zone", zone=str(tmp_path / "zone"), lake=str(tmp_path / "lake"))
    out = capsys.readouterr().out
    assert "|   paid|   10|" in out
    assert "|2023-11-14|   10|" in out


def test_the_listener_of_the_document(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The example in docs/spark.md; a range that is read twice counts once; a failed query is told and can return."""
    topic = make_topic(2)
    send(kafka, topic)
    values = {
        "localhost:9092": kafka.bootstrap, '["orders"]': f'["{topic}"]', "127.0.0.1:9464": "127.0.0.1:0",
        "/mnt/shared/orders": str(tmp_path),
    }  # fmt: skip
    names: dict[str, Any] = {"spark": spark}
    example("### Metrics of your queries")(values, names)
    listener, frame = names["listener"], names["orders"]
    try:
        names["query"].processAllAvailable()

        def metrics() -> str:
            return http_get(f"{listener.url}/metrics")[1].decode()

        wait_until(lambda: ("sidecar_partition_lag", "0") in told(metrics()), WAIT_S, "the micro-batch is told")
        samples = told(metrics())
        books = {name: samples[f"sidecar_messages_{name}_total", "1"] for name in BOOKS}
        assert books == BOOKS
        assert (samples["sidecar_partition_watermark", "1"], samples["sidecar_partition_lag", "1"]) == (80, 0)
        assert 'sidecar_query_rows_total{query="orders"} 80.0' in metrics()
        assert 'sidecar_micro_batch_seconds_count{query="orders"} 1.0' in metrics()
        names["query"].stop()

        def fail(rows: DataFrame, number: int) -> None:
            assert (rows.count(), rows.count()) == (80, 80)
            raise ValueError("no such table")

        writer = frame.writeStream.queryName("orders").foreachBatch(fail)
        failing = writer.option("checkpointLocation", str(tmp_path / "again")).start()
        wait_until(lambda: failing.exception() is not None, WAIT_S, "the query fails")
        wait_until(lambda: http_get(f"{listener.url}/readyz")[0] == 503, WAIT_S, "it is told")
        assert b"query orders: ValueError: no such table" in http_get(f"{listener.url}/readyz")[1]
        again = frame.writeStream.queryName("orders").foreachBatch(lambda rows, number: rows.count() + rows.count())
        query = again.option("checkpointLocation", str(tmp_path / "again")).start()
        query.processAllAvailable()
        wait_until(lambda: told(metrics()).get(("sidecar_messages_consumed_total", "0")) == 80, WAIT_S, "it goes on")
        assert http_get(f"{listener.url}/readyz")[0] == 200
        query.stop()
    finally:
        listener.close()
    assert read_kafka_stream(spark, bootstrap_servers=kafka.bootstrap, topics=[topic]).isStreaming


def test_an_address_that_is_none(spark: SparkSession) -> None:
    """It is refused in words."""
    with pytest.raises(Exception, match=r"the address of listen, '9464', needs HOST:PORT, such as 127.0.0.1:9464"):
        listen(spark, "9464")
