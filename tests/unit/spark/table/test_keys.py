"""Keys of a table that another key rules out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from sidecar.config.model import Settings
from sidecar.spark.table.plan import refused_keys
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


OF_SINK = {"path": "/t", "maintenance": {"optimize": "2d"}, "partition_by": ["topic"], "columns": ["offset"]}


@pytest.mark.parametrize(
    ("table", "form", "told"),
    [
        ({"maintenance": {"optimize": "1d"}}, "delta", {"maintenance": "conflicts with sink.delta.maintenance"}),
        ({"properties": {"delta.a": "b"}}, "delta", {}),
        ({"properties": {"delta.a": "b"}}, "parquet", {"properties": "needs a Delta table"}),
        ({"resume": "from_table"}, "delta", {}),
        ({"resume": "from_table"}, "parquet", {"resume": "needs a Delta table"}),
        ({"cluster_by": ["offset"]}, "delta", {"cluster_by": "cannot be used with sink.delta.partition_by"}),
        ({"merge": {"key": "key"}}, "delta", {"merge": "cannot be used with sink.delta.columns"}),
    ],
)
def test_a_key_that_another_one_rules_out_is_refused(
    tmp_path: Path, table: dict[str, Any], form: Literal["delta", "parquet"], told: dict[str, str]
) -> None:
    """A key of the sink holds for the table too, so it is given once; keys of one place only are fine."""
    document = config(tmp_path, path=None, **table)
    settings = Settings.model_validate({**document, "sink": {"delta": OF_SINK}})
    found = {str(place[-1]): text for place, text in refused_keys(settings, form, "/t")}
    assert {key: text[: len(told.get(key, ""))] for key, text in found.items()} == told
