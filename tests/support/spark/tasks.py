"""Settings, Arrow batches and a way to deliver them, for tests of the pipeline on Spark. Starts no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from sidecar.config.model import Settings
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.runtime.lane import refusal_on_spark
from sidecar.spark.ranges import broker_of
from sidecar.spark.ranges.broker import BrokerRanges
from sidecar.spark.run.deliver import RangeDelivery, Task
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import Outcome
from sidecar.spark.run.pinned import Checkpoint
from sidecar.spark.run.plan import RunPlan
from sidecar.spark.run.progress import RunProgress
from sidecar.spark.run.task import ARROW_COLUMNS, runs
from sidecar.state.interface import State

TP = TopicPartition("orders", 3)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("value", pa.binary()),
    ]
)
Message = tuple[int, str | None, bytes | None]
"""Offset, tag and value."""


def make_settings(url: str, **change: Any) -> Settings:
    """Settings with quick retries and a group for each tag; `change` goes into its sections."""
    base: dict[str, Any] = {
        "source": {"kafka": {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": [TP.topic]}},
        "tags": {"from": {"header": "tag"}},
        "sink": {"http": {"url": url, "timeout": "10s"}},
        "retry": {"backoff": "1ms", "backoff_max": "20ms"},
        "state": {"dir": "state"},
    }
    sink = {"http": base["sink"]["http"] | change.pop("sink", {}).get("http", {})}
    sections = {key: base.get(key, {}) | value if isinstance(value, dict) else value for key, value in change.items()}
    return Settings.model_validate(base | sections | {"sink": sink})


def batches(messages: Sequence[Message], rows: int = 10_000) -> Iterable[pa.RecordBatch]:
    """These messages as Arrow batches of so many rows."""
    for start in range(0, len(messages), rows):
        some = messages[start : start + rows]
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "topic": TP.topic,
                    "partition": TP.partition,
                    "offset": offset,
                    "timestamp_ms": 1_700_000_000_000 + offset,
                    "key": None,
                    "headers": None if tag is None else [{"key": "tag", "value": tag.encode()}],
                    "value": value,
                }
                for offset, tag, value in some
            ],
            SCHEMA,
        )


def begin(query: Path, batch: int, *logs: str) -> None:
    """What Spark leaves of a micro-batch."""
    for log in logs:
        (query / log).mkdir(parents=True, exist_ok=True)
        (query / log / str(batch)).write_text("v1\n{}")


def job_broker(settings: Settings) -> BrokerRanges:
    """The broker of a job."""
    return broker_of(settings, refusal_on_spark(settings), retried=True)


def plan_of(
    settings: Settings, folder: Path, checkpoint: Checkpoint | None = None, query: str = "", pending: int = -1
) -> RunPlan:
    """The plan of a job whose folder this is."""
    made = checkpoint or Checkpoint(1, "c", "g", "r", "i", pending)
    return RunPlan.of(settings, job_broker(settings), folder, made, query)


def progress_of(settings: Settings, folder: RunFolder, query: Path, state: State) -> RunProgress:
    """The progress of a job."""
    return RunProgress(plan_of(settings, folder.path), folder, query, state, settings.memory.budget_bytes)


def deliver(plan: RunPlan, task: Task, columns: Columns, runs: Iterable[Run]) -> Outcome:
    """Deliver a range as a task would."""
    with ExitStack() as stack:
        delivery = RangeDelivery(plan, task, columns, stack)
        for run in runs:
            delivery.feed(run)
        return delivery.finish()


def run_task(
    settings: Settings,
    folder: Path,
    messages: Sequence[Message],
    *,
    batch: int = 0,
    attempt: int = 0,
    rows: int = 10_000,
) -> Outcome:
    """Deliver messages in record batches of so many rows."""
    task = Task(TP, "5c09e5c0", "1d5c09e0", batch, str(attempt), again=attempt > 0)
    return deliver(plan_of(settings, folder), task, ARROW_COLUMNS, runs(batches(messages, rows), TP))
