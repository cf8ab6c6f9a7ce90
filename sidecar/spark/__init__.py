"""Everything that needs pyspark: the daemon imports none of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read", "read_stream"]


def read_stream(
    spark: SparkSession,
    zone: Path | str,
    *,
    groups: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    consumer: str | None = None,
    dedup: bool = True,
    max_files: int | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    until: Mapping[str, int] | None = None,
    parallelism: int | None = None,
) -> DataFrame:
    """The rows of a landing zone as a stream, each once; the same as ``spark.readStream.format("sidecar")``.

    Args:
        spark: The session, classic or Connect.
        zone: A folder that driver and executors share; it may not exist yet.
        groups: Wanted tag groups; others are not read. None for all.
        columns: Wanted columns; others are not read. None for all.
        consumer: A name under which the query reports its progress. Without it retention does not know the query, and
            may remove data that it has not read once other consumers have. Two queries must never share a name, and a
            new checkpoint needs a new name.
        dedup: Whether messages that were landed again after a takeover are left out.
        max_files: Limit of batches in a micro-batch. Only one of the three limits may be given; 1,000 batches if none
            is.
        max_rows: Limit of rows in a micro-batch; a larger batch comes alone.
        max_bytes: Limit of file sizes in a micro-batch, in bytes; a larger batch comes alone.
        until: The last number to read of each writer; other writers are not read. None for all.
        parallelism: Limit of tasks in a micro-batch; None: by size and the driver's cores.
    """
    chosen = _options(groups, columns, dedup=dedup, parallelism=parallelism)
    more = {
        "consumer": consumer,
        "maxFilesPerTrigger": max_files,
        "maxRowsPerTrigger": max_rows,
        "maxBytesPerTrigger": max_bytes,
        "until": None if until is None else json.dumps(dict(until)),
    }
    chosen |= {name: str(value) for name, value in more.items() if value is not None}
    return spark.readStream.format("sidecar").options(**chosen).load(str(zone))


def read(
    spark: SparkSession,
    zone: Path | str,
    *,
    groups: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    dedup: bool = True,
    parallelism: int | None = None,
) -> DataFrame:
    """All present rows of a landing zone, each once; the same as ``spark.read.format("sidecar")``.

    Args:
        spark: The session, classic or Connect.
        zone: A folder that driver and executors share.
        groups: Wanted tag groups; others are not read. None for all.
        columns: Wanted columns; others are not read. None for all. To count rows, only `offset` is enough.
        dedup: Whether messages that were landed again after a takeover are left out.
        parallelism: Limit of tasks; None: by size and the driver's cores.
    """
    chosen = _options(groups, columns, dedup=dedup, parallelism=parallelism)
    return spark.read.format("sidecar").options(**chosen).load(str(zone))


def _options(
    groups: Sequence[str] | None, columns: Sequence[str] | None, *, dedup: bool, parallelism: int | None
) -> dict[str, str]:
    lists = {"groups": groups, "columns": columns}
    options = {name: json.dumps(list(names)) for name, names in lists.items() if names is not None}
    options["dedup"] = str(dedup).lower()
    return options | ({} if parallelism is None else {"parallelism": str(parallelism)})
