"""What a task leaves behind in the process that runs the next one. No Spark runs, and no broker."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.spark import workers
from sidecar.spark.query.options import parse_options
from sidecar.spark.query.task import read_span
from sidecar.spark.ranges.walk import Span
from sidecar.spark.run import task
from sidecar.spark.run.plan import RunPlan
from sidecar.spark.run.range_source import RangePlan, RangePlanner, job_walk
from sidecar.spark.run.writer import RangeWriter, RowReader
from sidecar.spark.source.datasource import ZoneReader
from sidecar.spark.source.options import parse
from tests.support.spark.tasks import plan_of

RANGE = InputPartition(Span(TopicPartition("orders", 0), "", 0, 1))
KAFKA = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["orders"]}


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is excluded from garbage collection before the test, and after it."""
    monkeypatch.setattr(workers, "_frozen", 0)
    monkeypatch.setattr(task, "opened", lambda *_: None)  # there is no broker
    monkeypatch.setattr(task, "rows_of", lambda *_: iter(()))
    context = SimpleNamespace(getLocalProperty=lambda _: "0")
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    gc.unfreeze()
    yield
    gc.unfreeze()


def job(folder: Path) -> RunPlan:
    """A job that reads a topic."""
    document = {"source": {"kafka": KAFKA}, "sink": {"parquet": {"path": "/t"}}, "state": {"dir": "state"}}
    return plan_of(Settings.model_validate(document), folder, query="table")


def plan_range(folder: Path) -> None:
    """A task that passes a range on."""
    planner = RangePlanner(RangePlan(job_walk(job(folder).broker, 1), folder, None))
    assert len(list(planner.read(RANGE))) == 1


def fill_table(folder: Path) -> None:
    """A task of a table."""
    reader = RowReader(RangePlan(job_walk(job(folder).broker, 1), folder, None), job(folder))
    assert list(reader.read(RANGE)) == []


def send_requests(folder: Path) -> None:
    """A task that sends requests."""
    assert RangeWriter(job(folder)).write(iter(())).outcome is None


def read_kafka(folder: Path) -> None:
    """A task of a query on Kafka."""
    query = parse_options("kafka", {"bootstrap_servers": "localhost:1", "topics": "orders"}, stream=None)
    assert list(read_span(query, Span(TopicPartition("orders", 0), "", 0, 0, is_first=True))) == []


def read_zone(folder: Path) -> None:
    """A task of a query on a landing zone."""
    assert list(ZoneReader(parse({"path": str(folder)}, stream=False)).read(InputPartition(()))) == []


@pytest.mark.parametrize("run", [plan_range, fill_table, send_requests, read_kafka, read_zone])
def test_a_task_excludes_its_modules_from_garbage_collection(run: Callable[[Path], None], tmp_path: Path) -> None:
    """Spark collects garbage after each task, which would take longer than a small range."""
    run(tmp_path)
    assert gc.get_freeze_count() > 10_000


def test_what_later_tasks_make_is_collected(tmp_path: Path) -> None:
    """Only new modules are a reason to exclude more, so garbage of tasks does not pile up."""
    plan_range(tmp_path)
    before = gc.get_freeze_count()
    kept = [[i] for i in range(1_000)]
    plan_range(tmp_path)
    assert gc.get_freeze_count() <= before
    assert len(kept) == 1_000
