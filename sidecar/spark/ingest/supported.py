"""Settings of the ingest job: what it needs, and its names in the zone. Imports no Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from sidecar.config.document import KeyPath
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.config.table.layout import absolute
from sidecar.spark.table.keys import refused_keys
from sidecar.spark.table.targets import Target
from sidecar.zone.layout import safe


def consumer_of(checkpoint: str, target: Target) -> str:
    """The name in the zone of the query that fills a table.

    Args:
        checkpoint: Of the job. One name per checkpoint: rows that this one needs may already be removed under the name
            of an earlier one.
    """
    path = _place(target.path)
    digest = hashlib.blake2b(f"{_place(checkpoint)}\n{path}".encode(), digest_size=4).hexdigest()
    return f"ingest-{safe(path.rpartition('/')[2], 64)}-{digest}"


def _place(written: str) -> str:
    """The same text for each spelling of a path, or of a URL with and without a slash at its end."""
    return absolute(written).rstrip("/") or "/"


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
    elif settings.spark.table.path is None:
        yield ("spark", "table", "path"), "is missing: it is the folder of the table to fill"
    else:
        yield from refused_keys(settings, settings.spark.table.format, settings.spark.table.path)
