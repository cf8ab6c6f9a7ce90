"""The constraints of a Delta table, which other programs may have given it. Opens no table, and evaluates nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sidecar.core.json_text import loads

PREFIX: Final = "delta.constraints."
_LENGTH: Final = re.compile(r"(?:var)?char\((\d+)\)")
SQL_CHARS_MAX: Final = 200


class Constraint(NamedTuple):
    """A condition that must be true of each row, not null.

    Args:
        sql: The condition; `{}` stands for the column, if there is one.
        column: The column; empty if the condition names its columns by itself.
    """

    name: str
    sql: str
    column: str = ""

    def condition(self, quote: str) -> str:
        """The condition in SQL, with this mark around names of columns: Spark's, or that of the standard."""
        return self.sql.format(f"{quote}{self.column}{quote}") if self.column else self.sql

    @property
    def reason(self) -> str:
        """The reason to refuse a row."""
        return f"the row violates the constraint {self.name} of the table"


def constraints_of(configuration: Mapping[str, str | None], fields: Iterable[Any]) -> list[Constraint]:
    """The constraints of these columns: CHECK, NOT NULL, lengths of texts, invariants; not of nested fields."""
    checks = (
        Constraint(f"{name.removeprefix(PREFIX)} ({sql[:SQL_CHARS_MAX]})", sql)
        for name, sql in sorted(configuration.items())
        if name.startswith(PREFIX) and sql
    )
    return [*checks, *(found for field in fields for found in _of_field(field))]


def _of_field(field: Any) -> Iterator[Constraint]:
    if not field.nullable:
        yield Constraint(f"NOT NULL of {field.name}", "{} IS NOT NULL", field.name)
    if limit := _LENGTH.fullmatch(str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))):
        yield Constraint(f"{limit[0]} of {field.name}", f"coalesce(length({{}}) <= {limit[1]}, true)", field.name)
    try:
        sql = loads(field.metadata.get("delta.invariants", "{}"))["expression"]["expression"]
    except (ValueError, TypeError, KeyError):
        return
    yield Constraint(f"of {field.name} ({sql[:SQL_CHARS_MAX]})", sql)
