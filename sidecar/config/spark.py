"""The settings of the jobs that run on Spark. No Spark may come in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sidecar.config.base import Location, Model, Text
from sidecar.config.units import Duration


class Table(Model):
    """The table that `sidecar spark ingest` fills."""

    path: Location = Field(description="Its folder: a path, or a URL that Spark can write to.")
    format: Literal["parquet", "delta"] = Field(default="parquet", description="What the table is made of.")
    schema_: Text | None = Field(
        default=None,
        alias="schema",
        description="What JSON values have, as `id bigint, amount double` or a file with that; rows that do not fit go "
        "to `PATH-rejects`.",
    )
    every_ms: Annotated[int, Duration("0ms", "1d")] = Field(
        default=10_000,
        alias="every",
        description="How often rows are added, at most: the longer, the fewer and the larger the files.",
    )


class Spark(Model):
    """What `sidecar spark ingest` and `sidecar spark run` need."""

    master: Text | None = Field(
        default=None, description="Where Spark runs, such as `local[*]`; left out under `spark-submit`."
    )
    checkpoint: Location = Field(description="Where Spark keeps how far it came: a path or a URL, of one job alone.")
    reader: Literal["connector", "client"] = Field(
        default="connector",
        description="Who reads Kafka for `sidecar spark run`: Spark's connector, or each task for itself by the "
        "daemon's client, which costs less.",
    )
    table: Table | None = Field(default=None, description="The table that `sidecar spark ingest` fills.")
