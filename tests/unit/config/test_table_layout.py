"""Columns and partitions of a table, decided without one: names that clash, what is lost, what lies where."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.config.spark import Table
from sidecar.config.table_layout import COLUMNS, DERIVED, layout_of, lies_in
from sidecar.errors import ConfigError
from sidecar.sinks.table.layout import columns_of, partitions_of
from sidecar.zone.table import PARTITIONS, ROW, TABLE_SCHEMA


def test_the_settings_know_the_columns_of_the_zone() -> None:
    """What the file may name is what rows have, and what partitions need."""
    assert COLUMNS[: len(ROW)] == ROW
    assert {*TABLE_SCHEMA.names, *PARTITIONS.values()} == {*COLUMNS}
    assert set(PARTITIONS.values()) == set(DERIVED)


@pytest.mark.parametrize(
    ("keys", "fields", "told"),
    [
        ({}, ["date", "offset"], ""),  # they are in `data`
        ({"columns": ["timestamp", "data.*"]}, ["offset", "tag"], ""),
        ({"columns": ["date", "data"], "partition_by": ["date"]}, ["date"], ""),
        (
            {"columns": ["offset", "data.*"]},
            ["id", "Offset"],
            (
                "called `Offset`: spark.table.columns[0], and field 2 of spark.table.schema (`Offset`, by data.* in "
                "spark.table.columns[1])"
            ),
        ),
        (
            {"columns": ["data.*"]},
            ["id", "date"],
            (
                "called `date`: field 2 of spark.table.schema (`date`, by data.* in spark.table.columns[0]), and "
                "spark.table.partition_by, by default"
            ),
        ),
        (
            {"columns": ["data.*"], "partition_by": ["tag"]},
            ["tag_label"],
            (
                "called `tag_label`: field 1 of spark.table.schema (`tag_label`, by data.* in spark.table.columns[0]), "
                "and spark.table.partition_by"
            ),
        ),
        ({"columns": ["data.*"], "partition_by": "none"}, ["id", "ID"], "called `ID`: field 1 of spark.table.schema"),
        ({"columns": ["data", "data.*"], "partition_by": []}, ["data"], "called `data`: spark.table.columns[0], and"),
    ],
)
def test_a_name_is_that_of_one_column(keys: dict[str, Any], fields: list[str], told: str) -> None:
    """Two columns of one name are refused with both places; a name that is only in `data` is free."""
    layout = layout_of(Table.model_validate({"schema": "a int"} | keys), "spark.table")
    partitioned_by = partitions_of(layout, ["date"], None, "t")
    try:
        found = columns_of(layout, partitioned_by, fields)
        said, names = "", [column.name for column in found]
        assert len(set(names)) == len(names)
        assert {*partitioned_by} <= {*names}
    except ConfigError as error:
        said = str(error)
        assert error.exit_code == 78
    assert (told in said) if told else not said


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/t/checkpoint", "/t", True),
        ("/t", "/t/", True),
        ("/t-rejects", "/t", False),
        ("/t/../u", "/t", False),
        ("file:///t/c", "/t", True),
        ("s3a://b/t/c", "s3a://b/t", True),
        ("s3a://b/t/c", "/t", False),
    ],
)
def test_a_folder_in_the_table_is_found(path: str, folder: str, inside: bool) -> None:
    """However both are written: `VACUUM` would delete what is there."""
    assert lies_in(path, folder) is inside
