"""The columns and partitions of a table, from the settings and the table that exists. Opens no table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import structlog

from sidecar.config.table_layout import ALL_DATA, COLUMNS, DATA, ROW, TableLayout
from sidecar.errors import ConfigError
from sidecar.zone.table import DATE, LABEL, PARTITIONS

ALL: Final = (*ROW, LABEL, DATE)
"""The columns of a table whose settings name none."""
PARTITIONS_MAX: Final = 200
"""Number of partitions in one addition from which small files are reported."""
FILE_ROWS_MIN: Final = 1_000
_START_OVER: Final = "or start over with another path of the table and, on Spark, another spark.checkpoint"

log = structlog.get_logger()


class Column(NamedTuple):
    """A column of a table: one of Sidecar's columns, `data`, or `data.FIELD`."""

    name: str
    source: str


def partitions_of(
    layout: TableLayout, default: Sequence[str], there: Sequence[str] | None, path: str
) -> tuple[str, ...]:
    """The columns by which a table is partitioned: those there, or of its settings, or the default."""
    wanted = None if layout.partition_by is None else tuple(PARTITIONS[word] for word in layout.partition_by)
    if wanted is None and layout.cluster_by:
        wanted = ()
    if there is None:
        return tuple(default) if wanted is None else wanted
    if wanted is not None and set(wanted) != set(there):
        key = "partition_by" if layout.partition_by is not None else "cluster_by"
        raise ConfigError(
            f"the table {path} is partitioned by {_listed(there)}, and {layout.place(key)} needs {_listed(wanted)}: "
            "the partitions of a Delta table cannot be changed",
            hint=f"Remove {layout.place(key)}; {_START_OVER}",
        )
    if unknown := [name for name in there if name not in COLUMNS]:
        raise ConfigError(
            f"the table {path} is partitioned by {_listed(unknown)}, which Sidecar does not write",
            hint="Use another path: the table is created there",
        )
    return tuple(there)


def columns_of(layout: TableLayout, partitioned_by: Sequence[str], fields: Sequence[str] | None) -> tuple[Column, ...]:
    """The columns of a table, including those by which it is partitioned; without fields, values are not parsed."""
    chosen = layout.columns or (*ALL, *(() if fields is None else (DATA,)))
    found: dict[str, tuple[Column, str]] = {}
    for column, place in _places(layout, chosen, partitioned_by, fields or ()):
        other, first = found.setdefault(column.name.casefold(), (column, place))
        if other != column or (column.source not in COLUMNS and first != place):
            raise ConfigError(
                f"two columns of the table would be called `{column.name}`: {first}, and {place}",
                hint="Leave one of them out, rename the field, or keep `data` as one column in place of `data.*`",
            )
    return tuple(column for column, _ in found.values())


def _places(
    layout: TableLayout, chosen: Sequence[str], partitioned_by: Sequence[str], fields: Sequence[str]
) -> Iterator[tuple[Column, str]]:
    """Each column with its place in the file."""
    for number, name in enumerate(chosen):
        place = layout.place("columns") + (f"[{number}]" if layout.columns else ", by default")
        if name != ALL_DATA:
            yield Column(name, name), place
            continue
        for index, field in enumerate(fields):
            text = f"field {index + 1} of spark.table.schema (`{field}`, by data.* in {place})"
            yield Column(field, f"{DATA}.{field}"), text
    for name in partitioned_by:
        yield Column(name, name), layout.place("partition_by") + ("" if layout.partition_by else ", by default")


def refuse_lost(before: Sequence[str], after: Sequence[str], key: str) -> None:
    """Refuse columns that are no longer written: rows of old and new settings could not be distinguished."""
    names = {name.casefold() for name in after}
    if lost := [name for name in before if name.casefold() not in names]:
        raise ConfigError(
            f"{key} leaves out {_listed(lost)}, which the table has: its rows would be null there from now on",
            hint=f"Columns may only be added. Keep these, and leave them out when you read; {_START_OVER}",
        )


def dropped(path: str, names: Collection[str], key: str) -> ConfigError:
    """The error of a table that lacks columns, or fields as `column.field`, which it had."""
    listed = _listed(sorted(name for name in names if name.rpartition(".")[0] not in names))
    leave = f"List the others in {key}" if {*names} <= {*COLUMNS} else "Start over with another path of the table"
    return ConfigError(
        f"the table {path} has lost {listed}: new rows would bring back what was dropped",
        hint=f"{leave}; or add it again, with ALTER TABLE ... ADD COLUMNS",
    )


class SmallFiles:
    """Logs once that writes make many small files: so many partitions cost far more than a table without them."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.reported = False

    def look(self, rows: int, files: int) -> None:
        """Look at a write of so many rows into so many files."""
        if not self.reported and files >= PARTITIONS_MAX and rows < files * FILE_ROWS_MIN:
            self.reported = True
            log.warning("table.small_files", table=self._table, rows=rows, files=files)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
