"""What the ingest job needs of the settings: where from, where to, under which names. No Spark is imported."""

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

    A schema makes two of them, and the second one takes what does not fit. Each has a checkpoint of its own, and is a
    consumer of its own in the zone.
    """

    name: str
    path: str
    checkpoint: str
    consumer: str


def targets(spark: Spark, table: Table) -> list[Target]:
    """The table, and with a schema the one for what does not fit, beside it."""
    chosen = [_target(spark, TABLE, table.path, f"{spark.checkpoint}/{TABLE}")]
    if table.schema_ is not None:
        path = f"{table.path.rstrip('/')}-{REJECTS}"
        chosen.append(_target(spark, REJECTS, path, f"{spark.checkpoint}/{REJECTS}"))
    return chosen


def _target(spark: Spark, name: str, path: str, checkpoint: str) -> Target:
    # One name for one checkpoint: under the name of an earlier one, rows that this one needs may be gone by now.
    digest = hashlib.blake2b(f"{spark.checkpoint}\n{path}".encode(), digest_size=4).hexdigest()
    label = safe(path.rstrip("/").rpartition("/")[2], 64)
    return Target(name, path, checkpoint, f"ingest-{label}-{digest}")


def schema_text(written: str) -> str:
    """The schema itself: what is written when a blank or a colon is in it, else what the file of that name has.

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
    """The settings in a file that has all that the job needs.

    Raises:
        ConfigError: The file cannot be used, or something is missing: with its line.
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
