"""From the zone to a table: each row once, whatever the table is made of, and what does not fit kept aside."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from sidecar.config.model import Settings
from sidecar.core.parts import Batch
from sidecar.errors import ConfigError
from sidecar.spark.driver import QueryError
from sidecar.spark.ingest.job import SparkIngest
from sidecar.spark.table.filling import Filling
from sidecar.zone import acknowledged
from sidecar.zone.table import TABLE_SCHEMA
from tests.support.landing import Sent, batch, message, part, writer
from tests.support.spark.examples import example
from tests.support.spark.ingesting import config, in_frame, is_acknowledged, there, wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = ["paid", "", "007", "a b/c", "x" * 300, "ä", "percent:%FF"]


def ingest(folder: Path, checkpoint: Path | None = None, **table: Any) -> None:
    """Take what is there."""
    document = config(folder, **table)
    if checkpoint:
        document["spark"]["checkpoint"] = str(checkpoint)
    SparkIngest(Settings.model_validate(document), lambda: False, once=True).run()


def kind_of(form: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The format of the table; with `deltalake`, the session is taken for one that does not know Delta."""
    if form == "deltalake":
        monkeypatch.setattr("sidecar.spark.table.writers.has_delta", lambda session: False)
    return "parquet" if form == "parquet" else "delta"


@pytest.mark.parametrize("form", ["parquet", "delta", "deltalake"])
def test_each_row_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Two writers, batches landed again by the other one, odd groups and bytes, in two runs: every row, each once."""
    kind = kind_of(form, monkeypatch)
    if form == "parquet":
        ingest(tmp_path)  # a zone that is not there yet is empty
    first = [batch(10 * i, 7, group) for i, group in enumerate(GROUPS)]
    second = [batch(1_000, 3), batch(2_000, 4, "new")]
    odd = Batch(1, "odd", [part([Sent(500, None, b"\xff", None, (), None), Sent(501, b"", b"", "t", (), -1)], "odd")])
    a, b = writer(tmp_path / "zone", "a"), writer(tmp_path / "zone", "b")
    for one in [*first, odd]:
        a.land(one)
    for one in first[:3]:
        b.land(one)
    ingest(tmp_path, format=kind)
    assert is_acknowledged(tmp_path)
    for one in second:
        b.land(one)
    ingest(tmp_path, format=kind)
    assert there(tmp_path / "table") == wanted([*first, odd, *second])
    assert is_acknowledged(tmp_path)
    if form == "parquet":
        assert in_frame(spark.read.parquet(str(tmp_path / "table"))) == wanted([*first, odd, *second])
    else:
        table = DeltaTable(tmp_path / "table")
        assert {field.name for field in table.schema().fields} == set(TABLE_SCHEMA.names)
        days = table.to_pyarrow_table(columns=["offset", "group", "date"]).to_pylist()
        found = {(day["group"], day["offset"]): str(day["date"]) for day in days}
        assert (found["paid", 1], found["odd", 500], found["odd", 501]) == ("2023-11-14", "None", "None")
    a.close()
    b.close()


def test_a_table_of_one_way_goes_on_the_other_way(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch whose end Spark did not hear of is known, by Delta's sink or by deltalake, whichever wrote it."""
    zone = writer(tmp_path / "zone")
    commits = tmp_path / "checkpoint" / "table" / "commits"
    for number, has_jars in enumerate((False, False, True, False)):
        if number >= 2:
            for name in (f"{number - 1}", f".{number - 1}.crc"):
                (commits / name).unlink()
        monkeypatch.setattr("sidecar.spark.table.writers.has_delta", lambda session, found=has_jars: found)
        zone.land(batch(5 * number, 5))
        ingest(tmp_path, format="delta")
    zone.close()
    assert there(tmp_path / "table") == wanted(batch(5 * number, 5) for number in range(4))


