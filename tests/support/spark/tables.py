"""`sidecar spark run` into tables: settings, and what the tables have beside what was produced. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from sidecar.spark.run.pinned import latest_batch
from tests.scenarios.exactly_once import configuration
from tests.scenarios.tables import compare
from tests.support.audit import Tally
from tests.support.delta import rows_of
from tests.support.kafka import Broker
from tests.support.spark.ingesting import sink_rows
from tests.support.workload import Expected

Kind = Literal["parquet", "delta", "deltalake"]
SCHEMA = "number bigint, text string"
"""What the values of a `Workload` are, but for the odd ones."""


def config(broker: Broker, topics: Sequence[str], folder: Path, kind: Kind, **table: Any) -> dict[str, Any]:
    """A new consumer group, five of eight tags, duplicates by id, and a table in the folder."""
    return configuration(broker, list(topics), "") | into(folder, kind, **table)


def into(folder: Path, kind: Kind, **table: Any) -> dict[str, Any]:
    """The sections for a table in the folder, and duplicates by id."""
    return {
        "dedup": {"by": {"header": "id"}, "as": "int"},
        "sink": {"parquet" if kind == "parquet" else "delta": {"path": str(folder / "table")}},
        "spark": {
            "checkpoint": str(folder / "checkpoint"),
            "table": {"every": "0ms"} | table,
        },
        "state": {"dir": str(folder / "spark-state")},
        "admin": {"listen": "off"},
    }


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, by its log; none if there is no table."""
    if (path / "_delta_log").is_dir():
        return rows_of(path)
    return list(sink_rows(path))


def tally(found: Iterable[dict[str, Any]], expected: Expected) -> Tally:
    """Rows against the first wanted message of each id, whole."""
    alive = expected.first_of_each_id()
    return compare(found, {place: expected.prints[place] for place in alive})


def forget_commits(checkpoint: Path) -> None:
    """Let Spark think that the last micro-batch of each query was cut short, though the table has it."""
    for query in ("table", "rejects"):
        commits = checkpoint / query / "commits"
        last = latest_batch(checkpoint / query, "commits")
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink()


def make_due(notes: Path) -> None:
    """Let all maintenance be due; Spark's checksum of the file goes."""
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.with_name(f".{notes.name}.crc").unlink(missing_ok=True)
    notes.write_text('{"optimize": 0, "vacuum": 0}')
