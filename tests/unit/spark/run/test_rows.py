"""What a task that fills a table leaves beside the checkpoint. No Spark runs, and no broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config.model import Settings
from sidecar.spark.ranges.broker import RangeMessages
from sidecar.spark.ranges.walk import Span
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.task import ARROW_COLUMNS, TaskRange, rows_of, runs
from tests.support.spark.tasks import TP, batches, plan_of


@pytest.mark.parametrize(("query", "kept"), [("table", [0]), ("rejects", [])])
def test_books_are_kept_by_the_query_of_the_table_alone(tmp_path: Path, query: str, kept: list[int]) -> None:
    """Both queries read the same messages, and the driver reads and removes the books of one."""
    kafka = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": [TP.topic]}
    sink = {"parquet": {"path": str(tmp_path / "rows")}}
    settings = Settings.model_validate({"source": {"kafka": kafka}, "sink": sink, "state": {"dir": "state"}})
    folder, read = RunFolder(tmp_path / query), runs(batches([(i, "t", b"x") for i in range(10)]), TP)
    found = RangeMessages(ARROW_COLUMNS, read, None)
    place = TaskRange(Span(TP, "", 0, 10), found, lambda: None, "scope", "ids", 0, folder)
    plan = plan_of(settings, tmp_path, query=query)
    assert sum(batch.num_rows for batch in rows_of(plan, place)) == 10
    assert folder.books.batches() == kept
