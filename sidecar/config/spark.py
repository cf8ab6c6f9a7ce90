"""Settings of the jobs that run on Spark. Imports no Spark."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from sidecar.config.base import Location, Model, Text
from sidecar.config.marks import OnSpark
from sidecar.config.sinks import NO_ICEBERG
from sidecar.config.units import Duration


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

    @field_validator("format", mode="before")
    @classmethod
    def _no_iceberg(cls, form: Any) -> Any:
        if form == "iceberg":
            raise ValueError(f"cannot be iceberg: {NO_ICEBERG}")
        return form


class Spark(Model):
    """What `sidecar spark ingest` and `sidecar spark run` need."""

    master: Annotated[Text | None, OnSpark("the Spark master")] = Field(
        default=None, description="Spark master, such as `local[*]`; omit it under `spark-submit`."
    )
    checkpoint: Annotated[Location, OnSpark("a path, relative to where the driver is started; a URL is refused")] = (
        Field(description="Checkpoint location: a path or URL, for one job only.")
    )
    reader: Annotated[Literal["connector", "client"], OnSpark("how Kafka is read; pinned")] = Field(
        default="connector",
        description="How `sidecar spark run` reads Kafka: through Spark's `connector`, or with the daemon's "
        "`client` in each task, which costs less. With `sink.delta` and `sink.parquet` it is always `client`.",
    )
    table: Annotated[Table | None, OnSpark("applies with sink.delta and sink.parquet; ignored otherwise")] = Field(
        default=None,
        description="The table that `sidecar spark ingest` fills, or `sidecar spark run` with `sink.delta` or "
        "`sink.parquet`.",
    )
