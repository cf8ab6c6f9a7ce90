"""Keys of a table that another key rules out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.config import Settings
from sidecar.spark.table.keys import refused_keys
from tests.support.spark.ingesting import config


@pytest.mark.parametrize(
    ("table", "refused"),
    [
        ({"schema": "id bigint"}, True),
        ({"merge": {"key": "key"}}, True),
        ({}, False),
    ],
)
def test_vacuum_spares_what_lies_in_the_rejects(tmp_path: Path, table: dict[str, Any], refused: bool) -> None:
    """A checkpoint in the folder of the rejects is refused with `vacuum`, if there are rejects."""
    document = config(tmp_path, format="delta", maintenance={"vacuum": "1d"}, **table)
    document["spark"]["checkpoint"] = f"{tmp_path}/table-rejects/checkpoint"
    settings = Settings.model_validate(document)
    told = list(refused_keys(settings, "delta", f"{tmp_path}/table/"))
    text = "would delete files of spark.checkpoint, which lies in the folder of the rejects: move one of them"
    assert told == [(("spark", "table", "maintenance", "vacuum"), text)] * refused