def test_a_table_of_another_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would leave out what has the number of a micro-batch of the table; its own checkpoint goes on."""
    zone, interval = writer(tmp_path / "zone"), "spark.sql.streaming.fileSink.log.compactInterval"
    batches = [batch(0, 5), batch(5, 5)]
    spark.conf.set(interval, "1")
    try:
        zone.land(batches[0])
        ingest(tmp_path)
        assert (tmp_path / "table" / "_spark_metadata" / "0.compact").exists()
        zone.land(batches[1])
        known = acknowledged(tmp_path / "zone")
        with pytest.raises(ConfigError, match=r"up to number 0, and the checkpoint .*other/table has begun none"):
            ingest(tmp_path, tmp_path / "other")
        assert acknowledged(tmp_path / "zone") == known
        ingest(tmp_path)
        assert in_frame(spark.read.parquet(str(tmp_path / "table"))) == wanted(batches)
    finally:
        spark.conf.unset(interval)
        zone.close()


def test_small_files_become_large_ones(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Delta in Spark every so many micro-batches are compacted: fewer files, the same rows, each once."""
    monkeypatch.setattr("sidecar.spark.table.writers.has_delta", lambda session: False)
    monkeypatch.setattr("sidecar.spark.table.writers.COMPACT_EVERY", 3)
    zone = writer(tmp_path / "zone")
    files = []
    for number in range(4):
        zone.land(batch(5 * number, 5))
        ingest(tmp_path, format="delta")
        files.append(len(DeltaTable(tmp_path / "table").file_uris()))
    zone.close()
    assert files == [1, 2, 1, 2]
    assert there(tmp_path / "table") == wanted(batch(5 * number, 5) for number in range(4))


def test_a_day_that_is_over_is_compacted(spark: SparkSession, tmp_path: Path) -> None:
    """The example copies a day into one file a group; run again it has what came late too, each row once."""
    zone, run = writer(tmp_path / "zone"), example("**Files**")
    copy = tmp_path / "by-day"
    paths = {"/var/lib/sidecar/orders-by-day": str(copy), "/var/lib/sidecar/orders": str(tmp_path / "table")}
    other_day = Sent(900, None, b"", "paid", (), 0)
    landed: list[Batch] = []
    for first in (0, 10, 20):
        landed += [batch(first, 5), batch(first + 5, 3, "refunded")]
        for one in landed[-2:]:
            zone.land(one)
        zone.land(Batch(1, "paid", [part([other_day._replace(offset=900 + first)])]))
        ingest(tmp_path)
        if first:
            run(paths | {"2026-11-18": "2023-11-14"}, {})
            assert in_frame(spark.read.parquet(str(copy))) == wanted(landed)
            assert len(list(copy.rglob("*.parquet"))) == 2
    zone.close()


