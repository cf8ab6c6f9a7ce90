"""Tables that have timestamps as INT96: named at the start, and never rewritten by deltalake."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction
from structlog.testing import capture_logs

from sidecar.errors import ConfigError
from sidecar.sinks.delta import DeltaSink
from sidecar.sinks.table import by_deltalake
from sidecar.sinks.table.by_deltalake import Int96Guard, tell_int96
from tests.support.delta import sink
from tests.support.landing import framer

LATE: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
ROWS: Final = pa.table({"at": pa.array([LATE], pa.timestamp("us", "UTC"))})


def add(path: Path, name: str, *, int96: bool = True, rows: pa.Table = ROWS, **values: str) -> None:
    """Add a file with rows to a table, as Spark writes it by default, or with microseconds."""
    if not DeltaTable.is_deltatable(str(path)):
        DeltaTable.create(path, Schema.from_arrow(rows.schema))
    (path / name).parent.mkdir(exist_ok=True)
    pq.write_table(rows, path / name, use_deprecated_int96_timestamps=int96, store_schema=False)
    size, made = (path / name).stat().st_size, len(list(path.iterdir()))
    action: Any = AddAction(name, size, values, made, data_change=True, stats="{}")
    table = DeltaTable(path)
    table.create_write_transaction([action], "append", table.schema(), list(values))


def told(path: Path) -> list[Any]:
    """What is logged of a table at the start."""
    with capture_logs() as events:
        tell_int96("t", DeltaTable(path))
    return events


@pytest.mark.parametrize("names", [("old", "a", "b"), ("a", "b", "old"), ("old",)])
def test_the_oldest_and_the_newest_file_are_looked_at(tmp_path: Path, names: tuple[str, ...]) -> None:
    """One of them has INT96: it is logged, once."""
    for name in names:
        add(tmp_path, name, int96=name == "old")
    assert told(tmp_path) == [{"event": "table.old_timestamps", "table": "t", "file": "old", "log_level": "warning"}]


def test_a_table_without_int96_is_not_told(tmp_path: Path) -> None:
    """Nor is one without files, or one whose files are gone."""
    DeltaTable.create(tmp_path, Schema.from_arrow(ROWS.schema))
    assert told(tmp_path) == []
    add(tmp_path, "a", int96=False)
    assert told(tmp_path) == []
    (tmp_path / "a").unlink()
    assert told(tmp_path) == []


def test_a_nested_timestamp_counts(tmp_path: Path) -> None:
    """One in a list of structs is INT96 too."""
    kind = pa.list_(pa.struct([pa.field("at", pa.timestamp("us", "UTC"))]))
    add(tmp_path, "a", rows=pa.table({"all": pa.array([[{"at": LATE}]], kind)}))
    with pytest.raises(ConfigError, match="a has timestamps as INT96"):
        Int96Guard().check(DeltaTable(tmp_path))


def test_deltalake_does_not_compact_it(tmp_path: Path) -> None:
    """The table stays as it is; once it has none, it is compacted."""
    for name in "ab":
        add(tmp_path, name)
    steps = by_deltalake.steps(str(tmp_path))
    before = DeltaTable(tmp_path).version()
    with pytest.raises(ConfigError, match="a has timestamps as INT96, and deltalake would write those") as caught:
        steps["optimize"]()
    assert caught.value.exit_code == 78
    assert DeltaTable(tmp_path).version() == before
    write_deltalake(tmp_path, pa.concat_tables([ROWS, ROWS]), mode="overwrite")
    write_deltalake(tmp_path, ROWS, mode="append")
    steps["optimize"]()
    assert DeltaTable(tmp_path).to_pyarrow_table().column("at").to_pylist() == [LATE] * 3


def test_files_that_are_not_rewritten_do_not_matter(tmp_path: Path) -> None:
    """A compaction leaves large files alone."""
    add(tmp_path, "a")
    size = (tmp_path / "a").stat().st_size
    Int96Guard().check(DeltaTable(tmp_path), size - 1)
    with pytest.raises(ConfigError):
        Int96Guard().check(DeltaTable(tmp_path), size)


def test_each_file_is_looked_at_once(tmp_path: Path) -> None:
    """A guard knows files that were good, and looks at new ones."""
    guard = Int96Guard()
    add(tmp_path, "a", int96=False)
    guard.check(DeltaTable(tmp_path))
    (tmp_path / "a").unlink()
    guard.check(DeltaTable(tmp_path))
    add(tmp_path, "b")
    with pytest.raises(ConfigError, match="b has timestamps"):
        guard.check(DeltaTable(tmp_path))


def test_the_daemon_names_such_a_table(tmp_path: Path) -> None:
    """At its start, when Spark has filled the table before."""
    sink(tmp_path).close()
    made = DeltaTable(tmp_path)
    columns = pa.schema(made.schema().to_arrow())
    assert made.metadata().partition_columns == ["date"]
    rows = pa.table({field.name: pa.array([None], field.type) for field in columns if field.name != "date"})
    add(tmp_path, "date=2026-01-01/a", rows=rows, date="2026-01-01")
    with capture_logs() as events:
        DeltaSink(str(tmp_path), framer()).close()
    assert [event["event"] for event in events] == ["table.old_timestamps"]
