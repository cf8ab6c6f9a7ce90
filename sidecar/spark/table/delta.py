"""Delta tables by Spark's own Delta: creation, additions known by number, OPTIMIZE, VACUUM. Needs Delta's jars."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from weakref import WeakSet

from sidecar.config.table_layout import check_retention
from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.sinks.table.constraints import constraints_of
from sidecar.sinks.table.layout import dropped
from sidecar.sinks.table.upkeep import has_int96
from sidecar.spark.driver import TIMES
from sidecar.spark.failures import cause_of
from sidecar.spark.table.merging import LATER, ON, last_of_each
from sidecar.spark.table.pinned import SINK_LOG
from sidecar.spark.table.plan import Existing, Plan, comments_of, fields_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

HEAD_BYTES: Final = 65_536
"""Number of bytes that are read of a log of Spark's file sink: its first lines have the oldest files."""


def tell_int96(session: SparkSession, table: str, files: Iterable[str]) -> None:
    """Log the first of these files of a table that has INT96; unreadable files are left to their readers to report."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = session._jvm
    conf = session._jsparkSession.sessionState().newHadoopConf()
    with contextlib.suppress(Py4JJavaError):
        for file in files:
            place = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(_path(jvm, file), conf)
            with contextlib.closing(jvm.org.apache.parquet.hadoop.ParquetFileReader.open(place)) as reader:
                columns = reader.getFooter().getFileMetaData().getSchema().getColumns()
                is_int96 = any(column.getPrimitiveType().getPrimitiveTypeName().name() == "INT96" for column in columns)
            if is_int96:
                has_int96(table, file)
                return


def oldest_of_sink(session: SparkSession, table: str) -> Iterator[str]:
    """The oldest file of a table of Spark's file sink; nothing if there is none."""
    jvm: Any = session._jvm
    folder = _path(jvm, f"{table}/{SINK_LOG}")
    system = folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    if not system.exists(folder):
        return
    names = [status.getPath().getName() for status in system.listStatus(folder)]
    logs = sorted((name for name in names if name.removesuffix(".compact").isdigit()), key=_number)
    compact = [name for name in logs if name.endswith(".compact")]
    for name in compact[-1:] or logs:  # the last compact log contains those before it
        with contextlib.closing(system.open(_path(jvm, f"{table}/{SINK_LOG}/{name}"))) as stream:
            head = bytes(stream.readNBytes(HEAD_BYTES)).splitlines()
        if len(head) > 1:
            yield unquote(loads(head[1])["path"])
            return


def _number(log: str) -> int:
    return int(log.removesuffix(".compact"))


def _path(jvm: Any, file: str) -> Any:
    return jvm.org.apache.hadoop.fs.Path(file)


WAIT_S: Final = 60.0
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_RULED: Final[WeakSet[SparkContext]] = WeakSet()
"""Contexts whose copied sessions have Delta's rules; each addition of the rules would make another layer."""
CATALOG: Final = "spark.sql.catalog.spark_catalog"
CATALOG_CLASS: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
LISTING_TASKS: Final = 4
"""Tasks for each core with which `VACUUM` lists folders; by default it makes 10,000, which takes a minute."""
_APP: Final = "spark.databricks.delta.write.txnAppId"
_NUMBER: Final = "spark.databricks.delta.write.txnVersion"