SCHEMA = "id bigint, amount double, nested struct<a: array<string>>"
FITTING = {
    1: b'{"id": 1, "amount": 1.5, "nested": {"a": ["x", null]}}',
    2: b' \n{"id": 2, "unknown": {"deep": [1]}}',
    3: b"{}",
    4: '{"id": 4, "nested": {"a": ["é"]}}'.encode(),
    5: None,
}
REJECTED = {
    11: b"",
    12: b"nonsense",
    13: b'{"id": "many"}',
    14: b'{"id": 14',
    15: b'[{"id": 15}]',
    16: b"16",
    17: b"null",
    18: b'{"id": 18, "nested": {"a": ["\xff"]}}',
    19: b'{"id": 1e30}',
    20: b'{"id": 20, "nested": 7}',
    21: b"\x00",
}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_what_does_not_fit_is_kept_aside(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Values that are JSON of the schema become columns; all others are in a table of their own as they came."""
    schema: str | Path = SCHEMA
    if kind == "delta":
        schema = tmp_path / "schema.ddl"
        schema.write_text(SCHEMA + "\n")
    rows = [Sent(offset, b"k", value) for offset, value in (FITTING | REJECTED).items()]
    zone = writer(tmp_path / "zone")
    zone.land(Batch(1, "paid", [part(rows)]))
    ingest(tmp_path, format=kind, schema=str(schema))
    zone.close()
    form = spark.read.format(kind)
    table, aside = (form.load(str(tmp_path / name)) for name in ("table", "table-rejects"))
    assert in_frame(table) == Counter(("paid", offset, b"k", value) for offset, value in FITTING.items())
    assert in_frame(aside) == Counter(("paid", offset, b"k", value) for offset, value in REJECTED.items())
    found = {row["offset"]: row["data"] for row in table.select("offset", "data").collect()}
    assert json.loads(json.dumps(found[1].asDict(recursive=True))) == json.loads(FITTING[1] or b"")
    assert (found[2]["id"], found[3]["id"], found[4]["nested"]["a"], found[5]) == (2, None, ["é"], None)
    reasons = {row["offset"]: row["reason"] for row in aside.select("offset", "reason").collect()}
    assert {offset for offset, reason in reasons.items() if "UTF-8" in reason} == {18}
    assert is_acknowledged(tmp_path)


def test_a_bad_schema_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Columns that are none, and a file that is not there, are errors of the configuration."""
    with pytest.raises(ConfigError, match="is not a schema"):
        ingest(tmp_path, schema="id bigint, amount noodle")
    with pytest.raises(ConfigError, match=r"cannot read missing\.ddl: No such file"):
        ingest(tmp_path, schema="missing.ddl")


def test_the_schema_changes_where_both_tables_have_read_as_far(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused while one is ahead; after one run with the schema before, though more is landed, each row is in one."""
    zone, old, new = writer(tmp_path / "zone"), "id bigint", "id bigint, x int"
    start, start_all = Filling._query, Filling.start

    def land(*offsets: int) -> None:
        rows = [Sent(at, b"", json.dumps({"id": at, "x": at if at % 2 else "no"}).encode()) for at in offsets]
        zone.land(Batch(1, "paid", [part(rows)]))

    def start_and_land(*args: Any) -> Any:
        query = start(*args)
        query.awaitTermination(60)
        land(*next(more))
        return query

    def start_rejects(filling: Filling, *args: Any) -> None:
        filling.targets = filling.targets[1:]
        start_all(filling, *args)

    land(1, 2, 3, 4)
    with monkeypatch.context() as patched:
        patched.setattr(Filling, "start", start_rejects)
        ingest(tmp_path, schema=old)
    with pytest.raises(ConfigError, match="the table and its rejects are at different places"):
        ingest(tmp_path, schema=new)
    more = iter([(5, 6), (7, 8)])
    with monkeypatch.context() as patched:
        patched.setattr(Filling, "_query", start_and_land)
        ingest(tmp_path, schema=old)
    ingest(tmp_path, schema=new)
    zone.close()
    tables = [there(tmp_path / name) for name in ("table", "table-rejects")]
    found = [sorted(offset for _, offset, *_ in table.elements()) for table in tables]
    assert found == [[1, 2, 3, 4, 5, 7], [6, 8]]


@pytest.mark.parametrize("form", ["parquet", "delta", "deltalake"])
def test_fields_are_added_and_not_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A table that gets fields at any depth has all rows; another type is refused, and the table stays readable."""
    kind = kind_of(form, monkeypatch)
    zone = writer(tmp_path / "zone")
    value = b'{"id": 1, "x": 2, "a": [{"b": 3, "c": 4}]}'
    for offset, schema in enumerate(
        ("id bigint, a array<struct<b: int>>", "id bigint, x int, a array<struct<b: int, c: int>>")
    ):
        zone.land(Batch(1, "paid", [part([Sent(offset, b"", value)])]))
        ingest(tmp_path, format=kind, schema=schema)
    with pytest.raises(ConfigError, match="field id was bigint and is now string") as caught:
        ingest(tmp_path, format=kind, schema="id string, x int, a array<struct<b: int, c: int>>")
    assert caught.value.exit_code == 78
    zone.close()
    if form == "deltalake":  # the session need not know Delta
        rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().sort_by("offset").column("data").to_pylist()
    else:
        table = spark.read.format(kind).option("mergeSchema", "true").load(str(tmp_path / "table"))
        rows = [row.data.asDict(recursive=True) for row in table.orderBy("offset").collect()]
    assert rows == [
        {"id": 1, "x": None, "a": [{"b": 3, "c": None}]},
        {"id": 1, "x": 2, "a": [{"b": 3, "c": 4}]},
    ]


def test_a_zone_that_is_gone_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """An empty mount point is an error, and stays empty; with the zone back, the job goes on where it was."""
    zone = writer(tmp_path / "zone")
    batches = [batch(0, 5), batch(5, 5)]
    zone.land(batches[0])
    ingest(tmp_path)
    zone.close()
    (tmp_path / "zone").rename(tmp_path / "aside")
    for mount in (False, True):
        if mount:
            (tmp_path / "zone").mkdir()
        with pytest.raises(
            QueryError, match=r"zone(/manifest)? is missing, and this query has read from a there"
        ) as caught:
            ingest(tmp_path)
        assert caught.value.exit_code == 69
        assert not list(tmp_path.glob("zone/*"))
    (tmp_path / "zone").rmdir()
    (tmp_path / "aside").rename(tmp_path / "zone")
    zone = writer(tmp_path / "zone")
    zone.land(batches[1])
    zone.close()
    ingest(tmp_path)
    assert there(tmp_path / "table") == wanted(batches)
    assert is_acknowledged(tmp_path)


def test_a_damaged_zone_ends_the_query_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that are lost are never passed over: the job ends with an error that names the file."""
    zone = writer(tmp_path / "zone")
    entry = zone.land(Batch(1, "paid", [part([message(1)])]))
    zone.close()
    assert entry is not None
    (tmp_path / "zone" / entry.file).unlink()
    with pytest.raises(QueryError, match="is missing") as caught:
        ingest(tmp_path)
    assert caught.value.exit_code == 69
