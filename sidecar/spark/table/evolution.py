"""Schemas that may follow another one in the same table: those that only add fields. It needs no session."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sidecar.core.json_text import loads
from sidecar.errors import ConfigError


def refuse_rewriting(before: str, after: str) -> None:
    """Refuse a schema that gives fields of the table another type, order or nullability, or lacks them.

    Spark's file sink would write it, and no reader could read old and new files together.

    Args:
        before: The schema of the table, as JSON; empty if there is none.
        after: The wanted schema, as JSON; empty if there is none.

    Raises:
        ConfigError: It changes more than additional fields.
    """
    changed = _change("", _parse(before), _parse(after))
    if changed:
        raise ConfigError(
            f"spark.table.schema: {changed}, and the table has rows of the previous schema: both could not be read "
            "together",
            hint="Fields may only be added. Write this one as it was, and convert it when you read; or start anew with "
            "another path of the table and another spark.checkpoint",
        )


def _parse(schema: str) -> StructType:
    return StructType.fromJson(loads(schema)) if schema else StructType()


def _change(name: str, old: DataType, new: DataType) -> str:
    """The first field that changed, and how; empty if fields were only added."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _fields_change(f"{name}." if name else "", old, new)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        element = _change(f"{name}.element", old.elementType, new.elementType)
        return element or _nullability(f"{name}.element", old.containsNull, new.containsNull)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return (
            _change(f"{name}.key", old.keyType, new.keyType)
            or _change(f"{name}.value", old.valueType, new.valueType)
            or _nullability(f"{name}.value", old.valueContainsNull, new.valueContainsNull)
        )
    return "" if old == new else f"field {name} was {old.simpleString()} and is now {new.simpleString()}"


def _fields_change(prefix: str, old: StructType, new: StructType) -> str:
    places = {field.name: place for place, field in enumerate(new.fields)}
    last: StructField | None = None
    for field in old.fields:
        name = f"{prefix}{field.name}"
        if field.name not in places:
            return f"field {name} ({field.dataType.simpleString()}) is missing"
        if last is not None and places[field.name] < places[last.name]:
            return f"field {name} was after {prefix}{last.name} and is now before it"
        now = new.fields[places[field.name]]
        changed = _change(name, field.dataType, now.dataType) or _nullability(name, field.nullable, now.nullable)
        if changed:
            return changed
        last = field
    return ""


def _nullability(name: str, old: bool, new: bool) -> str:
    texts = {True: "nullable", False: "NOT NULL"}
    return "" if old == new else f"field {name} was {texts[old]} and is now {texts[new]}"
