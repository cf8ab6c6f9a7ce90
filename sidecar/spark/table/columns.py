"""Rows of the zone as rows of the table, by native expressions. No row passes through Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.sinks.table.constraints import SQL_CHARS_MAX, Constraint
from sidecar.sinks.table.layout import Column as ColumnOf
from sidecar.zone.layout import UNSAFE
from sidecar.zone.table import DATE, DATES_END_S, HOUR, LABEL, LABEL_CHARS_MAX, LABEL_HASH, LABELS

_SCALARS: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType,
    TimestampNTZType, TimestampType,
)  # fmt: skip
_LIMITS: Final[Mapping[type[DataType], tuple[str, str]]] = {
    DateType: ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    TimestampType: ("TIMESTAMP'0001-01-01T00:00:00Z'", "TIMESTAMP'9999-12-31T23:59:59.999999Z'"),
    TimestampNTZType: ("TIMESTAMP_NTZ'0001-01-01T00:00:00'", "TIMESTAMP_NTZ'9999-12-31T23:59:59.999999'"),
}
"""First and last value in `YEARS` by type, in Spark's SQL."""
YEARS: Final = "the years 1 to 9999"
"""The range of other programs: Python and SQL have no other years, and Delta's log no text for them."""


def refuse_unlike(schema: StructType) -> None:
    """Refuse a schema with a type that some writer or reader of tables lacks."""
    for path, kind in _unlike("", schema):
        raise ConfigError(
            f"spark.table.schema: {path or 'it'} is of the type {kind.simpleString()}, which some writer or reader of "
            "tables lacks",
            hint="Use string, binary, boolean, a number, date, timestamp, timestamp_ntz, array, map<string, …> or "
            "struct; a field of the type string takes any JSON value as it is written",
        )


