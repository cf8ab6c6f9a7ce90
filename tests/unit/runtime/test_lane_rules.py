"""Who sorts messages: C where the source hands over messages of the lane and the settings allow it."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.records import Columns
from sidecar.runtime.build import build_reading
from sidecar.sources.kafka.columns import KafkaColumns, LaneColumns
from tests.support.spark.tasks import make_settings

BY_HEADER: dict[str, Any] = {"tags": {"from": {"header": "tag"}}}
BY_JSON: dict[str, Any] = {"tags": {"from": {"json": "$.tag"}}}


@pytest.mark.parametrize(
    ("tags", "columns", "in_c"),
    [(BY_HEADER, LaneColumns(), True), (BY_HEADER, KafkaColumns(), False), (BY_JSON, LaneColumns(), False)],
    ids=["both", "messages of the client", "tags in JSON"],
)
def test_messages_are_sorted_in_c_if_they_and_the_settings_allow_it(
    tags: dict[str, Any], columns: Columns, in_c: bool
) -> None:
    """After a reload that asks for tags in JSON, messages of the lane are sorted by Python."""
    reading, sink = build_reading(make_settings("http://localhost:1/", **tags), columns)
    assert (reading.sorting is not None) == in_c
    sink.close()
