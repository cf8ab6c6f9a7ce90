"""Settings of the jobs that run on Spark. Imports no Spark."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator

from sidecar.config.base import KeyKind, Location, Model, OnSpark, Text, problem
from sidecar.config.sinks import NO_ICEBERG
from sidecar.config.table_layout import (
    ALL_DATA,
    COLUMNS_KEPT,
    DATA,
    MAINTENANCE,
    PARTITION_BY,
    PROPERTIES,
    ClusterBy,
    Maintenance,
    PartitionBy,
    Properties,
    TableColumns,
)
from sidecar.config.units import Duration
from sidecar.core.messages.fields import parse_json_path

MESSAGE_KEY = "key"
MESSAGE_TIME = "timestamp"
Resume: TypeAlias = Literal["stop", "from_table", "from_table_without_ids", "beside"]
ONLY_DELTA = "rows of a Parquet table cannot be replaced"


def _word_or_path(word: str) -> AfterValidator:
    def check(text: str) -> str:
        if text != word:
            if not text.startswith("$"):
                raise ValueError(f"needs {word}, or a path into the JSON value such as $.id")
            parse_json_path(text)
        return text

    return AfterValidator(check)


class Merge(Model):
    """One row for each key: its last change."""

    key: Annotated[Text, KeyKind("word or JSON path"), _word_or_path(MESSAGE_KEY)] = Field(
        description="Identity of a row: `key`, the message's key, or a path into the JSON value, such as `$.id`, "
        "to a field of `schema`."
    )
    order_by: Annotated[Text, KeyKind("word or JSON path"), _word_or_path(MESSAGE_TIME)] = Field(
        default=MESSAGE_TIME,
        description="Which change of a key is the last one: the highest `timestamp` of the message, or the highest "
        "value at a path into the JSON value; of equal ones, the highest topic, partition and offset.",
    )
    delete_when: Annotated[Text | None, KeyKind("SQL expression")] = Field(
        default=None,
        description="Condition in Spark's SQL on the columns of the table, such as `value IS NULL` or "
        "`data.op = 'd'`. A change for which it is true sets the column `deleted` of the row.",
    )

    @property
    def paths(self) -> dict[str, str]:
        """The paths into the JSON value, by the name of their key."""
        return {name: text for name in ("key", "order_by") if (text := getattr(self, name)).startswith("$")}


class Table(Model):
    """The table that `sidecar spark ingest` fills, or `sidecar spark run` with a sink that is a table."""

    path: Annotated[Location | None, OnSpark("refused: the path is that of the sink")] = Field(
        default=None,
        description="Folder of the table that `sidecar spark ingest` fills: a path, or a URL that Spark can write to.",
    )
    format: Annotated[Literal["parquet", "delta"], OnSpark("refused: the sink is the format")] = Field(
        default="parquet", description="Format of the table that `sidecar spark ingest` fills."
    )
    schema_: Text | None = Field(
        default=None,
        alias="schema",
        description="Columns of JSON values, such as `id bigint, amount double`, or a file with them. Rows that do "
        "not fit go to `PATH-rejects`.",
    )
    every_ms: Annotated[int, Duration("0ms", "1d")] = Field(
        default=10_000,
        alias="every",
        description="Shortest interval between additions of rows; a longer one makes fewer and larger files.",
    )
    partition_by: PartitionBy | None = Field(
        default=None,
        description=f"{PARTITION_BY}By default `[group, date]` for `sidecar spark ingest`, `[date]` for `sidecar spark "
        "run`, and `none` with `cluster_by` or `merge`; a Delta table that exists keeps its own.",
    )
    cluster_by: Annotated[ClusterBy | None, OnSpark("applies with sink.delta, if Spark has Delta's jars")] = Field(
        default=None,
        description="Columns by which `OPTIMIZE` of Spark's Delta clusters the table (liquid clustering), in place of "
        "partitions.",
    )
    columns: TableColumns | None = Field(
        default=None,
        description=f"{COLUMNS_KEPT}`data` is the JSON value as one column, and `data.*` each of its fields.",
    )
    properties: Annotated[Properties, OnSpark("applies with sink.delta")] = Field(default={}, description=PROPERTIES)
    maintenance: Annotated[Maintenance, OnSpark("applies with sink.delta, between micro-batches")] = Field(
        default=Maintenance(), description=MAINTENANCE
    )
    merge: Annotated[Merge | None, OnSpark("applies with sink.delta; refused with sink.parquet")] = Field(
        default=None, description="Replaces rows by key in a Delta table instead of appending them."
    )
    resume: Annotated[Resume, OnSpark("applies with sink.delta; refused with sink.parquet")] = Field(
        default="stop",
        description="Behavior if `checkpoint` is new, and a Delta table has the same messages from another one: "
        "`stop`; go on where they end, `from_table`, with message ids if the folder `sidecar` of that checkpoint is in "
        "the new one, and `from_table_without_ids` without them; or append all of them again, `beside`.",
    )

    @field_validator("columns")
    @classmethod
    def _has_data(cls, columns: list[str] | None, info: ValidationInfo) -> list[str] | None:
        missing = {DATA, ALL_DATA}.intersection(columns or ())
        if missing and info.data.get("schema_", "") is None:
            raise ValueError(f"has {min(missing)}, which needs spark.table.schema")
        return columns

    @field_validator("merge")
    @classmethod
    def _keeps_all(cls, merge: Merge | None, info: ValidationInfo) -> Merge | None:
        if merge is not None and info.data.get("columns"):
            raise ValueError(
                "cannot be used with spark.table.columns: a change is compared with the row by its columns"
            )
        return merge

    @field_validator("cluster_by")
    @classmethod
    def _not_partitioned(cls, names: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if names and info.data.get("partition_by"):
            raise ValueError("cannot be used with spark.table.partition_by: Delta clusters tables without partitions")
        return names

    @field_validator("format", mode="before")
    @classmethod
    def _no_iceberg(cls, form: Any) -> Any:
        if form == "iceberg":
            raise ValueError(f"cannot be iceberg: {NO_ICEBERG}")
        return form

    @field_validator("merge")
    @classmethod
    def _paths_have_types(cls, merge: Merge | None, info: ValidationInfo) -> Merge | None:
        if merge is not None and info.data.get("schema_", "") is None:
            text = "needs spark.table.schema, which gives its field a type"
            errors = [problem(text, path, name) for name, path in merge.paths.items()]
            if errors:
                raise ValidationError.from_exception_data("merge", errors)
        return merge


class Spark(Model):
    """What `sidecar spark ingest` and `sidecar spark run` need."""

    master: Annotated[Text | None, OnSpark("the Spark master")] = Field(
        default=None, description="Spark master, such as `local[*]`; omit it under `spark-submit`."
    )
    checkpoint: Annotated[Location, OnSpark("a path, relative to where the driver is started; a URL is refused")] = (
        Field(description="Checkpoint location: a path or URL, for one job only.")
    )
    reader: Annotated[
        Literal["connector", "client"], OnSpark("how Kafka is read; pinned. For RocketMQ, `connector` is refused")
    ] = Field(
        default="connector",
        description="How `sidecar spark run` reads Kafka: through Spark's `connector`, or with the daemon's "
        "`client` in each task, which costs less. With RocketMQ, `sink.delta` and `sink.parquet` it is always "
        "`client`.",
    )
    on_gap: Annotated[
        Literal["stop", "log_start"], OnSpark("handling of a partition whose next messages the broker has deleted")
    ] = Field(
        default="stop",
        description="Behavior of `sidecar spark run` if messages expired before they were read: `stop` ends it with "
        "exit code 78; `log_start` leaves them out, logs and counts them, and resumes at the start of the log.",
    )
    table: Annotated[Table | None, OnSpark("applies with sink.delta and sink.parquet; ignored otherwise")] = Field(
        default=None,
        description="The table that `sidecar spark ingest` fills, or `sidecar spark run` with `sink.delta` or "
        "`sink.parquet`.",
    )
