"""Tags as native column expressions: surely unwanted messages never leave the JVM. The core decides about the others.

An expression may let too many messages pass, but must never drop one that the core would take: JSON escapes, numbers,
other encodings and tags within a value are searched for as bytes. Tags are always compared as bytes, never as strings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it

from sidecar.config.tags import Tags
from sidecar.core.messages.fields import Field
from sidecar.core.messages.tags import parse_expression

LOOKED_FOR_MAX = 32
"""Limit of tags that are searched for within a value: more would cost more than they save."""


def prefilter(tags: Tags) -> Column | None:
    """An expression that is true for every wanted message, and for few others; None if all may be wanted."""
    field = tags.field
    if field is None:
        return None
    wanted = parse_expression(tags.subscribe)
    excluded = parse_expression(tags.exclude) if tags.exclude else None
    conditions = []
    if wanted is not None:
        conditions.append(_any_of(field, wanted, within=bool(tags.split)))
    if excluded and not tags.split:
        conditions.append(_none_of(field, excluded))
    usable = [condition for condition in conditions if condition is not None]
    return reduce(lambda a, b: a & b, usable) if usable else None


def _any_of(field: Field, tags: Collection[bytes], *, within: bool) -> Column | None:
    if field.kind == "header":
        return _has_header(field.name, lambda value: _within(value, tags) if within else _is_one(value, tags))
    if field.kind == "json":
        odd = [b"\\", b"\0"]  # an escape may encode the tag, and UTF-16 has zero bytes
        condition = _within(F.col("value"), [*tags, *odd])
        return None if condition is None else _surely(condition)
    column = _column(field)
    condition = _within(column, tags) if within else _is_one(column, tags)
    return None if condition is None else _surely(condition)


def _none_of(field: Field, tags: Collection[bytes]) -> Column | None:
    if field.kind == "json":
        return None
    if field.kind == "header":
        return ~_has_header(field.name, lambda value: _is_one(value, tags))
    return ~_surely(_is_one(_column(field), tags))


def _column(field: Field) -> Column:
    return F.col("key") if field.kind == "key" else F.col("topic").cast("binary")


def _has_header(name: str, test: Callable[[Column], Column | None]) -> Column:
    def fits(header: Column) -> Column:
        condition = test(header["value"])
        named = header["key"] == F.lit(name)
        return named if condition is None else named & condition

    headers = F.col("headers")
    # One header is the usual case, and Spark compiles this form; functions over arrays are interpreted.
    return _surely(F.when(F.size(headers) == 1, fits(headers[0])).otherwise(F.exists(headers, fits)))


def _is_one(column: Column, tags: Collection[bytes]) -> Column:
    return column.isin(sorted(tags))


def _within(column: Column, tags: Collection[bytes]) -> Column | None:
    if len(tags) > LOOKED_FOR_MAX:
        return None
    return reduce(or_, [F.contains(column, F.lit(tag)) for tag in sorted(tags)])


def _surely(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))  # noqa: FBT003  # a null header, key or value holds no tag
