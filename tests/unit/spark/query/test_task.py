"""What a task of a query looks at behind its range. No Spark runs, and no broker."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest

from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.spark.query import task
from sidecar.spark.query.offsets import Span
from sidecar.spark.query.options import parse_options
from sidecar.spark.query.task import Client, read_span
from sidecar.spark.ranges import topic_ids
from sidecar.spark.run.executor.columns import ArrowColumns

QUERY: Final = parse_options(
    "kafka", {"bootstrap_servers": "localhost:1", "topics": "orders", "lane": "off"}, stream=None
)


def read(monkeypatch: pytest.MonkeyPatch, planned: str, found: str) -> list[pa.RecordBatch]:
    """Read a range without messages that was planned with a topic id while the broker has another one."""
    monkeypatch.setattr(task, "client_of", lambda _: Client(ArrowColumns(), lambda *_: iter(())))
    monkeypatch.setattr(topic_ids, "topic_id", lambda *_, **__: found)
    return list(read_span(QUERY, Span(TopicPartition("orders", 0), planned, 0, 10, is_first=True), None))


def test_a_range_of_a_topic_that_was_created_again_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's client reads on in the new topic at the old offset."""
    with pytest.raises(StateError, match="orders was deleted and created again: begin anew"):
        read(monkeypatch, planned="first", found="second")


@pytest.mark.parametrize("planned", ["first", ""])
def test_a_range_of_the_planned_topic_is_read(monkeypatch: pytest.MonkeyPatch, planned: str) -> None:
    """So is one that was planned while the broker had no topic ids."""
    assert read(monkeypatch, planned, found="first") == []
