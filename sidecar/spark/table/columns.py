"""Rows of the zone as rows of the table, by native expressions. No row passes through Python."""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it
from pyspark.sql.types import DataType, StringType, StructField, StructType

from sidecar.errors import ConfigError
from sidecar.zone.layout import UNSAFE
from sidecar.zone.table import DATE, DATES_END_S, LABEL, LABEL_CHARS_MAX, LABEL_HASH

DATA: Final = "data"
"""Column of the parsed JSON; a struct, so that its names cannot collide with Sidecar's columns."""
REASON: Final = "reason"
_PARSED: Final = "_sidecar_parsed"
_CORRUPT: Final = "_sidecar_corrupt"


def with_partitions(frame: DataFrame) -> DataFrame:
    """Add the columns by which the table is partitioned: the same values as in `sidecar.zone.table`."""
    label = F.substring(F.regexp_replace("group", UNSAFE, "_"), 1, LABEL_CHARS_MAX)
    digest = F.substring(F.sha2(F.col("group").cast("binary"), 256), 1, LABEL_HASH)
    plain = (label == F.col("group")) & (label != "")
    seconds = F.unix_seconds("timestamp")
    day = F.floor(seconds / 86_400).cast("int")
    inside = (seconds >= 0) & (seconds < DATES_END_S)
    return frame.withColumn(LABEL, F.when(plain, label).otherwise(F.concat(label, F.lit("-"), digest))).withColumn(
        DATE, F.when(inside, F.date_from_unix_date(day))
    )


def schema_of(text: str) -> StructType:
    """Parse a schema, written as columns and types (`id bigint, amount double`) or as Spark's JSON.

    Raises:
        ConfigError: The text is no schema.
    """
    try:
        is_json = text.lstrip().startswith("{")
        parsed: DataType = StructType.fromJson(json.loads(text)) if is_json else StructType.fromDDL(text)
    except Exception as error:  # Spark raises a dozen kinds of errors for user input
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"spark.table.schema is not a schema: {said}",
            hint="Write columns and types, such as `id bigint, amount double`, or name a file that has them",
        ) from error
    if not isinstance(parsed, StructType):
        raise ConfigError(f"spark.table.schema: {text} is a single type; it must be columns with types")
    return parsed


def parsed(frame: DataFrame, schema: StructType) -> DataFrame:
    """Add the parsed JSON, for `fitting` and `rejected`."""
    wanted = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return frame.withColumn(_PARSED, F.from_json(text, wanted, options))


def fitting(frame: DataFrame, schema: StructType) -> DataFrame:
    """Rows whose value fits, and those without a value, with the column `data`."""
    fields = [F.col(f"{_PARSED}.`{field.name}`").alias(field.name) for field in schema.fields]
    data = F.when(F.col("value").isNotNull(), F.struct(*fields))
    return frame.where(_fits()).withColumn(DATA, data).drop(_PARSED)


def rejected(frame: DataFrame) -> DataFrame:
    """All other rows as they were landed, with a reason."""
    reason = F.when(_is_text(), "the value does not fit the schema").otherwise("the value is not UTF-8")
    return frame.where(~_fits()).withColumn(REASON, reason).drop(_PARSED)


def _fits() -> Column:
    """Whether a row fits; never null, since a row in neither set would be lost."""
    # Otherwise an array would be taken for its first element, and bytes that are not UTF-8 for question marks.
    is_object = F.ltrim(F.col("value").cast("string"), F.lit(" \t\r\n")).startswith("{")
    whole = F.col(_PARSED).isNotNull() & F.col(f"{_PARSED}.{_CORRUPT}").isNull()
    return F.col("value").isNull() | F.coalesce(_is_text() & is_object & whole, F.lit(False))  # noqa: FBT003


def _is_text() -> Column:
    return F.is_valid_utf8(F.col("value").cast("string"))
