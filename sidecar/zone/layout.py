"""Paths in a zone. Names only: accesses no file."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

SEGMENT_LINES: Final = 4096
"""Lines of a manifest segment: the segment of a sequence number is known without listing a folder."""
FLOOR: Final = "floor.json"
LOCK: Final = "lock"
UNSAFE: Final = "[^A-Za-z0-9_-]"
_LABEL_CHARS_MAX = 48


def safe(text: str, chars_max: int) -> str:
    """The beginning of a text as a part of a file's name: letters, digits, `_` and `-`."""
    return re.sub(UNSAFE, "_", text[:chars_max])


def data_folder(root: Path, writer: str) -> Path:
    """The folder of a writer's data."""
    return root / "data" / writer


def manifest_folder(root: Path, writer: str) -> Path:
    """The folder of a writer's manifest segments, floor and lock."""
    return root / "manifest" / writer


def ack_folder(root: Path) -> Path:
    """The folder of the consumers' acknowledgements."""
    return root / "ack"


def segment_path(root: Path, writer: str, seq: int) -> Path:
    """The segment with the line of a sequence number."""
    return manifest_folder(root, writer) / f"{first_of(seq):012d}.log"


def first_of(seq: int) -> int:
    """The first sequence number in the segment of this one."""
    return seq - seq % SEGMENT_LINES


def data_file(writer: str, seq: int, group: str, rows: int, at_ms: int, format: str) -> str:  # noqa: A002
    """The path of a data file below the root. Hour (UTC) and group are only for people."""
    hour = time.strftime("%Y%m%d%H", time.gmtime(at_ms // 1000))
    label = safe(group, _LABEL_CHARS_MAX) or "_"
    return f"data/{writer}/{hour}/{seq:012d}-{label}-{rows}.{format}"


def seq_of(name: str) -> int | None:
    """The sequence number in a data file's name, None for other files."""
    match = re.match(r"(\d{12,})-", name)
    return int(match[1]) if match else None