class OwnDelta:
    """Delta in a session of Sidecar's own, with Delta's rules and catalogue, which the user's session may lack.

    Without them Delta cannot optimize or vacuum, and creates tables without clusters. They can only be set before a
    session is created; this one is a copy of the user's, with its settings.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        gateway: Any = session.sparkContext._gateway
        self._gateway = gateway
        self._jvm = gateway.jvm
        java = session._jsparkSession
        known = session.conf.get("spark.sql.extensions", None) or ""
        if EXTENSION not in known and session.sparkContext not in _RULED:
            _RULED.add(session.sparkContext)
            self._jvm.io.delta.sql.DeltaSparkSessionExtension().apply(java.extensions())
        self._java = java.cloneSession()
        tasks = LISTING_TASKS * session.sparkContext.defaultParallelism
        for name, value in ((CATALOG, CATALOG_CLASS), (LISTING, str(tasks)), TIMES):
            self._java.conf().set(name, value)

    def existing(self, path: str) -> Existing | None:
        """The table at a path; None if there is none."""
        from pyspark.errors import AnalysisException
        from pyspark.sql.classic.dataframe import DataFrame
        from pyspark.sql.types import StructType

        from sidecar.spark.table.columns import generated

        try:
            columns = self._session.read.format("delta").load(path).schema
        except AnalysisException:
            return None
        found: Any = DataFrame(self._table(path).detail(), self._session).first()
        comments, fields = comments_of(columns.fields), fields_of(columns.json())
        written = self._snapshot(path).metadata().schemaString()
        own = StructType.fromJson(loads(written)).fields  # the schema of a read has all columns nullable
        constraints = constraints_of(found.properties, own) + generated(own)
        return Existing(
            found.partitionColumns, found.clusteringColumns, found.properties, comments, fields, path, constraints
        )  # fmt: skip

    def last(self, path: str, query: str) -> int | None:
        """The last micro-batch of a query, by its id, in the table; -1 for none, None if there is no table."""
        snapshot = self._snapshot(path)
        if snapshot.version() < 0:
            return None
        found = snapshot.transactions().get(query)
        return int(found.get()) if found.isDefined() else -1

    def ends(self, path: str) -> list[str]:
        """The oldest and the newest file of a table; empty if there are none."""
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.classic.dataframe import DataFrame

        snapshot = self._snapshot(path)
        if snapshot.version() < 0 or not snapshot.numOfFiles():
            return []
        files, place = DataFrame(snapshot.allFiles().toDF(), self._session), ("path", "modificationTime")
        return [f"{path}/{unquote(name)}" for name in files.agg(F.min_by(*place), F.max_by(*place)).first() or ()]

    def check_features(self, path: str) -> None:
        """Let Delta refuse a table with features that it does not write, before a commit does."""
        snapshot = self._snapshot(path)
        snapshot.deltaLog().protocolWrite(snapshot.protocol())

    def extend(self, path: str, frame: DataFrame) -> None:
        """Add the columns of a frame without rows to a table."""
        frame.write.format("delta").mode("append").option("mergeSchema", "true").save(path)

    def create(self, frame: DataFrame, path: str, plan: Plan) -> None:
        """Create an empty table with the columns of a frame, unless there is one."""
        from pyspark.errors import PySparkException

        builder = self._jvm.io.delta.tables.DeltaTable.createIfNotExists(self._java).location(path)
        builder = builder.addColumns(frame._jdf.schema().asNullable())
        if plan.layout.cluster_by:
            builder = builder.clusterBy(self._texts(plan.layout.cluster_by))
        elif plan.partitioned_by:
            builder = builder.partitionedBy(self._texts(plan.partitioned_by))
        for name, value in plan.layout.properties.items():
            builder = builder.property(name, value)
        try:
            builder.execute()
        except PySparkException as error:
            raise ConfigError(
                f"Delta does not create the table {path}: {cause_of(str(error))}",
                hint="See partition_by, cluster_by, columns and properties of spark.table and sink.delta",
            ) from error

    def steps(self, path: str) -> Mapping[str, Callable[[], object]]:
        """The operations on a table, for `Upkeep`."""
        return {
            "optimize": lambda: self._table(path).optimize().executeCompaction(),
            "vacuum": lambda: self._vacuum(path),
        }

    def _vacuum(self, path: str) -> None:
        """Delete files that left the table long ago; Delta uses the table's property, not a time given here."""
        found = self.existing(path)
        check_retention(found.properties if found else {})
        self._table(path).vacuum()

    def _snapshot(self, path: str) -> Any:
        """The newest version of a table; of version -1 if there is none."""
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(self._java, path)._2()

    def _table(self, path: str) -> Any:
        return self._jvm.io.delta.tables.DeltaTable.forPath(self._java, path)

    def _texts(self, texts: Sequence[str]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.String, len(texts))
        for place, text in enumerate(texts):
            array[place] = text
        return array


def appending(path: str, query_id: Future[str]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`: append a micro-batch, unless the table has it.

    A micro-batch is identified as in Delta's own sink, so that each may replace the other.

    Args:
        query_id: Set once the query has started.
    """

    def append(frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("delta").mode("append")
        writer.option("txnAppId", query_id.result(WAIT_S)).option("txnVersion", batch).save(path)

    return append


def replacing(path: str, query_id: Future[str]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`: merge a micro-batch by Spark's Delta, unless the table has it.

    Args:
        query_id: Set once the query has started.
    """

    def write(changes: DataFrame, batch: int) -> None:
        own = changes.sparkSession  # the query's own session, with its own settings
        there = own.read.format("delta").load(path).schema
        if gone := fields_of(changes.schema.json()) - fields_of(there.json()):
            raise dropped(path, gone, "spark.table.columns")
        own.conf.set(_APP, query_id.result(WAIT_S))  # Delta skips a transaction that the table has
        own.conf.set(_NUMBER, str(batch))
        jvm: Any = own._jvm
        # In SQL, MERGE would need Delta's extension, which can only be set before the session is created.
        table = jvm.io.delta.tables.DeltaTable.forPath(own._jsparkSession, path).alias("t")
        # With evolution, columns that the user added to the table stay as they are.
        builder = table.merge(last_of_each(changes).alias("s")._jdf, ON).withSchemaEvolution()
        builder.whenMatched(LATER).updateAll().whenNotMatched().insertAll().execute()

    return write
