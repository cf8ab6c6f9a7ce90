"""Settings of the jobs that run on Spark. Imports no Spark."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sidecar.config.base import Location, Model, Text
from sidecar.config.marks import OnSpark
from sidecar.config.units import Duration


class Table(Model):
    """The table that `sidecar spark ingest` fills."""

    path: Location = Field(description="Folder of the table: a path, or a URL that Spark can write to.")
    format: Literal["parquet", "delta"] = Field(default="parquet", description="Table format.")
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
        "`client` in each task, which costs less.",
    )
    table: Annotated[Table | None, OnSpark("ignored: it belongs to `sidecar spark ingest`")] = Field(
        default=None, description="The table that `sidecar spark ingest` fills."
    )
