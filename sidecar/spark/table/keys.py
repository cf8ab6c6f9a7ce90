"""Keys of a table that its format or another key rules out, each with the reason. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from sidecar.config.document import KeyPath
from sidecar.config.model import Settings
from sidecar.config.spark import ONLY_DELTA, Table
from sidecar.config.table.layout import KEYS, TableLayout, layout_of, lies_in
from sidecar.spark.table.targets import targets

_ONLY_DELTA: Final = {
    "resume": "the log of Spark's file sink belongs to one checkpoint",
    "cluster_by": "Parquet has no clusters; use partition_by",
    "properties": "Parquet has no properties",
    "maintenance": "the log of Spark's file sink would not know about compacted or deleted files",
}


def table_layout(settings: Settings) -> TableLayout:
    """How the table of a job is kept: the keys of `sink.delta`, and those of `spark.table` that it has not."""
    table = (settings.spark.table if settings.spark else None) or Table()
    layout = layout_of(table, "spark.table")
    return layout_of(settings.sink.delta, "sink.delta", layout) if settings.sink.delta is not None else layout


def refused_keys(settings: Settings, form: Literal["delta", "parquet"], path: str) -> Iterator[tuple[KeyPath, str]]:
    """Keys that are refused."""
    assert settings.spark is not None, "checked before"
    table, of_sink = settings.spark.table or Table(), settings.sink.delta
    given = (KEYS | {"resume"}) & table.model_fields_set
    for key in sorted(given):
        if form == "parquet" and key in _ONLY_DELTA:
            yield ("spark", "table", key), f"needs a Delta table: {_ONLY_DELTA[key]}"
        elif of_sink is not None and key in of_sink.model_fields_set:
            yield ("spark", "table", key), f"conflicts with sink.delta.{key}: keep one of them"
    if of_sink is not None and of_sink.partition_by and table.cluster_by:
        yield ("spark", "table", "cluster_by"), "cannot be used with sink.delta.partition_by: keep one of them"
    if table.merge is not None and form != "delta":
        yield ("spark", "table", "merge"), f"needs a Delta table: {ONLY_DELTA}"
    layout = table_layout(settings)
    if table.merge is not None and layout.columns:
        yield ("spark", "table", "merge"), f"cannot be used with {layout.place('columns')}"
    if layout.maintenance.vacuum_ms is not None:
        place = (*layout.place("maintenance").split("."), "vacuum")
        folders = {"spark.checkpoint": settings.spark.checkpoint, "state.dir": str(settings.state.dir)}
        if settings.sink.spark is not None:
            folders["sink.spark.landing"] = str(settings.sink.spark.landing)
        for target in targets(settings.spark.checkpoint, path, table.schema_, table.merge):
            for key, folder in folders.items():
                if lies_in(folder, target.path):
                    text = f"which lies in the folder of the {target.name}: move one of them"
                    yield place, f"would delete files of {key}, {text}"
