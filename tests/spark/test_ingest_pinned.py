"""What a restart of the ingest job must find as it was, decided without Spark: the table, and the schema."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
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

from sidecar.config.spark import Resume, Table
from sidecar.config.table_layout import layout_of
from sidecar.errors import ConfigError
from sidecar.spark.table.pinned import (
    SparkStorage,
    in_parquet,
    pin_constraints,
    pin_layout,
    pin_schema,
    refuse_layout,
    refuse_other_progress,
)
from sidecar.spark.table.plan import REJECTS, TABLE, Existing, Plan, Target, fields_of, plan_of
from sidecar.spark.table.registry import Beginning, Registry, beginnings


def schema(**types: DataType) -> StructType:
    """A schema of nullable fields."""
    return StructType([StructField(name, kind) for name, kind in types.items()])


B, L = schema(b=IntegerType()), schema(b=IntegerType(), l=ArrayType(IntegerType()))
OLD = schema(id=LongType(), lines=ArrayType(B), named=MapType(StringType(), B)).json()
NEW = schema(id=LongType(), x=IntegerType(), lines=ArrayType(L), named=MapType(StringType(), L)).json()
"""The second one adds fields, one at each place."""


class LocalStorage(SparkStorage):
    """As Spark's storage, on this disk."""

    def __init__(self) -> None:
        """Without a session."""

    def names(self, folder: str) -> list[str]:
        """Names that are not hidden."""
        path = Path(folder)
        return [one.name for one in path.iterdir() if one.name[0] != "."] if path.is_dir() else []

    def read(self, path: str) -> bytes:
        """A file."""
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes, *, over: bool = True) -> None:
        """A file and its folder."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        """A new file and its folder."""
        is_new = not Path(path).exists()
        if is_new:
            self.write(path, data)
        return is_new

    def remove(self, path: str) -> None:
        """A file, if it is there."""
        Path(path).unlink(missing_ok=True)


def begun(checkpoint: Path, upto: int, offsets: Mapping[str, Any], *, pending: bool = False) -> None:
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
        (["0", "1", "2"], 2, ""),  # a restart
        (["9.compact", ".10.crc", ".11.compact.x.tmp"], 9, ""),
        (["0", "1"], 2, "has micro-batches up to number 1 of the checkpoint {own}, which has put those up to number 2"),
        ([], 7, "has none of the checkpoint {own}, which has put those up to number 7 into it"),
        (None, 7, "is not there, and the checkpoint {own} has put micro-batches up to number 7 into it"),
        (["0"], -1, "has micro-batches up to number 0, and the checkpoint {own} has begun none"),
        (["8", "9.compact"], 8, "up to number 9, and the checkpoint {own} has begun those up to 8"),  # an older copy
    ],
)
def test_a_table_that_its_checkpoint_does_not_know_is_refused(
    tmp_path: Path, log: list[str] | None, upto: int, refused: str
) -> None:
    """With micro-batches that the checkpoint never began, or without some that it ended, or all."""
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


def test_a_micro_batch_that_is_not_committed_may_be_in_the_table(tmp_path: Path) -> None:
    """The last one that was begun, after a crash: before or after the table got it, and none but that."""
    target = Target(TABLE, str(tmp_path / "t"), str(tmp_path / "checkpoint" / "table"))
    begun(Path(target.checkpoint), 2, {"a": 2}, pending=True)
    accepted = []
    for there in range(4):
        with contextlib.suppress(ConfigError):
            refuse_other_progress(LocalStorage(), target, there)
            accepted.append(there)
    assert accepted == [1, 2]


class Filled:
    """A table of Delta that queries fill, each with the offsets of its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers: dict[str, int] = {}

    def target(self, checkpoint: str) -> Target:
        """The table, of a checkpoint by this name."""
        return Target(TABLE, str(self.folder / "t"), str(self.folder / checkpoint / TABLE))

    def registry(self, checkpoint: str, source: str = "cluster") -> Registry:
        """The registry of the table, as a job with this checkpoint sees them."""
        return Registry(LocalStorage(), self.target(checkpoint), source)

    def fill(self, checkpoint: str, query: str, batch: int, offsets: dict[str, Any], source: str = "cluster") -> None:
        """A micro-batch that is claimed and committed."""
        begun(self.folder / checkpoint / TABLE, batch, offsets)
        self.registry(checkpoint, source).claim(query, batch)
        self.numbers[query] = batch

    def beginning(self, resume: Resume, first: dict[str, Any], source: str = "cluster") -> Beginning | None:
        """Where a new checkpoint begins."""
        targets, last = [self.target("new")], lambda _, query: self.numbers.get(query, -1)
        found = beginnings(LocalStorage(), targets, source, lambda: first, last, resume)
        return found.get(TABLE)


