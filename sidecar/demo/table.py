"""A separate process that reads the demo's table with Spark, and writes its rows as lines of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(table: str, out: str) -> None:
    """Read all rows.

    Args:
        table: The folder of the table.
        out: The file for partition, offset and value of each row.
    """
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = spark.read.parquet(table).selectExpr("partition", "offset", "cast(value as string)").toArrow()
    with Path(out).open("w") as file:
        for row in rows.to_pylist():
            file.write(f"{json.dumps(list(row.values()))}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
