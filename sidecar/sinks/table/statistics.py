"""Columns of which deltalake writes wrong statistics, so that readers that filter would pass over rows.

deltalake 1.6 writes decimals as doubles or, without a scale, as 64 bits, so that the lowest value of a file may be
above a value in it; and it ignores NaN, and writes null for infinity. A reader that filters by such a column skips the
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import structlog
from deltalake import DeltaTable

from sidecar.sinks.table.commits import sync_commit

PROPERTY: Final = "delta.dataSkippingStatsColumns"
"""Delta's property: the columns of which writers make statistics. With it, deltalake makes none of nested fields."""
EXACT_DIGITS: Final = 15
"""Limit of the digits of a decimal that a double represents exactly."""

log = structlog.get_logger()


def exact_statistics(columns: pa.Schema) -> Mapping[str, str]:
    """Properties that make the statistics of a table with these columns correct; none if all of them are."""
    if all(_is_exact(kind) for kind in _leaves(pa.struct(list(columns)))):
        return {}
    names = [field.name for field in columns if not pa.types.is_nested(field.type) and _is_exact(field.type)]
    return {PROPERTY: ",".join(name for name in names if re.fullmatch(r"\w+", name, re.ASCII))}


def keep_exact(table: DeltaTable, path: str, columns: pa.Schema) -> None:
    """Set these properties in a table that lacks them, before rows of these columns are added or moved.

    Args:
        table: The table; at its new version afterwards.
    """
    wanted = exact_statistics(columns)
    if wanted and PROPERTY not in table.metadata().configuration:
        table.alter.set_table_properties(dict(wanted))
        sync_commit(path, table.version())
        log.info("table.statistics_limited", table=path, columns=wanted[PROPERTY])


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if not kind.num_fields:
        yield kind
    for number in range(kind.num_fields):
        yield from _leaves(kind.field(number).type)


def _is_exact(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= EXACT_DIGITS)
    return not pa.types.is_floating(kind)
