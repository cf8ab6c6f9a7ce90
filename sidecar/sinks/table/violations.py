"""The rows that violate constraints of a Delta table, found by deltalake's own SQL, as in its writer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from sidecar.errors import ConfigError
from sidecar.sinks.table.constraints import Constraint

INVALID: Final = "failed validation check"
"""Part of the error of a write with such rows. The error shows only some of the rows, and no name of a constraint."""
_NUMBER: Final = "sidecar_row"


def violated(rows: pa.Table, constraints: Sequence[Constraint]) -> dict[int, Constraint]:
    """The first constraint that each row violates, by the row's number.

    Args:
        rows: The rows, as they are written. Columns that constraints name are put into a temporary folder.

    Raises:
        DeltaError: A condition cannot be evaluated.
    """
    conditions = [constraint.condition('"') for constraint in constraints]
    if not conditions:
        return {}
    text = " ".join(conditions).casefold()
    named = [name for name in rows.column_names if name.casefold() in text]
    numbers = pa.array(range(rows.num_rows), pa.int64())
    numbered = pa.table({_NUMBER: numbers, **{name: rows.column(name) for name in named}})
    cases = " ".join(f"WHEN NOT coalesce(({sql}), false) THEN {i}" for i, sql in enumerate(conditions))
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        table = DeltaTable.create(folder, Schema.from_arrow(numbered.schema))
        if rows.num_rows:
            write_deltalake(table, numbered, mode="append")
        query = QueryBuilder().register("t", table)
        found = pa.table(query.execute(f"SELECT {_NUMBER} AS n, CASE {cases} END AS c FROM t").read_all())
    return {row["n"]: constraints[row["c"]] for row in found.to_pylist() if row["c"] is not None}


def refuse_unknown(rows: pa.Table, constraints: Sequence[Constraint], path: str) -> None:
    """Refuse a table with a constraint that deltalake cannot evaluate: it would refuse each row.

    Args:
        rows: An empty table with the columns.
        path: The table's path, for the error.

    Raises:
        ConfigError: The table has such a constraint.
    """
    for constraint in constraints:
        try:
            violated(rows, [constraint])
        except (DeltaError, ValueError) as error:
            raise ConfigError(
                f"the Delta table {path} has the constraint {constraint.name}, which deltalake cannot evaluate: "
                f"{' '.join(str(error).split())[:200]}",
                hint=f"Drop it in Spark: ALTER TABLE delta.`{path}` DROP CONSTRAINT {constraint.name.split()[0]}; or "
                "fill another table",
            ) from error
