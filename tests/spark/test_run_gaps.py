"""Messages that expired before a job or a query on Spark read them: it stops, or goes on and counts them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from structlog.testing import capture_logs

from sidecar.config.model import Settings
from sidecar.errors import EXIT_CONFIG, SidecarError
from sidecar.spark import read_kafka_stream
from sidecar.spark.failures import failure_of
from sidecar.spark.run.table_job import job_of
from tests.support.kafka import Broker, MakeTopic, produce, unique
from tests.support.produce import Outgoing
from tests.support.receiver import Receiver
from tests.support.spark.odd_rows import without_jars
from tests.support.spark.tables import Kind, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOLD = r"\[0\] was read to 10, and its log begins at 16: 6 offsets expired before they were read"


class Job:
    """`sidecar spark run` on a topic of two partitions, in this process."""

    def __init__(self, kafka: Broker, topic: str, folder: Path, sink: dict[str, Any], **spark: Any) -> None:
        self._kafka, self._topic = kafka, topic
        self._document = {
            "source": {
                "kafka": {"bootstrap_servers": kafka.bootstrap, "group_id": unique("g"), "topics": [topic]},
            },
            "sink": sink,
            "spark": {"checkpoint": str(folder / "checkpoint"), **spark},
            "state": {"dir": str(folder / "state")},
            "admin": {"listen": "off"},
        }

    def produce(self, first: int) -> None:
        """Ten messages for each partition, with these offsets."""
        messages = [Outgoing(p, b"%d" % (first + i), None, None) for i in range(10) for p in (0, 1)]
        produce(self._kafka.bootstrap, self._topic, messages)

    def run(self, **spark: Any) -> list[Any]:
        """Take what is there; the log events."""
        document = self._document | {"spark": self._document["spark"] | spark}
        settings = Settings.model_validate(document)
        with capture_logs() as events:
            job_of(settings)(settings, lambda: False, once=True).run()
        return events


def expired(events: list[Any]) -> int:
    """The offsets that micro-batches counted."""
    return sum(event.get("expired", 0) for event in events if event["event"] == "micro_batch.delivered")


def after_a_gap(job: Job, kafka: Broker, topic: str) -> list[list[Any]]:
    """Fill, expire, refuse, go on, and once more; the log events of the last two runs."""
    job.produce(0)
    job.run()
    job.produce(10)
    kafka.delete_records(topic, {0: 16})
    with pytest.raises(SidecarError, match=TOLD) as caught:
        job.run()
    assert caught.value.exit_code == EXIT_CONFIG
    gone = job.run(on_gap="log_start")
    job.produce(20)
    return [gone, job.run(on_gap="log_start")]


WANTED = [(0, i) for i in (*range(10), *range(16, 30))] + [(1, i) for i in range(30)]


@pytest.mark.parametrize("reader", [pytest.param("client", marks=pytest.mark.proof), "connector"])
@pytest.mark.usefixtures("spark")
def test_a_receiver_gets_what_is_left(kafka: Broker, make_topic: MakeTopic, tmp_path: Path, reader: str) -> None:
    """The job stops with position and start of the log; with `log_start`, the rest arrives once and the gap counts."""
    topic = make_topic(2)
    with Receiver() as receiver:
        sink = {"http": {"url": receiver.url, "format": "envelope"}}
        first, second = after_a_gap(Job(kafka, topic, tmp_path, sink, reader=reader), kafka, topic)
        assert sorted(row[1:3] for row in receiver.rows()) == WANTED
    assert (expired(first), expired(second)) == (6, 0)
    names = [
        [event["event"] for event in events if event["event"] == "connector.not_used"] for events in (first, second)
    ]
    assert names == [["connector.not_used"] * (reader == "connector"), []]


@pytest.mark.parametrize(
    "kind", ["delta", *(pytest.param(kind, marks=pytest.mark.proof) for kind in ("deltalake", "parquet"))]
)
@pytest.mark.usefixtures("spark")
def test_a_table_gets_what_is_left(
    kafka: Broker, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """So it is with each writer, and both of its queries."""
    if kind == "deltalake":
        without_jars(monkeypatch)
    topic = make_topic(2)
    sink = {"parquet" if kind == "parquet" else "delta": {"path": str(tmp_path / "table")}}
    job = Job(kafka, topic, tmp_path, sink, table={"every": "0ms", "schema": "id bigint"})
    first, second = after_a_gap(job, kafka, topic)
    assert (expired(first), expired(second)) == (6, 0)
    aside = rows(tmp_path / "table-rejects")
    assert sorted((row["partition"], row["offset"]) for row in aside) == WANTED
    assert rows(tmp_path / "table") == []


def test_a_query_goes_on_with_what_is_left(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """With ids too: those before the gap are known behind it."""
    topic = make_topic(2)

    def run(first: int, count: int, **options: Any) -> None:
        ids = [("id", b"%d" % number) for number in range(first, first + count)]
        produce(kafka.bootstrap, topic, [Outgoing(0, b"v", None, [one]) for one in ids])
        frame = read_kafka_stream(
            spark, bootstrap_servers=kafka.bootstrap, topics=[topic], dedup={"by": {"header": "id"}},
            state=tmp_path / "ids", columns=["partition", "offset"], **options,
        )  # fmt: skip
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "table"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    run(0, 10)
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v", None, [("id", b"expired")])] * 6)
    kafka.delete_records(topic, {0: 16})
    with pytest.raises(StreamingQueryException) as caught:
        run(7, 4)
    told = failure_of(str(caught.value))
    assert told.exit_code == EXIT_CONFIG
    assert "was read to 10, and its log begins at 16" in told.cause and "the option on_gap: log_start" in told.cause
    run(11, 2, on_gap="log_start")
    found = spark.read.parquet(str(tmp_path / "table")).where("partition = 0").select("offset").collect()
    assert sorted(row["offset"] for row in found) == [*range(10), 19, 20, 21]
