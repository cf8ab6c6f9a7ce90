"""Rows of the zone as rows of the table, by native expressions. No row passes through Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it
from pyspark.sql.types import DataType, StringType, StructField, StructType

from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.sinks.table.layout import Column as ColumnOf
from sidecar.spark.table.readers.types import outside, refuse_unlike
from sidecar.zone.layout import UNSAFE
from sidecar.zone.table import DATE, DATES_END_S, HOUR, LABEL, LABEL_CHARS_MAX, LABEL_HASH, LABELS

DATA: Final = "data"
"""Column of the parsed JSON; a struct, so that its names cannot collide with Sidecar's columns."""
REASON: Final = "reason"
PARSED: Final = "_sidecar_parsed"
"""Column of `parsed`, for as long as it is not decided where a row goes."""
_CORRUPT: Final = "_sidecar_corrupt"


def with_partitions(frame: DataFrame, names: Iterable[str] = (LABEL, DATE)) -> DataFrame:
    """Add those columns that the frame lacks, all of which follow from others; as `sidecar.zone.table` makes them."""
    for name in names:
        if name not in frame.columns:
            frame = frame.withColumn(name, _made(name))
    return frame


def _made(name: str) -> Column:
    if name in LABELS:
        return _label(F.col(LABELS[name]))
    seconds = F.unix_seconds("timestamp")
    inside = (seconds >= 0) & (seconds < DATES_END_S)
    if name == HOUR:
        return F.when(inside, F.floor(seconds / 3_600) % 24).cast("int")
    assert name == DATE, "there are no others"
    return F.when(inside, F.date_from_unix_date(F.floor(seconds / 86_400).cast("int")))


def _label(name: Column) -> Column:
    """Null for null."""
    label = F.substring(F.regexp_replace(name, UNSAFE, "_"), 1, LABEL_CHARS_MAX)
    digest = F.substring(F.sha2(name.cast("binary"), 256), 1, LABEL_HASH)
    return F.when((label == name) & (label != ""), label).otherwise(F.concat(label, F.lit("-"), digest))


def kept(frame: DataFrame, columns: Iterable[ColumnOf]) -> DataFrame:
    """These columns of the frame, fields of `data` included."""
    return frame.select(*[_source(column.source).alias(column.name) for column in columns])


def _source(source: str) -> Column:
    outer, dot, field = source.partition(".")
    return F.col(outer).getField(field) if dot else F.col(outer)


def schema_of(text: str) -> StructType:
    """Parse a schema, written as columns and types (`id bigint, amount double`) or as Spark's JSON.

    Raises:
        ConfigError: The text is no schema, or one with a type that some readers lack.
    """
    try:
        is_json = text.lstrip().startswith("{")
        parsed: DataType = StructType.fromJson(loads(text)) if is_json else StructType.fromDDL(text)
    except Exception as error:  # Spark raises a dozen kinds of errors for user input
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"spark.table.schema is not a schema: {said}",
            hint="Write columns and types, such as `id bigint, amount double`, or name a file that has them",
        ) from error
    if not isinstance(parsed, StructType):
        raise ConfigError(f"spark.table.schema: {text} is a single type; it must be columns with types")
    refuse_unlike(parsed)
    return parsed


def parsed(frame: DataFrame, schema: StructType) -> DataFrame:
    """Add the parsed JSON, for `fitting` and `rejected`."""
    wanted = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return frame.withColumn(PARSED, F.from_json(text, wanted, options))


def fitting(frame: DataFrame, schema: StructType | None, fault: Column) -> DataFrame:
    """Rows for the table, with the column `data`: those whose value fits or is missing, and that have no other fault.

    Args:
        frame: The rows; with a schema, those of `parsed`.
        schema: Of the values; None if they are not parsed.
        fault: The reason for which a row whose value fits is a reject nevertheless; null for the others.
    """
    if schema is None:
        return frame.where(fault.isNull())
    fields = [F.col(PARSED).getField(field.name).alias(field.name) for field in schema.fields]
    data = F.when(F.col("value").isNotNull(), F.struct(*fields))
    whole = _fits() & outside(F.col(PARSED), schema).isNull() & fault.isNull()
    return frame.where(whole).withColumn(DATA, data).drop(PARSED)


def rejected(frame: DataFrame, schema: StructType | None, fault: Column) -> DataFrame:
    """All other rows as they were landed, with a reason. For the arguments, see `fitting`."""
    reason = fault
    if schema is not None:
        misfit = F.when(_is_text(), "the value does not fit the schema").otherwise("the value is not UTF-8")
        reason = F.when(_fits(), F.coalesce(outside(F.col(PARSED), schema), fault)).otherwise(misfit)
    return frame.withColumn(REASON, reason).where(F.col(REASON).isNotNull()).drop(PARSED)


def _fits() -> Column:
    """Whether a row fits; never null, since a row in neither set would be lost."""
    # Otherwise an array would be taken for its first element, and bytes that are not UTF-8 for question marks.
    is_object = F.ltrim(F.col("value").cast("string"), F.lit(" \t\r\n")).startswith("{")
    whole = F.col(PARSED).isNotNull() & F.col(f"{PARSED}.{_CORRUPT}").isNull()
    return F.col("value").isNull() | F.coalesce(_is_text() & is_object & whole, F.lit(False))  # noqa: FBT003


def _is_text() -> Column:
    return F.is_valid_utf8(F.col("value").cast("string"))
