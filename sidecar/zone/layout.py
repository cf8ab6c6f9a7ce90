"""Names in a zone, relative to it: accesses no file."""

from __future__ import annotations

import re
import time
from typing import Final

MANIFEST: Final = "manifest"
ACK: Final = "ack"
UNSAFE: Final = "[^A-Za-z0-9_-]"
_LABEL_CHARS_MAX = 48


def safe(text: str, chars_max: int) -> str:
    """The beginning of a text as a part of a file's name: letters, digits, `_` and `-`."""
    return re.sub(UNSAFE, "_", text[:chars_max])


def data_folder(writer: str) -> str:
    """The folder of a writer's data."""
    return f"data/{writer}"


def manifest_folder(writer: str) -> str:
    """The folder of a writer's lines and floor."""
    return f"{MANIFEST}/{writer}"


def floor_file(writer: str) -> str:
    """The file of a writer's floor."""
    return f"{manifest_folder(writer)}/floor.json"


def data_file(writer: str, seq: int, group: str, rows: int, at_ms: int, format: str) -> str:  # noqa: A002
    """The path of a data file below the root. Hour (UTC) and group are only for people."""
    hour = time.strftime("%Y%m%d%H", time.gmtime(at_ms // 1000))
    label = safe(group, _LABEL_CHARS_MAX) or "_"
    return f"data/{writer}/{hour}/{seq:012d}-{label}-{rows}.{format}"


def seq_of(name: str) -> int | None:
    """The sequence number in a data file's name; None for other files."""
    match = re.match(r"(\d{12,})-", name)
    return int(match[1]) if match else None
