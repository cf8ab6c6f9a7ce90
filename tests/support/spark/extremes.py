"""Values at the extremes of all types of a schema, and what programs other than Spark read of a table."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from sidecar.core.parts import Batch
from tests.support.landing import Sent, part, writer

Read: TypeAlias = Callable[[str], pa.Table]


class Value(NamedTuple):
    """A value as JSON, and as every reader has to return it."""

    text: str
    value: Any


def _same(*values: Any) -> list[Value]:
    return [Value(json.dumps(value), value) for value in values]


def _of(make: Callable[[str], Any], *texts: str) -> list[Value]:
    return [Value(f'"{text}"', make(text)) for text in texts]


def _bytes(*values: bytes) -> list[Value]:
    return [Value(json.dumps(b64encode(value).decode()), value) for value in values]


TIMES: Final = (
    "0001-01-01T00:00:00", "1582-10-04T23:59:59.999999", "1582-10-15T00:00:00", "1677-09-21T00:12:43",
    "1969-12-31T23:59:59.999999", "2262-04-11T23:47:16.854776", "9999-12-31T23:59:59.999999",
)  # fmt: skip
DAYS: Final = ("0001-01-01", "1582-10-04", "1582-10-15", "1969-12-31", "9999-12-31")
LONG: Final = "\U0010ffff" * 8_192
"""32 KB."""


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


_ODD: Final = (-0.0, math.nan, math.inf, -math.inf)
_AT: Final = [Value(f'"{text}Z"', _utc(text)) for text in TIMES]
_NUMBERS: Final = {"nine": 9, "deep": {"at": _AT[0].value, "more": [_AT[-1].value, None]}}
_DAY: Final = {"day": date(1, 1, 1), "n": None}
COLUMNS: Final[Mapping[str, tuple[str, list[Value]]]] = {
    "yes": ("boolean", _same(*map(bool, (1, 0)))),
    "i8": ("tinyint", _same(-(1 << 7), (1 << 7) - 1)),
    "i16": ("smallint", _same(-(1 << 15), (1 << 15) - 1)),
    "i32": ("int", _same(-(1 << 31), (1 << 31) - 1)),
    "i64": ("bigint", _same(-(1 << 63), (1 << 63) - 1)),
    "f32": ("float", _same(*_ODD, 3.4028234663852886e38, 1.401298464324817e-45)),
    "f64": ("double", _same(*_ODD, 1.7976931348623157e308, 5e-324)),
    "d9": ("decimal(9,2)", [Value(t, Decimal(t)) for t in ("-9999999.99", "9999999.99", "0.01")]),
    "d18": ("decimal(18,18)", [Value(t, Decimal(t)) for t in (f"-0.{'9' * 18}", f"0.{'9' * 18}")]),
    "d38": ("decimal(38,0)", [Value(t, Decimal(t)) for t in (f"-{'9' * 38}", "9" * 38)]),
    "text": ("string", _same("", LONG, "a\x00b", "ä\n\r\"\\")),
    "raw": ("binary", _bytes(b"", b"\xff" * 32_768, b"\x00")),
    "day": ("date", _of(date.fromisoformat, *DAYS)),
    "at": ("timestamp", _AT),
    "local": ("timestamp_ntz", _of(datetime.fromisoformat, *TIMES)),
    "inside": (
        "struct<nine: int, deep: struct<at: timestamp, more: array<timestamp>>>",
        [
            Value(f'{{"nine": 9, "deep": {{"at": "{TIMES[0]}Z", "more": ["{TIMES[-1]}Z", null]}}}}', _NUMBERS),
            Value('{"nine": null, "deep": null}', {"nine": None, "deep": None}),
            Value("{}", {"nine": None, "deep": None}),
            Value('{"deep": {}}', {"nine": None, "deep": {"at": None, "more": None}}),
        ],
    ),
    "list": (
        "array<struct<day: date, n: tinyint>>",
        [
            Value("[]", []),
            Value("[null]", [None]),
            Value('[{"day": "0001-01-01"}, null, {"n": -128}]', [_DAY, None, {"day": None, "n": -128}]),
        ],
    ),
    "lists": ("array<array<string>>", [Value('[[], [null, ""], null]', [[], [None, ""], None])]),
    "map": (
        "map<string, timestamp>",
        [
            Value("{}", []),
            Value(f'{{"": "{TIMES[-1]}Z", "b": null}}', [("", _AT[-1].value), ("b", None)]),
            Value(json.dumps({LONG: None}), [(LONG, None)]),
        ],
    ),
    "maps": (
        "map<string, map<string, double>>",
        [Value('{"a": {"b": -0.0}, "c": null}', [("a", [("b", -0.0)]), ("c", None)])],
    ),
}  # fmt: skip
"""By name of the field: its type, and its values. Each field is null in at least one row."""
SCHEMA: Final = ", ".join(["id bigint", *(f"`{name}` {kind}" for name, (kind, _) in COLUMNS.items())])
ROWS: Final = 1 + max(len(values) for _, values in COLUMNS.values())
OUTSIDE: Final = (
    '{"at": "+10000-01-01T00:00:00Z"}', '{"at": "0000-12-31T23:59:59.999999Z"}', '{"day": "+10000-01-01"}',
    '{"day": "0000-12-31"}', '{"local": "+10000-01-01T00:00:00"}', '{"at": 1700000000000}',
    '{"inside": {"deep": {"more": [null, "+10000-01-01T00:00:00Z"]}}}', '{"list": [null, {"day": "-0001-01-01"}]}',
    '{"map": {"a": null, "b": "+294247-01-10T04:00:54.775807Z"}}',
)  # fmt: skip
"""Values with times that not every reader can hold."""


def rows() -> dict[int, dict[str, Any]]:
    """What every reader has to return, by `id`."""
    return {row: {"id": row, **{name: value and value.value for name, value in _row(row)}} for row in range(ROWS)}


def _row(row: int) -> Iterator[tuple[str, Value | None]]:
    for name, (_, values) in COLUMNS.items():
        yield name, values[row] if row < len(values) else None


def texts() -> list[bytes]:
    """The rows as JSON."""
    found = []
    for row in range(ROWS):
        fields = [f'"{name}": {value.text if value else "null"}' for name, value in _row(row)]
        found.append(f'{{"id": {row}, {", ".join(fields)}}}'.encode())
    return found


def land(
    zone: Path, values: Iterable[bytes], *, first: int = 0, files: int = 1, timestamp_ms: int = 1_700_000_000_123
) -> None:
    """Land messages with these values, in so many files."""
    sent = [Sent(first + number, b"k", value, None, (), timestamp_ms) for number, value in enumerate(values)]
    into = writer(zone, f"w{first}")
    for number in range(files):
        into.land(Batch(number + 1, "", [part(sent[number::files], "")]))
    into.close()


# Readers


def _uris(path: str) -> list[str]:
    return DeltaTable(path).file_uris()


OF_DELTA: Final[Mapping[str, Read]] = {
    "deltalake": lambda path: DeltaTable(path).to_pyarrow_table(),
    "Polars": lambda path: polars.read_delta(path).to_arrow(),
    "pyarrow": lambda path: ds.dataset(_uris(path)).to_table(),
    "DuckDB": lambda path: duckdb.read_parquet(_uris(path)).to_arrow_table(),
}
"""Readers of a Delta table; the last two read its files."""
OF_PARQUET: Final[Mapping[str, Read]] = {
    "Polars": lambda path: polars.read_parquet(f"{path}/**/*.parquet").to_arrow(),
    "pyarrow": lambda path: ds.dataset(path, format="parquet").to_table(),
    "DuckDB": lambda path: duckdb.read_parquet(f"{path}/**/*.parquet").to_arrow_table(),
}
"""Readers of a folder of Parquet files."""


def plain(value: Any) -> Any:
    """A value in a form that tells what `==` does not: -0.0, NaN; and that is the same for every reader."""
    match value:
        case float():
            return "nan" if value != value else struct.pack(">d", value)
        case datetime():
            return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case list():
            return [plain(one) for one in value]
        case tuple():
            return {"key": plain(value[0]), "value": plain(value[1])}
    return value


def by_id(table: pa.Table) -> dict[int, Any]:
    """The column `data` in plain form, by its `id`; each is there once."""
    found = [plain(row) for row in table.column("data").to_pylist()]
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}
