"""What a task of a query looks at behind its range. No Spark runs, and no broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest

from sidecar.core.records import TopicPartition
from sidecar.errors import PositionError
from sidecar.spark.query.options import parse_options
from sidecar.spark.query.task import _again, read_span
from sidecar.spark.ranges.broker import ExpiredError, OnGap
from sidecar.spark.ranges.walk import Span
from sidecar.spark.run.task import ARROW_COLUMNS

QUERY: Final = parse_options(
    "kafka", {"bootstrap_servers": "localhost:1", "topics": "orders", "lane": "off"}, stream=None
)


def read(planned: str, found: str) -> list[pa.RecordBatch]:
    """Read a range without messages that was planned with a topic id while the broker has another one."""
    broker: Any = SimpleNamespace(
        columns=lambda: ARROW_COLUMNS, messages=lambda *_: iter(()), lane=lambda: None, topic_id=lambda _: found
    )
    return list(
        read_span(replace(QUERY, broker=broker), Span(TopicPartition("orders", 0), planned, 0, 10, is_first=True))
    )


def test_a_range_of_a_topic_that_was_created_again_is_an_error() -> None:
    """Kafka's client reads on in the new topic at the old offset."""
    with pytest.raises(PositionError, match="orders was deleted and created again: start over"):
        read(planned="first", found="second")


@pytest.mark.parametrize("planned", ["first", ""])
def test_a_range_of_the_planned_topic_is_read(planned: str) -> None:
    """So is one that was planned while the broker had no topic ids."""
    assert read(planned, found="first") == []


@pytest.mark.parametrize(
    ("on_gap", "low", "read"),
    [("log_start", 6, [(2, 9), (6, 9)]), ("log_start", 9, [(2, 9)]), ("stop", 6, None), ("stop", 0, [(2, 9)])],
)
def test_ids_of_a_range_that_was_not_read_to_its_end_may_have_expired(
    on_gap: OnGap, low: int, read: list[tuple[int, int]] | None
) -> None:
    """They are read again as far as the log has them, if the query goes on; otherwise it stops."""
    asked = []

    def messages(tp: TopicPartition, start: int, end: int) -> Iterator[list[bytes]]:
        asked.append((start, end))
        if start < low:
            raise ExpiredError(tp, start, low)
        yield [b"m"]

    broker: Any = SimpleNamespace(messages=messages)
    span = Span(TopicPartition("orders", 0), "", 9, 12, is_first=False)
    query = replace(QUERY, on_gap=on_gap, broker=broker)
    if read is None:
        with pytest.raises(PositionError, match=r"orders\[0\] was read to 2, and its log begins at 6"):
            list(_again(query, span, 2))
    else:
        list(_again(query, span, 2))
        assert asked == read
    asked.clear()
    assert list(_again(query, replace(span, expired=3), 2)) == []
    assert asked == []