def test_a_micro_batch_is_claimed_by_one_copy_of_a_checkpoint(tmp_path: Path) -> None:
    """The same one comes again after a crash; another one of its number would be left out, or stand in its place."""
    filled = Filled(tmp_path)
    filled.fill("own", "q", 5, {"orders": {"0": 7}})
    filled.fill("own", "q", 5, {"orders": {"0": 7}})
    begun(tmp_path / "copy" / TABLE, 5, {"orders": {"0": 9}})
    for judge in (filled.registry("copy").claim, filled.registry("copy").check):
        with pytest.raises(ConfigError, match="has other messages in micro-batch 5 than the checkpoint"):
            judge("q", 5)
    assert filled.beginning("from_table", {"orders": {"0": 0}}) == Beginning(5, {"orders": {"0": 7}})


def test_a_claim_that_a_crash_has_torn_is_made_again(tmp_path: Path) -> None:
    """Nothing of its micro-batch was written, which follows the claim."""
    filled = Filled(tmp_path)
    (tmp_path / "t" / "_sidecar" / "q").mkdir(parents=True)
    (tmp_path / "t" / "_sidecar" / "q" / "5").write_bytes(b'{"sou')
    filled.fill("own", "q", 5, {"orders": {"0": 7}})
    assert filled.beginning("from_table", {"orders": {"0": 0}}) == Beginning(5, {"orders": {"0": 7}})


def test_a_query_keeps_the_places_of_two_micro_batches(tmp_path: Path) -> None:
    """That under way, and the last one that the table has."""
    filled = Filled(tmp_path)
    for batch in range(5):
        filled.fill("own", "q", batch, {"orders": {"0": batch}})
    assert sorted(path.name for path in (tmp_path / "t" / "_sidecar" / "q").iterdir()) == ["3", "4"]


@pytest.mark.parametrize(
    ("source", "first"),
    [("another cluster", {"orders": {"0": 0}}), ("cluster", {"payments": {"0": 0}})],
)
def test_another_source_may_fill_the_table_too(tmp_path: Path, source: str, first: dict[str, Any]) -> None:
    """Topics of one name on two clusters, or two topics of one cluster, have no message in common."""
    filled = Filled(tmp_path)
    filled.fill("own", "q", 3, {"orders": {"0": 7}})
    assert filled.beginning("stop", first, source) is None


def test_a_new_checkpoint_goes_on_with_the_last_of_several(tmp_path: Path) -> None:
    """Each began where the one before it ended; a micro-batch that the table has not does not count."""
    filled = Filled(tmp_path)
    filled.fill("a", "first", 9, {"orders": {"0": 7, "1": 3}})
    filled.fill("b", "second", 0, {"orders": {"0": 8, "1": 3}})
    filled.fill("b", "second", 1, {"orders": {"0": 9, "1": 4}})
    filled.numbers["second"] = 0
    assert filled.beginning("from_table", {"orders": {"0": 0}}) == Beginning(0, {"orders": {"0": 8, "1": 3}})


def test_a_new_writer_counts_as_further(tmp_path: Path) -> None:
    """The numbers of a zone's writers begin with 0."""
    filled = Filled(tmp_path)
    filled.fill("a", "first", 0, {"w": 0}, "zone")
    filled.fill("b", "second", 0, {"w": 0, "x": 0}, "zone")
    assert filled.beginning("from_table", {"w": 0}, "zone") == Beginning(0, {"w": 0, "x": 0})


def test_a_place_that_is_lost_is_told(tmp_path: Path) -> None:
    """Beginning with the source would append all rows again."""
    filled = Filled(tmp_path)
    filled.fill("own", "q", 3, {"orders": {"0": 7}})
    (tmp_path / "t" / "_sidecar" / "q" / "3").unlink()
    with pytest.raises(ConfigError, match=r"_sidecar/q/3, which says what they have, is missing or torn"):
        filled.beginning("from_table", {"orders": {"0": 0}})
    assert filled.beginning("beside", {"orders": {"0": 0}}) is None


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
    """Before the first micro-batch any may take another's place; then it stays."""
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
            refuse_layout(storage, checkpoint, wanted, is_parquet=is_parquet)
        except ConfigError as error:
            return str(error)
        pin_layout(storage, checkpoint, wanted)
        return ""

    assert [take(one) for one in (more, other, first)] == [""] * 3
    begun(tmp_path / TABLE, 0, {"a": 0}, pending=True)
    assert "partitioned by date, and would be by tag_label" in take(other)
    assert "leaves out date" in take(other, is_parquet=False)
    assert take(more) == ""
    assert "leaves out key, which the table has" in take(first)
    (kept,) = (tmp_path / "layout").iterdir()
    pin_layout(storage, str(tmp_path / "x"), first)
    (earlier,) = (tmp_path / "x" / "layout").iterdir()
    shutil.copy(earlier, tmp_path / "layout")  # the change was cut short before the earlier one was removed
    assert take(first) == ""
    assert kept.exists() is False