def _unlike(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    match kind:
        case StructType():
            if not kind.fields:
                yield path, kind
            for field in kind.fields:
                yield from _unlike(f"{path}.{field.name}" if path else field.name, field.dataType)
        case ArrayType():
            yield from _unlike(f"{path}.element", kind.elementType)
        case MapType():
            if kind.keyType != StringType():
                yield f"{path}.key", kind.keyType
            yield from _unlike(f"{path}.value", kind.valueType)
        case _:
            if not isinstance(kind, _SCALARS) and kind != StringType():
                yield path, kind


def outside(value: Column, schema: StructType) -> Column:
    """The reason for which a value is outside of `YEARS`, with the field of the date or time; null if it is inside."""
    found = F.lit(None)
    for field in reversed(schema.fields):
        if _has_times(field.dataType):
            is_outside = _is_outside(value.getField(field.name), field.dataType)
            found = F.when(is_outside, F.lit(f"a time in {field.name} is outside of {YEARS}")).otherwise(found)
    return found


def _has_times(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_times(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_times(kind.elementType)
        case MapType():
            return _has_times(kind.valueType)
    return type(kind) in _LIMITS


def _is_outside(value: Column, kind: DataType) -> Column:
    """Whether a value has a time outside of `YEARS`, at any depth; never null."""
    match kind:
        case StructType():
            fields = [field for field in kind.fields if _has_times(field.dataType)]
            return reduce(or_, (_is_outside(value.getField(field.name), field.dataType) for field in fields))
        case ArrayType():
            found = F.exists(value, lambda one: _is_outside(one, kind.elementType))
        case MapType():
            found = F.exists(F.map_values(value), lambda one: _is_outside(one, kind.valueType))
        case _:
            first, last = map(F.expr, _LIMITS[type(kind)])
            found = (value < first) | (value > last)
    return F.coalesce(found, F.lit(False))  # noqa: FBT003


DATA: Final = "data"
"""Column of the parsed JSON; a struct, so that its names cannot collide with Sidecar's columns."""
REASON: Final = "reason"
PARSED: Final = "_sidecar_parsed"
"""Column of `parsed`, until it is decided where a row goes."""
_CORRUPT: Final = "_sidecar_corrupt"
RAW: Final = "_sidecar_raw"
"""Column of a row as it was read, beside the columns that the table would get from it."""
_QUOTE: Final = "`"


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
    """Parse a schema, written as columns and types (`id bigint, amount double`) or as Spark's JSON."""
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
        schema: Schema of the values; None if they are not parsed.
        fault: The reason to reject a row whose value fits; null if there is none.
    """
    if schema is None:
        return frame.where(fault.isNull())
    whole = _fits() & outside(F.col(PARSED), schema).isNull() & fault.isNull()
    return with_data(frame.where(whole), schema)


def with_data(frame: DataFrame, schema: StructType | None) -> DataFrame:
    """Add the column `data` in place of `PARSED`; without a schema, nothing."""
    if schema is None:
        return frame
    fields = [F.col(PARSED).getField(field.name).alias(field.name) for field in schema.fields]
    return frame.withColumn(DATA, F.when(F.col("value").isNotNull(), F.struct(*fields))).drop(PARSED)


def rejected(frame: DataFrame, schema: StructType | None, fault: Column) -> DataFrame:
    """All other rows as they were landed, with a reason. For the arguments, see `fitting`."""
    return frame.withColumn(REASON, misfit(schema, fault)).where(F.col(REASON).isNotNull()).drop(PARSED)


def misfit(schema: StructType | None, fault: Column) -> Column:
    """The reason for which a row is a reject; null if it is not. For the arguments, see `fitting`."""
    if schema is None:
        return fault
    unlike = F.when(_is_text(), "the value does not fit the schema").otherwise("the value is not UTF-8")
    return F.when(_fits(), F.coalesce(outside(F.col(PARSED), schema), fault)).otherwise(unlike)


def _fits() -> Column:
    """Whether a row fits; never null, since a row in neither set would be lost."""
    # Otherwise the parser would use an array's first element, and question marks for bytes that are not UTF-8.
    is_object = F.ltrim(F.col("value").cast("string"), F.lit(" \t\r\n")).startswith("{")
    whole = F.col(PARSED).isNotNull() & F.col(f"{PARSED}.{_CORRUPT}").isNull()
    return F.col("value").isNull() | F.coalesce(_is_text() & is_object & whole, F.lit(False))  # noqa: FBT003


def _is_text() -> Column:
    return F.is_valid_utf8(F.col("value").cast("string"))


# Constraints of the table


def generated(fields: Iterable[StructField]) -> list[Constraint]:
    """Columns that the table computes: a row with another value in one violates it."""
    found = ((field.name, str(field.metadata.get("delta.generationExpression", ""))) for field in fields)
    return [
        Constraint(f"generated column {name} ({sql[:SQL_CHARS_MAX]})", f"{{}} <=> ({sql})", name)
        for name, sql in found
        if sql and "{" not in sql
    ]


def violation(constraints: Sequence[Constraint]) -> Column:
    """The reason of the first constraint that a row of the table violates; null if it violates none."""
    reason = F.lit(None).cast("string")
    for constraint in reversed(constraints):
        holds = F.coalesce(F.expr(constraint.condition(_QUOTE)), F.lit(False))  # noqa: FBT003
        reason = F.when(~holds, constraint.reason).otherwise(reason)
    return reason


def refuse_unresolved(frame: DataFrame, constraints: Sequence[Constraint], path: str) -> None:
    """Refuse a table with a constraint on columns that are not written, or that is no condition."""
    for constraint in constraints:
        try:
            _ = frame.where(F.expr(constraint.condition(_QUOTE))).schema
        except (AnalysisException, ParseException) as error:
            said = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"the table {path} has the constraint {constraint.name}, which no row that this job writes fulfils: "
                f"{said}",
                hint="Drop it (ALTER TABLE ... DROP CONSTRAINT, or ALTER COLUMN ... DROP NOT NULL), or fill another "
                "table",
            ) from error


def rejected_too(
    frame: DataFrame, reason: Column, rows: Callable[[DataFrame], DataFrame], constraints: Sequence[Constraint]
) -> DataFrame:
    """The rows that are rejects for a reason of their own, or because the table would refuse them.

    Args:
        frame: The rows as they were read; with a schema, those of `parsed`.
        reason: Null for rows that fit.
        rows: Makes rows of the table; it keeps the column `RAW`.
    """
    names = [name for name in frame.columns if name != PARSED]
    held = frame.withColumn(RAW, F.struct(*(F.col(f"`{name}`") for name in names), reason.alias(REASON)))
    why = F.coalesce(F.col(RAW).getField(REASON), violation(constraints))
    judged = rows(held).select(RAW, why.alias(REASON)).where(F.col(REASON).isNotNull())
    return judged.select(*(F.col(RAW).getField(name).alias(name) for name in names), REASON)
