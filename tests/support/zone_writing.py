"""What tests of the zone's writer share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.storage import base
from sidecar.zone import retention
from sidecar.zone.writer import Format
from tests.support.landing import (
    Sent,
    message,
)

STEPS = ["open", "pwrite", "fsync", "rename", "fsync", "pwrite", "fsync", "pwrite"]
"""Of a batch, unless a new hour begins."""


FORMATS: list[Format] = ["arrow", "parquet"]


def messages(count: int) -> list[Sent]:
    """The first so many messages."""
    return [message(i) for i in range(count)]


def data_files(root: Path) -> list[str]:
    """Names of all files of data, hidden ones too."""
    return sorted(path.name for path in (root / "data").rglob("*") if path.is_file())


def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of four lines."""
    monkeypatch.setattr(base, "SEGMENT_LINES", 4)
    monkeypatch.setattr(retention, "LINES_MIN", 4)
