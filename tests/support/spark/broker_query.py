"""A query from a broker to Parquet, with `read_kafka_stream`, as a process of its own that `ZoneQuery` starts."""

from __future__ import annotations

import json
import sys

MODULE = "tests.support.spark.broker_query"


def main(
    master: str, keys: str, checkpoint: str, table: str, once: str, max_offsets: str, function: str, state: str
) -> None:
    """Run the query.

    Args:
        master: Cores and attempts.
        keys: Those of the function, as JSON.
        checkpoint: Of the query.
        table: Where the rows go.
        once: Whether it ends when it has taken what is there.
        max_offsets: Limit of a micro-batch.
        function: Of `sidecar.spark`.
        state: The folder of ids.
    """
    from pyspark.sql import SparkSession

    import sidecar.spark

    spark = SparkSession.builder.master(master).getOrCreate()
    read = getattr(sidecar.spark, function)
    frame = read(spark, state=state, max_offsets=int(max_offsets), **json.loads(keys))
    stream = frame.writeStream.format("parquet").option("path", table).option("checkpointLocation", checkpoint)
    query = (stream.trigger(availableNow=True) if json.loads(once) else stream).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
