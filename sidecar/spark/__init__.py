"""Everything that needs pyspark: none of it is imported by the daemon, and nothing here is needed to run one."""

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
        zone: A folder that driver and executors share; it may be missing still.
        groups: Tag groups that are wanted; others are not read. All when None.
        columns: Columns that are wanted; others are not read. All when None.
        consumer: A name under which the query tells how far it has read. Without it retention does not know of the
            query, and may remove what it has not read once other consumers have. Two queries never share one, and a new
            checkpoint wants a new one.
        dedup: Whether messages that were landed again after a takeover are left out.
        max_files: Batches of a micro-batch at most. Of the three bounds one may be given; 1,000 batches when none is.
        max_rows: Rows of a micro-batch at most; a larger batch comes alone.
        max_bytes: Bytes of files of a micro-batch at most; a larger one comes alone.
        until: Of each writer the last number that is taken; others are not read. All when None.
        parallelism: Tasks of a micro-batch at most; by size and the driver's cores when None.
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
    """All rows of a landing zone as of now, each once; the same as ``spark.read.format("sidecar")``.

    Args:
        spark: The session, classic or Connect.
        zone: A folder that driver and executors share.
        groups: Tag groups that are wanted; others are not read. All when None.
        columns: Columns that are wanted; others are not read. All when None. To count rows, ask for `offset` alone.
        dedup: Whether messages that were landed again after a takeover are left out.
        parallelism: Tasks at most; by size and the driver's cores when None.
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