def fields(*names: str) -> frozenset[str]:
    """Fields of a table."""
    return frozenset(names)


def existing(name: str, *names: str) -> Existing:
    """A table of Delta with these fields."""
    return Existing((), (), {}, {}, fields(*names), f"/{name}")


def test_fields_that_were_dropped_do_not_come_back(tmp_path: Path) -> None:
    """Those that a table had at the last start; others are added, and what was dropped may be left out."""
    storage, checkpoint, first = LocalStorage(), str(tmp_path), plan("offset", "key", partition_by="date")
    wanted = {TABLE: fields("offset", "key", "date", "data", "data.a"), REJECTS: fields("reason")}

    def take(table: Existing, rejects: Existing, wanted: Mapping[str, frozenset[str]], one: Plan = first) -> str:
        try:
            refuse_layout(storage, checkpoint, one, {TABLE: table, REJECTS: rejects}, wanted, is_parquet=False)
        except ConfigError as error:
            return f"{error}. {error.hint}"
        return ""

    begun(tmp_path / TABLE, 0, {"a": 0})
    bare, aside = existing("t", "offset"), existing("r")
    assert take(bare, aside, wanted) == "", "a layout that a power loss took is not known"
    pin_layout(storage, checkpoint, first, wanted)
    assert "/t has lost data, date, key: " in take(bare, existing("r", "reason"), wanted)
    whole = existing("t", *wanted[TABLE], "own")
    assert "/r has lost reason: new rows would bring back what was dropped. Start over" in take(whole, aside, wanted)
    there = existing("r", "reason")
    assert "/t has lost data.a: " in take(existing("t", "offset", "key", "date", "data"), there, wanted)
    assert take(whole, there, wanted | {TABLE: wanted[TABLE] | {"data.b", "more"}}) == ""
    without = existing("t", "offset", "date", "data", "data.a")
    told = take(without, there, wanted)
    assert told == (
        "the table /t has lost key: new rows would bring back what was dropped. List the others in "
        "spark.table.columns; or add it again, with ALTER TABLE ... ADD COLUMNS"
    )
    assert take(without, there, wanted | {TABLE: without.fields}, plan("offset", partition_by="date")) == ""
    assert "leaves out key" in take(whole, there, wanted | {TABLE: without.fields}, plan("offset", partition_by="date"))


def test_fields_are_the_same_in_both_schemas() -> None:
    """Spark's and deltalake's, at any depth, whatever the case of the letters."""
    inner = StructType([StructField("X", ArrayType(StructType([StructField("y", LongType())])))])
    both = StructType([StructField("A", inner), StructField("m", MapType(StringType(), inner))])
    x, x_y = "x", "x.elementtype.y"
    expected = {"a", "m", *(f"{place}.{one}" for place in ("a", "m.valuetype") for one in (x, x_y))}
    assert fields_of(both.json()) == expected
    assert fields_of(deltalake.Schema.from_json(both.json()).to_json()) == expected


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


def test_constraints_change_where_both_queries_have_read_equally_far(tmp_path: Path) -> None:
    """None are none; what is accepted is in force from then on."""
    storage, checkpoint = LocalStorage(), str(tmp_path)
    pin_constraints(storage, checkpoint, [])
    assert not (tmp_path / "constraints").exists()
    begun(tmp_path / "table", 1, {"a": 1})
    begun(tmp_path / "rejects", 0, {"a": 0})
    with pytest.raises(ConfigError, match=r"changed from none to a, b, and the queries .* different places") as caught:
        pin_constraints(storage, checkpoint, ["a", "b"])
    assert "run the job once" in caught.value.hint
    begun(tmp_path / "table", 1, {"a": 1})
    begun(tmp_path / "rejects", 1, {"a": 1})
    pin_constraints(storage, checkpoint, ["a", "b"])
    begun(tmp_path / "table", 2, {"a": 2})
    begun(tmp_path / "rejects", 1, {"a": 1})
    pin_constraints(storage, checkpoint, ["a", "b"])
    with pytest.raises(ConfigError, match="changed from a, b to none"):
        pin_constraints(storage, checkpoint, [])
    begun(tmp_path / "table", 2, {"a": 2})
    begun(tmp_path / "rejects", 2, {"a": 2})
    pin_constraints(storage, checkpoint, [])
    pin_constraints(storage, checkpoint, [])
