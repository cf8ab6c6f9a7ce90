"""A process of its own that has Spark read the demo's table, and writes what it found as lines of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(table: str, out: str) -> None:
    """Read all rows.

    Args:
        table: The folder of the table.
        out: Gets partition, offset and value of each row.
    """
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = spark.read.parquet(table).selectExpr("partition", "offset", "cast(value as string)").toArrow()
    with Path(out).open("w") as file:
        for row in rows.to_pylist():
            file.write(f"{json.dumps(list(row.values()))}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
