"""Settings, Arrow batches and a way to deliver them, for tests of the pipeline on Spark. Starts no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.spark.run.executor.columns import ArrowColumns, runs
from sidecar.spark.run.executor.deliver import Task, deliver
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import Outcome

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


def run_task(
    settings: Settings,
    folder: Path,
    messages: Sequence[Message],
    *,
    batch: int = 0,
    attempt: int = 0,
    rows: int = 10_000,
) -> Outcome:
    """Deliver a range as a task would."""
    task = Task(TP, "5c09e5c0", "1d5c09e0", batch, str(attempt), again=attempt > 0)
    return deliver(settings, RunFolder(folder), task, ArrowColumns(), runs(batches(messages, rows), TP))
