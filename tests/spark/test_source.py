"""The source on real Spark: rows exact, killed or not; limits, groups, columns, damage; a cluster, and Connect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.spark import read, read_stream
from sidecar.storage import Root
from sidecar.zone import SCHEMA, acknowledged
from sidecar.zone.retention import Retention
from sidecar.zone.writer import ZoneFullError
from tests.support.jars import ROOT
from tests.support.landing import Sent, as_sent, batch, joined, message, part, segment_path, writer
from tests.support.process import wait_until
from tests.support.s3 import BUCKET, S3Server
from tests.support.spark.cluster import Cluster
from tests.support.spark.examples import example
from tests.support.spark.session import environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = [message(i) for i in range(60)]


@pytest.fixture
def zone(tmp_path: Path) -> Path:
    """60 messages: `a` has landed 40 of them, `b` took over and landed the last 15 of those again, and 20 more."""
    land(tmp_path / "zone")
    return tmp_path / "zone"


def land(root: Root) -> None:
    """Land the messages of `zone`."""
    first, second = writer(root, "a"), writer(root, "b")
    for start in range(0, 40, 5):
        first.land(batch(start, 5))
    for start in range(25, 60, 7):
        second.land(batch(start, 7))
    first.close()
    second.close()


def sent(frame: DataFrame) -> list[Sent]:
    """The rows of a frame as they were produced, by offset."""
    return sorted(map(as_sent, frame.toArrow().to_pylist()), key=lambda row: row.offset)


class Sink:
    """Micro-batches of a stream, one after the other, with a checkpoint that outlives the query."""

    def __init__(self, folder: Path) -> None:
        self._checkpoint = folder / "checkpoint"
        self.batches: list[list[Sent]] = []

    def start(self, frame: DataFrame, *, once: bool = True) -> StreamingQuery:
        """Begin; with `once` it is over when this returns."""

        def take(batch: DataFrame, number: int) -> None:
            del self.batches[number:]  # again, after a failure
            self.batches.append(sent(batch))

        stream = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self._checkpoint))
        query = (
            stream.trigger(availableNow=True) if once else stream.trigger(processingTime="50 milliseconds")
        ).start()
        if once:
            assert query.awaitTermination(120)
        return query

    @property
    def rows(self) -> list[Sent]:
        """All rows so far, by offset."""
        return sorted((row for batch in self.batches for row in batch), key=lambda row: row.offset)


def test_a_batch_read_has_each_row_once(spark: SparkSession, zone: Path) -> None:
    """The source is found unregistered; rows come byte for byte, once, in the columns of the zone; copies on demand."""
    frame = spark.read.format("sidecar").load(str(zone))
    assert frame.columns == SCHEMA.names
    assert sent(frame) == ROWS
    assert read(spark, zone, dedup=False).count() == 75
    assert read(spark, zone, columns=["offset"]).count() == 60
    assert read(spark, zone, columns=["value", "offset"], parallelism=2).columns == ["value", "offset"]
    assert read(spark, zone, groups=["other"]).count() == 0


ODD = 'odd, "\n\0'


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    """Two files with rows of several tags, and one whose rows all have the tag `z`."""
    zone = writer(tmp_path / "tagged")
    zone.land(joined(0))
    zone.land(joined(10, (ODD, "a", None)))
    zone.land(joined(20, ("z", "z")))
    zone.close()
    return tmp_path / "tagged"


def offsets(frame: DataFrame) -> set[int]:
    """The offsets of the rows of a frame."""
    return {row["offset"] for row in frame.collect()}


def test_some_tags_are_read(spark: SparkSession, tagged: Path, tmp_path: Path) -> None:
    """`tags` chooses rows by any name or none; files without them are not read; other tags may follow."""
    next((tagged / "data").glob("*/*/000000000002-*")).unlink()
    for tags, wanted in ((["a", "other"], {2, 5, 11}), ([None], {1, 12}), ([ODD], {10}), (["other"], set())):
        assert offsets(read(spark, tagged, tags=tags, columns=["offset"])) == wanted
    assert offsets(read(spark, tagged, tags=["a", "b"], groups=["group-b"])) == {0, 3}
    sink = Sink(tmp_path)
    sink.start(read_stream(spark, tagged, tags=["a"]))
    assert [row.offset for row in sink.rows] == [2, 5, 11]
    zone = writer(tagged)
    zone.land(joined(30, ("a", "b")))
    zone.close()
    sink.start(read_stream(spark, tagged, tags=["b"]))
    assert [row.offset for row in sink.rows] == [2, 5, 11, 31], "other tags are read from the checkpoint on"


def test_filters_choose_what_is_read_where_spark_reports_them(spark: SparkSession, tagged: Path) -> None:
    """Filters are exact anyway; where the session reports them, a file without such a tag is not read."""
    skipping = {
        "tag = 'a'": {2, 5, 11},
        "tag IN ('a', 'c') AND offset > 2": {4, 5, 11},
        "tag IS NULL": {1, 12},
        "`group` = 'group-b' AND tag = 'b'": {0, 3},
        "`group` IN ('group-c', 'other')": {4},
        "tag = 'a' AND tag = 'b'": set(),
    }
    reading = {"tag <> 'a'": {0, 3, 4, 10, 20, 21}, "tag = 'c' OR offset = 20": {4, 20}, "tag <=> 'a'": {2, 5, 11}}
    name = "spark.sql.python.filterPushdown.enabled"
    try:
        for enabled in ("false", "true"):
            spark.conf.set(name, enabled)
            for condition, wanted in {**skipping, **reading}.items():
                assert offsets(read(spark, tagged).where(condition)) == wanted, (enabled, condition)
        next((tagged / "data").glob("*/*/000000000002-*")).unlink()
        for condition, wanted in skipping.items():
            assert offsets(read(spark, tagged).where(condition)) == wanted, condition
        assert offsets(read(spark, tagged, tags=["a", "b"]).where("tag = 'b'")) == {0, 3}
        spark.conf.set(name, "false")
        with pytest.raises(Exception, match="is missing"):
            read(spark, tagged).where("tag = 'a'").count()
    finally:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"maxfilespertriger": "1"}, "Did you mean maxFilesPerTrigger"),
        ({"columns": "ofset"}, "option columns is 'ofset'"),
        ({"consumer": "job"}, "option consumer is for readStream"),
        ({"location": "zone"}, "CREATE TABLE is not possible"),
        ({"path": "none"}, "no landing zone at"),
    ],
)
def test_a_wrong_option_is_told(spark: SparkSession, zone: Path, options: dict[str, str], told: str) -> None:
    """What is wrong comes to the user by name, through Spark and all."""
    with pytest.raises(Exception, match=told):
        spark.read.format("sidecar").options(**{"path": str(zone), **options}).load().count()


def test_sql_reads_a_temporary_view(spark: SparkSession, zone: Path) -> None:
    """SQL reads a zone by a temporary view with options; a table of the catalogue is refused, and the view is named."""
    options = f"USING sidecar OPTIONS (path '{zone}', `groups` 'paid', columns 'offset')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW zone {options}")
    assert spark.sql("SELECT count(DISTINCT offset) AS n FROM zone").collect()[0]["n"] == 60
    with pytest.raises(Exception, match="CREATE TABLE is not possible: use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE zone_table {options}")


def test_a_stream_ends_where_it_began_to_look(spark: SparkSession, zone: Path, tmp_path: Path) -> None:
    """AvailableNow with a limit takes all in small micro-batches; the next run takes only what is new; all is read."""
    sink = Sink(tmp_path)
    sink.start(read_stream(spark, zone, consumer="job", max_files=3))
    assert sink.rows == ROWS
    assert len(sink.batches) == 5
    assert acknowledged(zone) == {"job": {"a": 7, "b": 4}}, "the last micro-batch too"
    more = writer(zone, "c")
    more.land(batch(55, 10))
    sink.start(read_stream(spark, zone, consumer="job", parallelism=1))
    assert sink.rows == [message(i) for i in range(65)]
    assert acknowledged(zone)["job"]["c"] == 0
    with pytest.raises(Exception, match="consumer job has read writer a up to number 7"):
        Sink(tmp_path / "anew").start(read_stream(spark, zone, consumer="job"))
    more.close()


def test_the_first_micro_batch_can_be_replayed(spark: SparkSession, zone: Path, tmp_path: Path) -> None:
    """A first commit that is lost, as by a power cut, replays the first micro-batch though it was acknowledged."""
    sink = Sink(tmp_path)
    sink.start(read_stream(spark, zone, consumer="job"))
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    sink.start(read_stream(spark, zone, consumer="job"))
    assert sink.rows == ROWS


def test_a_stream_over_a_full_zone_gives_room(spark: SparkSession, tmp_path: Path) -> None:
    """A query waits for a zone that is missing; what it has read is acknowledged though nothing new can come."""
    root, sink = tmp_path / "zone", Sink(tmp_path)
    query = sink.start(read_stream(spark, root, consumer="job"), once=False)
    try:
        full = writer(root, retention=Retention(age_ms=1 << 40, bytes_max=8_000))
        wait_until(lambda: "job" in acknowledged(root), 180, "it is registered")
        landed = []
        with pytest.raises(ZoneFullError):
            for start in range(0, 6_000, 100):
                full.land(batch(start, 100))
                landed.append(start)
        wait_until(lambda: acknowledged(root)["job"].get("a") == len(landed) - 1, 180, "all is read, and said so")
        full.land(batch(6_000, 10))
        wait_until(lambda: sink.rows[-1:] == [message(6_009)], 180, "what came then is read")
        full.close()
    finally:
        query.stop()
    assert len(sink.rows) == len(landed) * 100 + 10


def test_damage_ends_the_query_by_file_and_line(spark: SparkSession, zone: Path, tmp_path: Path) -> None:
    """A manifest line that is lost, and a data file that is, end the query with an error that names them."""
    (gone,) = (zone / "data/a").glob("*/000000000003-*")
    gone.unlink()
    with pytest.raises(Exception, match=r"data/a/.*000000000003-paid-5.arrow is missing"):
        Sink(tmp_path / "file").start(read_stream(spark, zone))
    path = segment_path(zone, "a", 0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b"orders", b"brders"), *lines[4:]]))
    with pytest.raises(Exception, match=r"line 4 of manifest/a/000000000000.log .*Restore"):
        Sink(tmp_path / "line").start(read_stream(spark, zone))


_CLIENT = """
import json, sys
from pyspark.sql import SparkSession
from sidecar.spark import read, read_stream
address, zone, folder = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
stream = read_stream(spark, zone, consumer="remote", max_files=8, parallelism=4).writeStream.format("parquet")
stream = stream.option("path", folder + "/table").option("checkpointLocation", folder + "/checkpoint")
query = stream.trigger(availableNow=True).start()
query.awaitTermination()
found = read(spark, zone, columns=["offset"], parallelism=4).toArrow()["offset"].to_pylist()
print(json.dumps({"batches": query.lastProgress["batchId"] + 1, "offsets": sorted(found)}))
"""


@pytest.mark.proof
@pytest.mark.timeout(900)  # six JVMs
def test_a_cluster_and_connect(spark: SparkSession, zone: Path, tmp_path: Path) -> None:
    """On a master and two workers, through Connect, with nothing but the wheel's packages: rows exact."""
    packages = tmp_path / "packages"
    for name in ("sidecar", "pyspark_sidecar"):
        shutil.copytree(ROOT / name, packages / name)
    path = {"PYTHONPATH": str(packages)}
    with Cluster(tmp_path, env=path) as cluster:
        command = [sys.executable, "-c", _CLIENT, cluster.connect(), str(zone), str(tmp_path)]
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **environment(), **path},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr + cluster.log("connect")
        assert cluster.executors_used() == 2
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["offsets"] == list(range(60))
    assert told["batches"] >= 2
    assert sent(spark.read.parquet(str(tmp_path / "table"))) == ROWS
    assert acknowledged(zone) == {"remote": {"a": 7, "b": 4}}


