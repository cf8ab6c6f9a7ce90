"""What a restart of the ingest job must find as it was, decided without Spark: the table, and the schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sidecar.config.spark import Table
from sidecar.config.table.layout import layout_of
from sidecar.errors import ConfigError
from sidecar.spark.table.pinned import in_parquet, pin_layout, pin_schema, refuse_layout, refuse_other_progress
from sidecar.spark.table.plan import Plan, plan_of
from sidecar.spark.table.targets import REJECTS, TABLE, Target


def schema(**types: DataType) -> StructType:
    """A schema of nullable fields."""
    return StructType([StructField(name, kind) for name, kind in types.items()])


B, L = schema(b=IntegerType()), schema(b=IntegerType(), l=ArrayType(IntegerType()))
OLD = schema(id=LongType(), lines=ArrayType(B), named=MapType(StringType(), B)).json()
NEW = schema(id=LongType(), x=IntegerType(), lines=ArrayType(L), named=MapType(StringType(), L)).json()
"""The second one adds fields, one at each place."""


class LocalStorage:
    """As Spark's storage, on this disk."""

    def names(self, folder: str) -> list[str]:
        """Names that are not hidden."""
        path = Path(folder)
        return [one.name for one in path.iterdir() if one.name[0] != "."] if path.is_dir() else []

    def read(self, path: str) -> bytes:
        """A file."""
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """A file and its folder."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    def remove(self, path: str) -> None:
        """A file."""
        Path(path).unlink()


def begun(checkpoint: Path, upto: int, offsets: dict[str, int], *, pending: bool = False) -> None:
    """Spark's logs of a query that has come to a micro-batch."""
    for log in ("offsets", "commits"):
        for number in range(max(0, upto - 3), upto + 1 - (pending and log == "commits")):
            LocalStorage().write(f"{checkpoint}/{log}/{number}", f"v1\n{{}}\n{json.dumps(offsets)}".encode())


def pinned(folder: Path) -> list[bytes]:
    """The schemas that are kept."""
    return [path.read_bytes() for path in (folder / "schema").iterdir()]


@pytest.mark.parametrize(
    ("log", "upto", "refused"),
    [
        (None, -1, ""),  # both new
        (["0", "1", "2"], 2, ""),  # a restart, whether or not its last micro-batch is committed
        (["0", "1"], 2, ""),  # a restart whose last micro-batch the table has not
        (["9.compact", ".10.crc", ".11.compact.x.tmp"], 9, ""),
        ([], 7, ""),  # the table was moved aside, and the log made by hand
        (None, 7, "is not there, and the checkpoint {own} has put micro-batches up to number 7 into it"),
        (["0"], -1, "has micro-batches up to number 0, and the checkpoint {own} has begun none"),
        (["8", "9.compact"], 8, "up to number 9, and the checkpoint {own} has begun those up to 8"),  # an older copy
    ],
)
def test_a_table_that_its_checkpoint_does_not_know_is_refused(
    tmp_path: Path, log: list[str] | None, upto: int, refused: str
) -> None:
    """With micro-batches that the checkpoint never began, or without those that it ended."""
    own, storage = tmp_path / "checkpoint" / "rejects", LocalStorage()
    target = Target(REJECTS, str(tmp_path / "t-rejects"), str(own))
    if log is not None:
        (tmp_path / "t-rejects" / "_spark_metadata").mkdir(parents=True)
    for name in log or ():
        storage.write(f"{target.path}/_spark_metadata/{name}", b"v1")
    begun(own, upto, {"a": upto})
    said = ""
    try:
        refuse_other_progress(storage, target, in_parquet(storage, target))
    except ConfigError as error:
        said = str(error)
    assert refused.format(own=own) in said
    assert bool(said) == bool(refused)


@pytest.mark.parametrize(
    ("table", "rejects", "pending", "refused"),
    [
        ({"a": 5}, {"a": 5, "b": -1}, False, False),
        ({"a": 5}, {"a": 4}, False, True),
        ({"a": 5}, {"a": 5}, True, True),
        ({"a": 5}, {"a": 5, "b": 0}, False, True),
    ],
)
def test_another_schema_waits_until_both_have_read_as_far(
    tmp_path: Path, table: dict[str, int], rejects: dict[str, int], pending: bool, refused: bool
) -> None:
    """It is taken where both queries stand at the same place with nothing pending; the same one goes on anywhere."""
    storage = LocalStorage()
    pin_schema(storage, str(tmp_path), OLD)
    begun(tmp_path / "table", 7, table, pending=pending)
    begun(tmp_path / "rejects", 9, rejects)
    pin_schema(storage, str(tmp_path), OLD)
    if refused:
        with pytest.raises(ConfigError, match=r"spark\.table\.schema changed") as caught:
            pin_schema(storage, str(tmp_path), NEW)
        assert "Run it once with the previous schema, which is in " in caught.value.hint
    else:
        pin_schema(storage, str(tmp_path), NEW)
    assert pinned(tmp_path) == [OLD.encode() if refused else NEW.encode()]


