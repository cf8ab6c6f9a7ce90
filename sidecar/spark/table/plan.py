"""How the table of a query is made: its columns, partitions and clusters. Imports no Spark, and opens no table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sidecar.config.table.layout import TableLayout
from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.sinks.table.constraints import Constraint
from sidecar.sinks.table.layout import Column, columns_of, partitions_of

COMMENT: Final = "comment"
"""A column's comment in its metadata."""


class Existing(NamedTuple):
    """A Delta table that exists.

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
    """The comments of fields, be they Spark's or deltalake's."""
    return {field.name: str(field.metadata.get(COMMENT, "")) for field in fields}


def fields_of(schema: str) -> frozenset[str]:
    """The paths of all fields of a table, at any depth, in lower case.

    Args:
        schema: Its schema as JSON, be it Spark's or deltalake's.
    """
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
    """How a table is made."""

    partitioned_by: tuple[str, ...]
    columns: tuple[Column, ...]
    layout: TableLayout

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]


def plan_of(
    layout: TableLayout, default: Sequence[str], path: str, fields: Sequence[str] | None, existing: Existing | None
) -> Plan:
    """The plan of a table.

    Args:
        default: Columns by which a new table is partitioned if the settings do not say.
        path: Of the table, for errors.
        fields: The fields of the JSON values; None if the table has none of them.
        existing: The table, if it is one of Delta that exists.

    Raises:
        ConfigError: The settings contradict themselves or the table.
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
