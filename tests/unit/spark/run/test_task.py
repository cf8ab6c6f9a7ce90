"""What a task of a job looks at beside its messages. No Spark runs, and no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from pyspark import TaskContext

from sidecar.core.records import Run
from sidecar.errors import PositionError
from sidecar.spark.ranges import broker as ranges
from sidecar.spark.ranges import kafka
from sidecar.spark.run.task import TaskRange, asked_of, opened, run, runs
from tests.support.spark.tasks import TP, batches, make_settings, plan_of


class Broker:
    """A broker whose topic can be created again."""

    def __init__(self) -> None:
        self.topic_id = "first"
        self.silent = 0
        """How many requests of ids are not answered."""

    def find(self, asked: list[str], _timeout_s: float) -> dict[str, str | KafkaError]:
        """The ids of topics."""
        if self.silent:
            self.silent -= 1
            return dict.fromkeys(asked, KafkaError(KafkaError._TIMED_OUT))
        return dict.fromkeys(asked, self.topic_id)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The broker that tasks ask."""
    broker = Broker()
    monkeypatch.setattr(kafka, "_found", {})
    monkeypatch.setattr(kafka, "_clients", {"localhost:1": broker})
    monkeypatch.setattr(ranges, "RETRY_S", 0.0)
    context = SimpleNamespace(getLocalProperty=lambda _: "0")
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    return broker


def fetched(*_: object) -> Iterator[Run]:
    """The messages of a range."""
    return runs(batches([(i, "t", b"x") for i in range(10)]), TP)


@pytest.fixture(params=["client", "connector"])
def place(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskRange:
    """What a task has opened, for both readers."""
    monkeypatch.setattr(kafka, "fetch", fetched)
    source = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": [TP.topic], "lane": "off"}
    settings = make_settings("http://localhost:1/", source={"kafka": source})
    rows = list(batches([(i, "t", b"x") for i in range(10)]))
    if request.param == "client":
        fields = {"topic": TP.topic, "partition": TP.partition, "start": 0, "end": 10, "broker": "", "expired": 0}
        rows = [pa.RecordBatch.from_pylist([fields])]
    asked = asked_of(iter(rows))
    assert asked is not None
    return opened(plan_of(settings, tmp_path), *asked)


def test_a_task_refuses_messages_of_a_topic_that_was_created_again(broker: Broker, place: TaskRange) -> None:
    """Kafka's client continues in the new topic at the old offset, and an answer of before the range is too old."""
    broker.topic_id = "second"
    with pytest.raises(PositionError, match="orders was deleted and created again"):
        list(place.runs())


def test_a_task_waits_for_a_broker_that_restarts_behind_its_range(broker: Broker, place: TaskRange) -> None:
    """What it has read is delivered once the broker tells the topic's id."""
    broker.silent = 3
    assert [run.last for run in place.runs()] == [9]


@pytest.mark.parametrize(("pending", "attempt", "again"), [(-1, 0, False), (3, 0, False), (0, 0, True), (-1, 1, True)])
def test_a_task_delivers_its_range(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pending: int, attempt: int, again: bool
) -> None:
    """Parts may have been sent if the micro-batch was begun before, or the task was; a task without rows has none."""
    monkeypatch.setattr(kafka, "fetch", fetched)
    context = SimpleNamespace(
        getLocalProperty=lambda _: "0", attemptNumber=lambda: attempt, taskAttemptId=lambda: 17
    )  # fmt: skip
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    told: list[object] = []
    outcome: Any = SimpleNamespace(lane="")

    class Delivery:
        def __init__(self, plan: object, task: object, *_: object) -> None:
            told.append(task)

        def feed(self, run: Run) -> None:
            told.append(run.last)

        def finish(self) -> object:
            told.append("end")
            return outcome

    monkeypatch.setattr("sidecar.spark.run.deliver.RangeDelivery", Delivery)
    source = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": [TP.topic], "lane": "off"}
    settings = make_settings("http://localhost:1/", source={"kafka": source})
    plan = plan_of(settings, tmp_path, pending=pending)
    fields = {"topic": TP.topic, "partition": TP.partition, "start": 0, "end": 10, "broker": "", "expired": 0}
    delivered: Any = run(plan, iter([pa.RecordBatch.from_pylist([fields])]))
    task, *calls = told
    assert (task.tp, task.batch, task.attempt, task.again) == (TP, 0, "17", again)  # type: ignore[attr-defined]
    assert calls == [9, "end"]
    assert delivered is outcome and delivered.lane is None
    assert run(plan, iter([])) is None