def test_the_example_of_the_documentation(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example can be pasted as it is, and run again when there is more: it takes what is new, once."""
    root, run = tmp_path / "zone", example("## Feeding Spark")
    orders = writer(root)
    paths = {"/var/lib/sidecar/zone": str(root), "/mnt/shared/orders": str(tmp_path)}
    for start in (0, 10):
        values = [Sent(i, None, b'{"id": %d, "amount": 2.5}' % i) for i in range(start, start + 10)]
        one = batch(start, 10)
        one.parts[0] = part(values)
        orders.land(one)
        names: dict[str, Any] = {}
        run(paths, names)
    orders.close()
    assert "paid" in capsys.readouterr().out
    rows = spark.read.parquet(str(tmp_path / "table")).select("order.id", "order.amount", "day").collect()
    assert sorted((row.id, row.amount, str(row.day)) for row in rows) == [(i, 2.5, "2023-11-14") for i in range(20)]


def test_a_zone_on_s3_is_read(spark: SparkSession, s3_port: int, tmp_path: Path) -> None:
    """A batch and a stream read each row once from an object store, and the stream acknowledges there."""
    url, sink = f"s3://{BUCKET}/zone", Sink(tmp_path)
    with S3Server(tmp_path, 0.02, s3_port):
        land(url)
        assert sent(read(spark, url)) == ROWS
        for _ in range(2):
            sink.start(read_stream(spark, url, consumer="job", max_files=5))
        assert sink.rows == ROWS
        assert acknowledged(url)["job"] == {"a": 7, "b": 4}
