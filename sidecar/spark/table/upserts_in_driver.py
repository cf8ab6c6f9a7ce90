"""The rows of a micro-batch as Arrow, and their merging into a Delta table by deltalake. It needs deltalake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa

from sidecar.spark.table.merging import LATER, ON, last_of_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_of(frame: DataFrame) -> pa.Table:
    """The last change of each key in a micro-batch, with times in UTC, as Delta has them."""
    rows = last_of_each(frame).toArrow()
    return rows.cast(pa.schema(deltalake.Schema.from_arrow(rows.schema).to_arrow()))


def columns_of(rows: pa.Table, frame: DataFrame) -> deltalake.Schema:
    """Columns for a new table of these rows, with the comments of the frame, which Arrow does not have."""
    return deltalake.Schema(
        [
            deltalake.Field(field.name, field.type, nullable=field.nullable, metadata=frame.schema[field.name].metadata)
            for field in deltalake.Schema.from_arrow(rows.schema).fields
        ]
    )


def merge(table: deltalake.DeltaTable, rows: pa.Table, properties: deltalake.CommitProperties) -> None:
    """Merge the rows of one micro-batch by deltalake.

    Args:
        table: The table; it has all of their columns.
    """
    merger = table.merge(rows, ON, "s", "t", commit_properties=properties)
    merger.when_matched_update_all(LATER).when_not_matched_insert_all().execute()
