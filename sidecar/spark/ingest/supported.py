"""Settings of the ingest job: source, tables, and names. Imports no Spark."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.config.file.document import KeyPath
from sidecar.config.file.loader import load
from sidecar.config.model import Settings
from sidecar.config.spark import Spark, Table
from sidecar.errors import ConfigError
from sidecar.zone.layout import safe

TABLE: Final = "table"
REJECTS: Final = "rejects"


@dataclass(frozen=True, slots=True)
class Target:
    """One query: rows of the zone that go to one table.

    With a schema there are two, and the second takes the rows that do not fit. Each has its own checkpoint, and is its
    own consumer in the zone.
    """

    name: str
    path: str
    checkpoint: str
    consumer: str


def targets(spark: Spark, table: Table) -> list[Target]:
    """The target of the table, and with a schema that of the rejects, beside it."""
    chosen = [_target(spark, TABLE, table.path, f"{spark.checkpoint}/{TABLE}")]
    if table.schema_ is not None:
        path = f"{table.path.rstrip('/')}-{REJECTS}"
        chosen.append(_target(spark, REJECTS, path, f"{spark.checkpoint}/{REJECTS}"))
    return chosen


def _target(spark: Spark, name: str, path: str, checkpoint: str) -> Target:
    # One name per checkpoint: rows that this one needs may already be removed under the name of an earlier one.
    digest = hashlib.blake2b(f"{spark.checkpoint}\n{path}".encode(), digest_size=4).hexdigest()
    label = safe(path.rstrip("/").rpartition("/")[2], 64)
    return Target(name, path, checkpoint, f"ingest-{label}-{digest}")


def schema_text(written: str) -> str:
    """The schema: the text itself if it contains a blank or a colon, otherwise the content of that file.

    Raises:
        ConfigError: There is no such file.
    """
    if re.search(r"[\s:]", written):
        return written
    try:
        return Path(written).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"spark.table.schema: cannot read {written}: {reason}",
            hint="Name a file, or write columns and types, such as `id bigint, amount double`",
        ) from error


def load_for_ingest(path: str | Path) -> Settings:
    """Load the settings of a file that has everything the job needs.

    Raises:
        ConfigError: The file cannot be used, or something is missing, with its line.
    """
    return load(path, refusals=_missing)


def _missing(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    if settings.sink.spark is None:
        yield ("sink", "spark"), "is missing: sink.spark.landing is the zone to fill the table from"
    if settings.spark is None:
        text = "is missing: spark.checkpoint is where the query keeps its progress, spark.table is the table to fill"
        yield ("spark",), text
    elif settings.spark.table is None:
        yield ("spark", "table"), "is missing: it is the table to fill"
