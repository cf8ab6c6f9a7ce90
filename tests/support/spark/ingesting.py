"""A landing zone to ingest, settings for the job, and what its table has. Starts no Spark."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from sidecar.config.model import Settings
from sidecar.core.parts import Batch
from sidecar.zone import acknowledged
from sidecar.zone.table import label_of
from tests.support.delta import rows_of
from tests.support.landing import entries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Value = tuple[str, int, bytes | None, bytes | None]
"""Group, offset, key and value."""


def config(folder: Path, **table: Any) -> dict[str, Any]:
    """A configuration whose zone, table and checkpoint are in a folder."""
    return {
        "source": {"kafka": {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["orders"]}},
        "sink": {"spark": {"landing": str(folder / "zone")}},
        "spark": {
            "checkpoint": str(folder / "checkpoint"),
            "table": {"path": str(folder / "table"), "every": "0ms"} | table,
        },
        "state": {"dir": str(folder / "state")},
        "admin": {"listen": "off"},
    }


def settings(folder: Path, **table: Any) -> Settings:
    """The same, read."""
    return Settings.model_validate(config(folder, **table))


def wanted(batches: Iterable[Batch]) -> Counter[Value]:
    """What a table of these batches has; one that stands there twice was landed twice."""
    from sidecar.zone.columns import record_batches

    found = {(part.group, part.name): part for batch in batches for part in batch.parts}
    tables = [record_batches([part], writer="", sequence=0, batch_id="") for part in found.values()]
    return Counter(_value(row) for table in itertools.chain(*tables) for row in table.to_pylist())


def _value(row: Any) -> Value:
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
    return row["group"], row["offset"], key, value


def there(path: Path) -> Counter[Value]:
    """What a table has, read without Spark: by Delta's log, or by that of Spark's file sink."""
    if (path / "_delta_log").is_dir():
        return Counter(map(_value, rows_of(path)))
    return Counter(map(_value, sink_rows(path)))


def sink_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table of Spark's file sink, by its log."""
    for name in {name for log in (path / "_spark_metadata").glob("[0-9]*") for name in _added(log)}:
        yield from pq.ParquetFile(name).read().to_pylist()


def _added(log: Path) -> list[str]:
    entries = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert all(entry["action"] == "add" for entry in entries)
    return [unquote(urlsplit(entry["path"]).path) for entry in entries]


def in_frame(frame: DataFrame) -> Counter[Value]:
    """What a frame has; each row lies under its own label."""
    rows = frame.select("group", "offset", "key", "value", "group_label").collect()
    assert all(str(row["group_label"]) == label_of(row["group"]) for row in rows)
    return Counter(map(_value, rows))


def is_acknowledged(folder: Path) -> bool:
    """Whether all consumers of the zone have read all of it."""
    heads: dict[str, int] = {}
    for entry in entries(folder / "zone"):
        heads[entry.writer] = max(entry.seq, heads.get(entry.writer, -1))
    read = acknowledged(folder / "zone")
    return bool(read) and all(one == heads for one in read.values())
