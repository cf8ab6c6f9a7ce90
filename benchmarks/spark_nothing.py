"""A sink in Python that takes rows and does nothing. A module of its own: each Python that Spark starts imports it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Nothing(DataSource):
    """A sink that takes rows and does nothing."""

    @classmethod
    def name(cls) -> str:
        """As it is asked for."""
        return "nothing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NothingWriter:  # noqa: ARG002, N802  # Spark's name
        """Its writer."""
        return NothingWriter()


class NothingWriter(DataSourceStreamArrowWriter):
    """Takes the batches of a task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Do nothing with them."""
        for _ in iterator:
            pass
        return WriterCommitMessage()
