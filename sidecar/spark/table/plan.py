"""The plan of a query's table: its columns, partitions and clusters. Imports no Spark, and opens no table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from sidecar.config.document import KeyPath
from sidecar.config.model import Settings
from sidecar.config.spark import ONLY_DELTA, Merge, Table
from sidecar.config.table_layout import KEYS, TableLayout, layout_of, lies_in
from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.sinks.table.constraints import Constraint
from sidecar.sinks.table.layout import Column, columns_of, partitions_of

_ONLY_DELTA: Final = {
    "resume": "the log of Spark's file sink belongs to one checkpoint",
    "cluster_by": "Parquet has no clusters; use partition_by",
    "properties": "Parquet has no properties",
    "maintenance": "the log of Spark's file sink would not know about compacted or deleted files",
}


def table_layout(settings: Settings) -> TableLayout:
    """The layout of a job's table: the keys of `sink.delta`, and those of `spark.table` that `sink.delta` lacks."""
    table = (settings.spark.table if settings.spark else None) or Table()
    layout = layout_of(table, "spark.table")
    return layout_of(settings.sink.delta, "sink.delta", layout) if settings.sink.delta is not None else layout


def refused_keys(settings: Settings, form: Literal["delta", "parquet"], path: str) -> Iterator[tuple[KeyPath, str]]:
    """Keys that are refused, each with the reason."""
    assert settings.spark is not None, "checked before"
    table, of_sink = settings.spark.table or Table(), settings.sink.delta
    given = (KEYS | {"resume"}) & table.model_fields_set
    for key in sorted(given):
        if form == "parquet" and key in _ONLY_DELTA:
            yield ("spark", "table", key), f"needs a Delta table: {_ONLY_DELTA[key]}"
        elif of_sink is not None and key in of_sink.model_fields_set:
            yield ("spark", "table", key), f"conflicts with sink.delta.{key}: keep one of them"
    if of_sink is not None and of_sink.partition_by and table.cluster_by:
        yield ("spark", "table", "cluster_by"), "cannot be used with sink.delta.partition_by: keep one of them"
    if table.merge is not None and form != "delta":
        yield ("spark", "table", "merge"), f"needs a Delta table: {ONLY_DELTA}"
    layout = table_layout(settings)
    if table.merge is not None and layout.columns:
        yield ("spark", "table", "merge"), f"cannot be used with {layout.place('columns')}"
    if layout.maintenance.vacuum_ms is not None:
        place = (*layout.place("maintenance").split("."), "vacuum")
        folders = {"spark.checkpoint": settings.spark.checkpoint, "state.dir": str(settings.state.dir)}
        if settings.sink.spark is not None:
            folders["sink.spark.landing"] = str(settings.sink.spark.landing)
        for target in targets(settings.spark.checkpoint, path, table.schema_, table.merge):
            for key, folder in folders.items():
                if lies_in(folder, target.path):
                    text = f"which lies in the folder of the {target.name}: move one of them"
                    yield place, f"would delete files of {key}, {text}"


TABLE: Final = "table"
REJECTS: Final = "rejects"


@dataclass(frozen=True, slots=True)
class Target:
    """One query: rows of the source that go to one table.

    With a schema there are two, and the second takes the rows that do not fit. Each has its own checkpoint.
    """

    name: str
    path: str
    checkpoint: str


def targets(checkpoint: str, path: str, schema: str | None, merge: Merge | None) -> list[Target]:
    """The target of the table, and that of the rejects beside it.

    Args:
        checkpoint: The job's checkpoint; it contains those of the queries.
        schema: Schema of the JSON values, if they are parsed; a row that does not fit is a reject.
        merge: Rule by which rows replace others, if they do; a row without key or order is a reject.
    """
    chosen = [Target(TABLE, path, f"{checkpoint}/{TABLE}")]
    if schema is not None or merge is not None:
        chosen.append(Target(REJECTS, f"{path.rstrip('/')}-{REJECTS}", f"{checkpoint}/{REJECTS}"))
    return chosen


def schema_text(written: str) -> str:
    """The schema: the text itself if it contains a blank or a colon, otherwise the content of the file of this name."""
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


COMMENT: Final = "comment"
"""A column's comment in its metadata."""


class Existing(NamedTuple):
    """An existing Delta table.

    Args:
        comments: The comment of each column, empty if it has none.
        constraints: Conditions that its rows must fulfil.
    """

    partitioned_by: Sequence[str]
    clustered_by: Sequence[str]
    properties: Mapping[str, str | None]
    comments: Mapping[str, str]
    fields: frozenset[str] = frozenset()
    path: str = ""
    constraints: Sequence[Constraint] = ()


def comments_of(fields: Iterable[Any]) -> Mapping[str, str]:
    """The comments of fields, either Spark's or deltalake's."""
    return {field.name: str(field.metadata.get(COMMENT, "")) for field in fields}


def fields_of(schema: str) -> frozenset[str]:
    """The paths of all fields in a table's JSON schema of Spark or deltalake, at any depth, in lower case."""
    return frozenset(path.casefold() for path in _paths(loads(schema), ""))


def _paths(kind: Any, path: str) -> Iterator[str]:
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        name = f"{path}.{field['name']}" if path else field["name"]
        yield name
        yield from _paths(field["type"], name)
    for part in ("elementType", "keyType", "valueType"):
        yield from _paths(kind.get(part), f"{path}.{part}")


class Plan(NamedTuple):
    """The columns, partitions and clusters of a table."""

    partitioned_by: tuple[str, ...]
    columns: tuple[Column, ...]
    layout: TableLayout

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def plan_of(
    layout: TableLayout, default: Sequence[str], path: str, fields: Sequence[str] | None, existing: Existing | None
) -> Plan:
    """The plan of a table.

    Args:
        default: Columns by which a new table is partitioned if the settings name none.
        fields: The fields of the JSON values; None if the table has none of them.
    """
    partitioned_by = partitions_of(layout, default, existing and existing.partitioned_by, path)
    columns = columns_of(layout, partitioned_by, fields)
    if layout.cluster_by:
        _check_clusters(layout, {column.name.casefold() for column in columns}, path, existing)
    return Plan(partitioned_by, columns, layout)


def plan_of_rejects(layout: TableLayout, default: Sequence[str], path: str, existing: Existing | None) -> Plan:
    """The plan of a table of rejects, which has all columns of messages. For the arguments, see `plan_of`."""
    return plan_of(layout._replace(columns=None, cluster_by=None), default, path, None, existing)


def _check_clusters(layout: TableLayout, names: set[str], path: str, existing: Existing | None) -> None:
    wanted = layout.cluster_by or ()
    if missing := [name for name in wanted if name.partition(".")[0].casefold() not in names]:
        raise ConfigError(
            f"{layout.place('cluster_by')} has {', '.join(missing)}, which is not a column of the table",
            hint=f"Add it to {layout.place('columns')}, or cluster by one of {', '.join(sorted(names))}",
        )
    if existing is not None and list(existing.clustered_by) != list(wanted):
        raise ConfigError(
            f"the table {path} is clustered by {', '.join(existing.clustered_by) or 'nothing'}, and "
            f"{layout.place('cluster_by')} has {', '.join(wanted)}",
            hint=f"Run ALTER TABLE delta.`{path}` CLUSTER BY ({', '.join(wanted)}), or write the columns that it has",
        )