def test_a_schema_is_free_until_something_is_read(tmp_path: Path) -> None:
    """Before the first micro-batch any may take another's place; a job of an earlier release keeps the one it has."""
    for schema in ("", OLD, NEW):
        pin_schema(LocalStorage(), str(tmp_path / "new"), schema)
    assert pinned(tmp_path / "new") == [NEW.encode()]
    begun(tmp_path / "old" / "table", 3, {"a": 3}, pending=True)
    pin_schema(LocalStorage(), str(tmp_path / "old"), OLD)
    with pytest.raises(ConfigError):
        pin_schema(LocalStorage(), str(tmp_path / "old"), NEW)


def test_a_change_that_was_cut_short_is_judged_again(tmp_path: Path) -> None:
    """With two schemas kept neither is taken for granted: none goes on before both queries have read as far."""
    storage = LocalStorage()
    pin_schema(storage, str(tmp_path / "other"), NEW)
    pin_schema(storage, str(tmp_path), OLD)
    (new,) = (tmp_path / "other" / "schema").iterdir()
    storage.write(f"{tmp_path}/schema/{new.name}", NEW[:20].encode())
    begun(tmp_path / "table", 7, {"a": 7})
    begun(tmp_path / "rejects", 7, {"a": 7})
    with pytest.raises(ConfigError, match="field id was bigint and is now string"):
        pin_schema(storage, str(tmp_path), NEW.replace('"long"', '"string"'))
    pin_schema(storage, str(tmp_path), NEW)
    assert pinned(tmp_path) == [NEW.encode()]


def test_a_filled_table_gets_no_schema(tmp_path: Path) -> None:
    """The rejects would begin with rows that the table has: refused, and what helps is said."""
    pin_schema(LocalStorage(), str(tmp_path), "")
    begun(tmp_path / "table", 3, {"a": 3})
    with pytest.raises(ConfigError, match="was added to a table that was filled without one") as caught:
        pin_schema(LocalStorage(), str(tmp_path), OLD)
    assert "another spark.checkpoint" in caught.value.hint


def plan(*columns: str, partition_by: str) -> Plan:
    """A table with these columns, partitioned by one."""
    table = Table.model_validate({"columns": list(columns), "partition_by": [partition_by]})
    return plan_of(layout_of(table, "spark.table"), (), "t", None, None)


def test_columns_are_only_added_and_partitions_of_parquet_stay(tmp_path: Path) -> None:
    """Free until something is read; then a column may come, and none go, however a change before it ended."""
    storage, checkpoint = LocalStorage(), str(tmp_path)
    first, more, other = (
        plan("offset", partition_by="date"),
        plan("offset", "key", partition_by="date"),
        plan("offset", partition_by="tag"),
    )

    def take(wanted: Plan, *, is_parquet: bool = True) -> str:
        try:
            refuse_layout(storage, checkpoint, wanted, first, is_parquet=is_parquet)
        except ConfigError as error:
            return str(error)
        pin_layout(storage, checkpoint, wanted)
        return ""

    assert [take(one) for one in (more, other, first)] == [""] * 3
    begun(tmp_path / TABLE, 0, {"a": 0}, pending=True)
    for _ in range(2):  # a checkpoint of an earlier version, which kept nothing, has the default
        assert "partitioned by date, and would be by tag_label" in take(other)
        assert "leaves out date" in take(other, is_parquet=False)
        shutil.rmtree(tmp_path / "layout", ignore_errors=True)
    assert take(more) == ""
    assert "leaves out key, which the table has" in take(first)
    (kept,) = (tmp_path / "layout").iterdir()
    pin_layout(storage, str(tmp_path / "x"), first)
    (earlier,) = (tmp_path / "x" / "layout").iterdir()
    shutil.copy(earlier, tmp_path / "layout")  # the change was cut short before the earlier one was removed
    assert take(first) == ""
    assert kept.exists() is False


A, M = LongType(), MapType(StringType(), IntegerType())


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (schema(a=StringType(), s=L, m=M), "field a was bigint and is now string"),
        (schema(s=L, a=A, m=M), "field s was after a and is now before it"),
        (StructType([StructField("a", A, nullable=False), *schema(s=L, m=M)]), "a was nullable and is now NOT NULL"),
        (schema(a=A, s=B, m=M), r"field s.l \(array<int>\) is missing"),
        (schema(a=A, s=schema(b=IntegerType(), l=ArrayType(A)), m=M), "field s.l.element was int and is now bigint"),
        (schema(a=A, s=A, m=M), "field s was struct<b:int,l:array<int>> and is now bigint"),
        (schema(a=A, s=L, m=MapType(StringType(), DateType())), "field m.value was int and is now date"),
        (None, r"field a \(bigint\) is missing"),
    ],
)
def test_a_schema_that_changes_a_field_is_refused(tmp_path: Path, after: StructType | None, told: str) -> None:
    """Another type, order or nullability, at any depth, and a field that is gone: refused by name, nothing changed."""
    storage, before = LocalStorage(), schema(a=A, s=L, m=M).json()
    pin_schema(storage, str(tmp_path), before)
    for query in (TABLE, REJECTS):
        begun(tmp_path / query, 3, {"a": 3})
    with pytest.raises(ConfigError, match=told) as caught:
        pin_schema(storage, str(tmp_path), after.json() if after else "")
    assert "another path of the table" in caught.value.hint
    assert pinned(tmp_path) == [before.encode()]
