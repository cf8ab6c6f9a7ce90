"""Rows of odd tags and times for a landing zone, and the job that puts them into a table. Starts no Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sidecar.config.model import Settings
from sidecar.core.parts import Batch
from sidecar.spark.ingest.job import SparkIngest
from tests.support.landing import Sent, part, writer
from tests.support.spark.ingesting import config

TAGS = (None, "", "a/b=c%d", "ä" * 300, "007", "plain")
HOURS_MS = (None, 1_774_746_000_000, 1_774_749_600_000, 1_792_890_000_000, 86_399_999, -1)
"""The second to the fourth are on both sides of the hours that daylight saving leaves out and repeats in Berlin."""


def ingest(folder: Path, **table: Any) -> None:
    """Take what is there."""
    SparkIngest(Settings.model_validate(config(folder, **table)), lambda: False, once=True).run()


def land(folder: Path, first: int, tags: Sequence[str | None] = TAGS) -> None:
    """Land a message of each tag, whose value is JSON with a field that is called as a column of Sidecar's."""
    zone = writer(folder / "zone", f"w{first}")
    rows = [
        Sent(first + i, b"k", json.dumps({"id": first + i, "tag": f"data {i}"}).encode(), tag, (), HOURS_MS[i % 6])
        for i, tag in enumerate(tags)
    ]
    zone.land(Batch(1, "", [part(rows, "")]))
    zone.close()


def without_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the session for one that does not know Delta."""
    monkeypatch.setattr("sidecar.spark.table.writers.has_delta", lambda session: False)
