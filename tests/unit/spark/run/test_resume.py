"""Message ids of queries that go on where a table ends. No Spark and no broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.config.model import Settings
from sidecar.core.windows.dedup import RotatingSet
from sidecar.errors import ConfigError
from sidecar.spark.ranges.windows import Windows
from sidecar.spark.run.table_job import TableRun
from sidecar.spark.table.registry import Beginning
from tests.support.spark.tables import into

KAFKA = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["orders"]}


def resume(folder: Path, how: str, **sections: Any) -> TableRun:
    """A job whose table ends with micro-batch 3 of another checkpoint."""
    document = {"source": {"kafka": KAFKA}, **into(folder, "delta", resume=how), **sections}
    job = TableRun(Settings.model_validate(document), lambda: False)
    job._filling.beginnings = {"table": Beginning(3, {"orders": {"0": 7}})}
    return job


def remember(folder: Path, number: int) -> None:
    """Ids that a query of this folder has seen."""
    windows, window = Windows(folder / "checkpoint" / "sidecar" / "table" / "ids" / "scope-0"), RotatingSet(10)
    windows.load(window, number - 1)
    window.take([number])
    windows.save(window, number)


def known(folder: Path) -> list[int]:
    """The ids that micro-batch 0 begins with."""
    window = RotatingSet(10)
    Windows(folder / "checkpoint" / "sidecar" / "table" / "ids" / "scope-0").load(window, -1)
    return [number for number in range(10) if number in window]


def test_ids_of_the_table_are_needed(tmp_path: Path) -> None:
    """Without them, a repeat of a message that the table has would be appended."""
    with pytest.raises(ConfigError, match="has no message ids of the checkpoint that filled the table") as refused:
        resume(tmp_path, "from_table")._resume()
    assert "Copy the folder sidecar" in refused.value.hint


def test_ids_are_those_of_the_place(tmp_path: Path) -> None:
    """Those of a later micro-batch, which is not in the table, are not known."""
    for number in (2, 3, 4):
        remember(tmp_path, number)
    with capture_logs() as events:
        resume(tmp_path, "from_table")._resume()
    assert known(tmp_path) == [2, 3]
    assert [event["event"] for event in events] == ["table.resumed"]


@pytest.mark.parametrize(("how", "sections"), [("from_table_without_ids", {}), ("from_table", {"dedup": {}})])
def test_ids_may_be_given_up(tmp_path: Path, how: str, sections: dict[str, Any]) -> None:
    """Where the settings say so, or have none; what is there does not come back later."""
    remember(tmp_path, 3)
    resume(tmp_path, how, **sections)._resume()
    assert known(tmp_path) == []
