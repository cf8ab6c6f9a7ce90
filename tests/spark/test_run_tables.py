"""`sidecar spark run` with a table as its sink: each wanted message is a row once, whatever the table is made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, Schema
from structlog.testing import capture_logs

from sidecar.config.model import Settings
from sidecar.spark.run.table_job import job_of
from sidecar.zone.table import TABLE_SCHEMA
from tests.scenarios.exactly_once import new_topics
from tests.support.delta import batch_of, numbered, sink
from tests.support.kafka import Broker, produce
from tests.support.process import free_ports, http_get
from tests.support.produce import Outgoing
from tests.support.spark.tables import SCHEMA, Kind, config, forget_commits, rows, tally
from tests.support.workload import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(document: dict[str, Any]) -> list[Any]:
    """Take what is there; the log events."""
    settings = Settings.model_validate(document)
    with capture_logs() as events:
        job_of(settings)(settings, lambda: False, once=True).run()
    return events


def test_a_query_whose_python_process_does_not_connect_is_started_again(
    spark: SparkSession, kafka: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits 10 s for the process that plans, and ends the query; the job goes on."""
    python, seen = tmp_path / "python", tmp_path / "seen"
    fails = f'case "$*" in *python_streaming_source_runner*) mkdir {seen} 2>/dev/null && exit 1;; esac'
    python.write_text(f'#!/bin/sh\n{fails}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    produce(kafka.bootstrap, topic, [Outgoing(0, b"%d" % i) for i in range(50)])
    events = fill(config(kafka, [topic], tmp_path, "parquet") | {"tags": {}})
    assert [event["attempts_left"] for event in events if event["event"] == "query.started_again"] == [4]
    assert len(rows(tmp_path / "table")) == 50


@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.proof), "delta", "deltalake"])
def test_each_wanted_message_is_a_row_once(
    spark: SparkSession, kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Every kind of message, ids repeated over micro-batches and runs: in one of two tables, once and whole."""
    if kind == "deltalake":
        monkeypatch.setattr("sidecar.spark.table.writers.has_delta", lambda session: False)
    topics = new_topics(kafka, 1, 3)
    work = Workload(topics, 3, 4_000)
    document = config(kafka, topics, tmp_path, kind, schema=SCHEMA) | {"batch": {"span_max": 1_000}}
    events, first = list[Any](), work.some(2_000)
    for made in (first, work.some(2_000), first[:300]):  # the last ones are known
        produce(kafka.bootstrap, topics[0], [message for _, message in made])
        events += fill(document)
        forget_commits(tmp_path / "checkpoint")
    table, aside = rows(tmp_path / "table"), rows(tmp_path / "table-rejects")
    assert tally(table + aside, work.expected).exact
    assert all(row["value"] is None or row["value"].startswith(b'{"number"') for row in table)
    assert not any(row["value"] is None or row["value"].startswith(b'{"number"') for row in aside)
    assert {row["data"]["number"] for row in table if row["data"]} == {
        int(row["value"][10 : row["value"].index(b",")]) for row in table if row["value"]
    }
    assert {row["batch_id"].partition("@")[0] for row in table} == {topics[0]}
    done = [event for event in events if event["event"] == "micro_batch.delivered"]
    assert len(done) >= 5
    assert sum(event["consumed"] for event in done) == work.expected.count + 300
    assert sum(event["delivered"] for event in done) == len(table) + len(aside)
    assert sum(event["rows_rejected"] for event in done) == len(aside)
    assert not [event for event in events if event["event"] == "micro_batch.unbalanced"]


@pytest.mark.parametrize(("kind", "partitions"), [("delta", ["date"]), ("deltalake", ["group_label", "date"])])
def test_a_table_that_is_there_is_continued(
    spark: SparkSession,
    kafka: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    partitions: list[str],
) -> None:
    """A table that the daemon or another job has filled keeps its partitions and its rows, and gets the new ones."""
    if kind == "deltalake":
        monkeypatch.setattr("sidecar.spark.table.writers.has_delta", lambda session: False)
    path = tmp_path / "table"
    DeltaTable.create(path, Schema.from_arrow(TABLE_SCHEMA), partition_by=partitions)
    table = sink(path)
    table.deliver(batch_of(numbered(0)))
    table.close()
    topics = new_topics(kafka, 1, 1)
    expected = Workload(topics, 1, 100).produce(kafka.bootstrap)
    fill(config(kafka, topics, tmp_path, kind))
    found = rows(path)
    assert tally([row for row in found if row["topic"] == topics[0]], expected).exact
    assert len(found) == len(expected.first_of_each_id()) + 3
    assert DeltaTable(path).metadata().partition_columns == partitions


def test_rows_are_told_to_metrics(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """Beside the daemon's metrics there are those of the table; with no message wanted there is no row."""
    topics = new_topics(kafka, 1, 1)
    expected = Workload(topics, 1, 200).produce(kafka.bootstrap)
    document = config(kafka, topics, tmp_path, "parquet", schema=SCHEMA)
    told: list[str] = []

    def asked() -> bool:
        if port_of is not None and list((tmp_path / "checkpoint" / "table" / "commits").glob("[0-9]*")):
            told.append(http_get(f"http://127.0.0.1:{port_of}/metrics", timeout_s=10)[1].decode())
        return bool(told) and "sidecar_ingest_micro_batches_total 1.0" in told[-1]

    (port_of,) = free_ports(1)
    settings = Settings.model_validate(document | {"admin": {"listen": f"127.0.0.1:{port_of}"}})
    job_of(settings)(settings, asked).run()
    alive = len(expected.first_of_each_id())
    assert f"\nsidecar_ingest_rows_read_total {alive}.0\n" in told[-1]
    assert "sidecar_messages_filtered_total{" in told[-1]
