"""Rows that replace others by key: their columns, and the order of changes. It writes nothing.

The last change of a key is the greatest in a total order, so the table follows from the set of changes alone: neither
their order nor the limits of micro-batches matter, nor how often one is repeated. A deleted key keeps its row, with
`deleted` set, so that an older change that comes later is recognized as older.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampType,
)

from sidecar.config.spark import MESSAGE_TIME, Merge
from sidecar.core.messages.fields import parse_json_path
from sidecar.errors import ConfigError
from sidecar.spark.table.columns import PARSED, YEARS
from sidecar.spark.table.plan import COMMENT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = "merge_key"
ORDER: Final = "merge_order"
DELETED: Final = "deleted"
PLACE: Final = (ORDER, "topic", "partition", "offset", "batch_id")
"""Columns by which the changes of a key are ordered, most significant first. The last one decides where a topic was
created again and has the same offsets."""
ON: Final = f"t.{KEY} = s.{KEY}"
"""Condition in SQL, of Spark and of deltalake: a row of the table, `t`, and a change, `s`, have the same key."""
_EXACT: Final = (BinaryType, DateType, DecimalType, IntegralType, StringType, TimestampType)
"""Types whose values all programs compare in the same way."""


def _later() -> str:
    condition = f"s.{PLACE[-1]} > t.{PLACE[-1]}"
    for name in reversed(PLACE[:-1]):
        condition = f"(s.{name} > t.{name} OR (s.{name} = t.{name} AND {condition}))"
    return condition


LATER: Final = _later()
"""Condition in the same SQL: the change is later than the row. It is false for the change that made the row."""


def keyed(frame: DataFrame, rule: Merge) -> DataFrame:
    """Add the columns of key and order, null where a message has none, each with its part of the rule as a comment."""
    for column, name, place in ((KEY, "key", rule.key), (ORDER, "order_by", rule.order_by)):
        try:
            frame = frame.withColumn(column, _field(place).alias(column, metadata={COMMENT: place}))
        except AnalysisException as error:
            raise ConfigError(
                f"spark.table.merge.{name}: there is no {place} in spark.table.schema",
                hint="Name a field of the schema, or add it there",
            ) from error
        _check_type(f"spark.table.merge.{name}: {place}", frame.schema[column].dataType)
    return frame


def lacking(rule: Merge) -> Column:
    """The reason for which a row of `keyed` cannot be merged; null if it can."""
    reason = F.when(F.col(KEY).isNull(), _reason(rule.key)).when(F.col(ORDER).isNull(), _reason(rule.order_by))
    return reason.otherwise(F.lit(None))


def with_deleted(frame: DataFrame, rule: Merge) -> DataFrame:
    """Add the column that marks deleted keys."""
    if rule.delete_when is None:
        return frame.withColumn(DELETED, F.lit(False))  # noqa: FBT003
    try:
        condition = F.expr(rule.delete_when)
        _ = frame.where(condition).schema  # only this refuses aggregates, and texts that are no condition
        return frame.withColumn(DELETED, F.coalesce(condition, F.lit(False)))  # noqa: FBT003
    except (AnalysisException, ParseException) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"spark.table.merge.delete_when is not a condition on the columns of the table: {said}",
            hint="Write one such as `value IS NULL`, `tag = 'deleted'` or `data.op = 'd'`",
        ) from error


def last_of_each(frame: DataFrame) -> DataFrame:
    """The last change of each key; the others of the micro-batch have no effect."""
    place = F.struct(*map(F.col, PLACE))
    row = F.max_by(F.struct(*(F.col(f"`{name}`") for name in frame.columns)), place)
    return frame.groupBy(KEY).agg(row.alias("row")).select("row.*")


def refuse_other_rule(path: str, comments: Mapping[str, str] | None, rule: Merge | None) -> None:
    """Refuse a table whose rows were made by another rule, or a rule where rows were appended, or the other way."""
    if comments is None:
        return
    there = {name: comments[name] for name in (KEY, ORDER) if name in comments}
    wanted = {KEY: rule.key, ORDER: rule.order_by} if rule is not None else {}
    if there == wanted:
        return
    begun = "by appending" if not there else f"by merge with key {there.get(KEY)} and order_by {there.get(ORDER)}"
    raise ConfigError(
        f"the Delta table {path} was filled {begun}, and spark.table.merge "
        f"{f'has key {rule.key} and order_by {rule.order_by}' if rule is not None else 'is not set'}",
        hint="Write spark.table.merge as it was; or start over with another path of the table and another "
        "spark.checkpoint",
    )


def _field(place: str) -> Column:
    if not place.startswith("$"):
        return F.col(place)
    column = F.col(PARSED)
    for step in parse_json_path(place):
        column = F.get(column, F.lit(step)) if isinstance(step, int) else column.getField(step)
    return column


def _reason(place: str) -> Column:
    if place.startswith("$"):
        return F.lit(f"the value has no {place}")
    return F.lit(f"the message has no {place}" + (f" of {YEARS}" if place == MESSAGE_TIME else ""))


def _check_type(name: str, kind: DataType) -> None:
    if not isinstance(kind, _EXACT):
        raise ConfigError(
            f"{name} is of type {kind.simpleString()}, and its values have no exact order",
            hint="Give it the type string, bigint, decimal, date or timestamp in spark.table.schema",
        )
