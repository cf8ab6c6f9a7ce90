"""Types whose values every reader of a table reads alike, and their values that one of them could not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sidecar.errors import ConfigError

_SCALARS: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType,
    TimestampNTZType, TimestampType,
)  # fmt: skip
_LIMITS: Final[Mapping[type[DataType], tuple[str, str]]] = {
    DateType: ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    TimestampType: ("TIMESTAMP'0001-01-01T00:00:00Z'", "TIMESTAMP'9999-12-31T23:59:59.999999Z'"),
    TimestampNTZType: ("TIMESTAMP_NTZ'0001-01-01T00:00:00'", "TIMESTAMP_NTZ'9999-12-31T23:59:59.999999'"),
}
"""By type, its first and last value in `YEARS`, in Spark's SQL."""
YEARS: Final = "the years 1 to 9999"
"""Other programs cannot hold more: Python and SQL have no other years, and Delta's log no text for them."""


def refuse_unlike(schema: StructType) -> None:
    """Refuse a schema with a type that a writer or a reader of tables does not have.

    Raises:
        ConfigError: It has one.
    """
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
    """The reason for which a value has a date or a time outside of `YEARS`, with its field; null if it has none."""
    found = F.lit(None)
    for field in reversed(schema.fields):
        if _has_times(field.dataType):
            is_outside = _is_outside(value.getField(field.name), field.dataType)
            found = F.when(is_outside, F.lit(f"a time in {field.name} is outside of {YEARS}")).otherwise(found)
    return found


def inside_years(time: Column) -> Column:
    """A timestamp; null where it is outside of `YEARS`."""
    return F.when(~_is_outside(time, TimestampType()), time)


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
    """Whether a value that has times has one outside of `YEARS`, at any depth; never null."""
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
