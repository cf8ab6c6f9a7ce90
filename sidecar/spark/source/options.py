"""The options of the source, checked, and named in errors. It uses no Spark."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.storage import storage_of
from sidecar.zone.acks import is_name
from sidecar.zone.index import Wanted
from sidecar.zone.schema import SCHEMA

NAMES: Final = (
    "path", "groups", "tags", "columns", "dedup", "parallelism", "consumer", "maxFilesPerTrigger", "maxRowsPerTrigger",
    "maxBytesPerTrigger", "until", "start",
)  # fmt: skip
STREAM_ONLY: Final = NAMES[6:]
_OF_TABLES: Final = ("owner", "location")
"""Options that Spark adds for a table of its catalogue."""
FILES_MAX: Final = 1_000
"""Default limit of a micro-batch: without it, the first one after a long pause would be huge."""
_POWERS: Final = "kmgt"


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a micro-batch; without any, it takes all. At least one batch is taken, whatever its size."""

    files: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def allows(self, files: int, rows: int, nbytes: int) -> bool:
        taken = ((files, self.files), (rows, self.rows), (nbytes, self.bytes))
        return files <= 1 or all(most is None or count <= most for count, most in taken)


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options."""

    path: str
    """``s3://BUCKET/PREFIX``, or an absolute path: executors have another working directory."""
    columns: tuple[str, ...]
    wanted: Wanted
    """The groups and tags to read."""
    dedup: bool
    parallelism: int | None
    """Limit of tasks of a read; None: by size and by the cores of the driver's host."""
    consumer: str | None
    limit: Limit
    until: dict[str, int] | None
    """The last number to read of each writer; None for no end."""
    start: dict[str, int] | None
    """The last number of each writer that a new query does not read; None for those that retention removed."""


def parse(given: Mapping[str, str], *, stream: bool) -> Options:
    """Parse Spark's options, whatever the case of their names; raises `ConfigError` with the name of a wrong one."""
    known = {name.lower(): name for name in NAMES}
    for name in given:
        if name.lower() in _OF_TABLES:
            raise ConfigError(
                f"sidecar source: unknown option {name}. A zone cannot be a table of Spark's catalogue, and CREATE "
                "TABLE is not possible: use CREATE TEMPORARY VIEW name USING sidecar OPTIONS (path 'ZONE')"
            )
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"Did you mean {known[near[0]]}?" if near else f"There are {', '.join(NAMES)}"
            raise ConfigError(f"sidecar source: unknown option {name}. {hint}")
    texts = {known[name.lower()]: text for name, text in given.items()}
    for name in STREAM_ONLY:
        if name in texts and not stream:
            raise ConfigError(f"sidecar source: option {name} is for readStream; a batch read reads everything")
    return Options(
        _path(texts.get("path", "")),
        _columns(texts),
        Wanted.of(
            _names("groups", texts["groups"]) if "groups" in texts else None,
            _names("tags", texts["tags"], or_null=True) if "tags" in texts else None,
        ),
        _truth("dedup", texts.get("dedup", "true")),
        _count("parallelism", texts["parallelism"]) if "parallelism" in texts else None,
        _consumer(texts["consumer"]) if "consumer" in texts else None,
        _limit(texts),
        _numbers("until", texts),
        _numbers("start", texts),
    )


def _path(text: str) -> str:
    if not text:
        raise _wrong("path", text, "the folder of a landing zone, as in load('/var/lib/sidecar/zone')")
    parts = urlsplit(text)
    if text.startswith("s3://"):
        storage_of(text)
        return text
    if "://" in text or text.startswith("file:"):
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise _wrong(
                "path", text, "a folder that driver and executors share, or s3://BUCKET/PREFIX; no other object store"
            )
        text = unquote(parts.path)
    return str(Path(text).absolute())


def _columns(texts: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in texts:
        return tuple(SCHEMA.names)
    names = _names("columns", texts["columns"])
    for name in names:
        if name not in SCHEMA.names or names.count(name) > 1:
            raise _wrong("columns", texts["columns"], f"some of {', '.join(SCHEMA.names)}, each once")
    return tuple(names)


def _names(option: str, text: str, *, or_null: bool = False) -> list[Any]:
    """Parse a JSON list, or names between commas."""
    listed = text.lstrip().startswith("[")
    try:
        names = loads(text) if listed else [name.strip() for name in text.split(",")]
    except ValueError:
        names = []
    known = (_is_text(name) or (or_null and name is None) for name in names)
    if not names or not all(known) or (names == [""] and not listed):
        null = "; null in the list stands for rows without a tag" if or_null else ""
        raise _wrong(option, text, f"names between commas, or a JSON list of them{null}")
    return list(names)


def _is_text(name: object) -> bool:
    """Whether it is a text that UTF-8 can encode; JSON can escape half of a surrogate pair, which no column has."""
    return isinstance(name, str) and not any("\ud800" <= char <= "\udfff" for char in name)


def _truth(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _wrong(option, text, "true or false")
    return text.lower() == "true"


def _count(option: str, text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,17}", text, re.ASCII):
        raise _wrong(option, text, "a number from 1 on")
    return int(text)


def _size(option: str, text: str) -> int:
    match = re.fullmatch(r"0*([1-9][0-9]{0,17})([kmgt]?)b?", text.lower(), re.ASCII)
    if not match:
        raise _wrong(option, text, "a number of bytes from 1 on, as in 500m or 10g")
    return int(match[1]) << 10 * (_POWERS.index(match[2]) + 1 if match[2] else 0)


def _consumer(text: str) -> str:
    if not is_name(text):
        raise _wrong("consumer", text, "1 to 128 letters, digits, dots, underscores or dashes")
    return text


def _limit(texts: Mapping[str, str]) -> Limit:
    given = [name for name in NAMES if name.startswith("max") and name in texts]
    if len(given) > 1:
        raise ConfigError(f"sidecar source: options {' and '.join(given)} exclude each other: Spark takes one limit")
    if not given:
        return Limit(files=FILES_MAX)
    name, text = given[0], texts[given[0]]
    if name == "maxBytesPerTrigger":
        return Limit(bytes=_size(name, text))
    return Limit(files=_count(name, text)) if name == "maxFilesPerTrigger" else Limit(rows=_count(name, text))


def _numbers(option: str, texts: Mapping[str, str]) -> dict[str, int] | None:
    if option not in texts:
        return None
    try:
        parsed = loads(texts[option])
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(type(seq) is int for seq in parsed.values()):
        raise _wrong(option, texts[option], 'the last number of each writer, as in {"WRITER": 7}')
    return parsed


def _wrong(option: str, text: str, wanted: str) -> ConfigError:
    return ConfigError(f"sidecar source: option {option} is {text!r} and must be {wanted}")
