"""Merging of micro-batches into a Delta table by Spark's Delta."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from sidecar.spark.table.delta import WAIT_S
from sidecar.spark.table.merging import LATER, ON, last_of_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_APP: Final = "spark.databricks.delta.write.txnAppId"
_NUMBER: Final = "spark.databricks.delta.write.txnVersion"


def replacing(path: str, query_id: Future[str]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`: merge a micro-batch by Spark's Delta, unless the table has it.

    Args:
        path: The table, which exists.
        query_id: Set once the query has started.
    """

    def write(changes: DataFrame, batch: int) -> None:
        own = changes.sparkSession  # that of the query alone, and so are its settings
        own.conf.set(_APP, query_id.result(WAIT_S))  # Delta leaves out a transaction that the table has
        own.conf.set(_NUMBER, str(batch))
        jvm: Any = own._jvm
        # In SQL, MERGE would need Delta's extension, which can only be set before the session is created.
        table = jvm.io.delta.tables.DeltaTable.forPath(own._jsparkSession, path).alias("t")
        builder = table.merge(last_of_each(changes).alias("s")._jdf, ON).withSchemaEvolution()
        builder.whenMatched(LATER).updateAll().whenNotMatched().insertAll().execute()

    return write
