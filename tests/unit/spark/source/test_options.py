"""The options of the Spark source: what is wrong is named, and never taken for something else."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from sidecar.errors import ConfigError
from sidecar.spark.source.options import STREAM_ONLY, Limit, parse
from sidecar.zone.index import Wanted


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("path", ""),
        ("path", "s3a://bucket/zone"),
        ("path", "hdfs://host/zone"),
        ("groups", ""),
        ("groups", "[1]"),
        ("groups", '["a"'),
        ("groups", "[null]"),
        ("tags", ""),
        ("tags", "[]"),
        ("tags", "[1]"),
        ("tags", '["a"'),
        ("tags", '["\\ud800"]'),
        ("columns", "offset,none"),
        ("columns", "offset,offset"),
        ("dedup", "yes"),
        ("parallelism", "0"),
        ("parallelism", "-1"),
        ("parallelism", "two"),
        ("consumer", ""),
        ("consumer", "../a"),
        ("maxFilesPerTrigger", "0"),
        ("maxRowsPerTrigger", "1.5"),
        ("maxRowsPerTrigger", "٣"),
        ("maxBytesPerTrigger", "10x"),
        ("until", "7"),
        ("until", '{"a": "7"}'),
        ("until", "{"),
        ("start", '{"a": null}'),
    ],
)
def test_a_wrong_value_is_named(name: str, text: str) -> None:
    """An error names the option and what it has."""
    with pytest.raises(ConfigError, match=name) as failure:
        parse({"path": "/zone", name: text}, stream=True)
    assert repr(text) in str(failure.value)


def test_an_unknown_option_is_named_with_what_was_meant() -> None:
    """An unknown option is an error, and the nearest known one is told."""
    with pytest.raises(ConfigError, match=r"maxfilespertriger.*maxFilesPerTrigger"):
        parse({"path": "/zone", "maxfilespertriger": "1"}, stream=True)


@pytest.mark.parametrize("name", ["owner", "location"])
def test_a_table_of_the_catalogue_is_refused(name: str) -> None:
    """What Spark adds for CREATE TABLE is answered with what is possible, a temporary view."""
    with pytest.raises(ConfigError, match="CREATE TABLE is not possible: use CREATE TEMPORARY VIEW"):
        parse({name: "me", "path": "/zone"}, stream=True)


@pytest.mark.parametrize("name", STREAM_ONLY)
def test_a_batch_read_has_no_triggers(name: str) -> None:
    """What only a stream has is refused for a batch read, by name."""
    with pytest.raises(ConfigError, match=name):
        parse({"path": "/zone", name: "1"}, stream=False)


def test_two_limits_exclude_each_other() -> None:
    """Spark takes one limit, so a second one is an error and not ignored."""
    with pytest.raises(ConfigError, match="maxFilesPerTrigger and maxRowsPerTrigger"):
        parse({"path": "/zone", "maxRowsPerTrigger": "1", "maxFilesPerTrigger": "1"}, stream=True)


def test_the_case_of_names_is_no_matter() -> None:
    """Spark hands names over in lower case, and a user may write them so."""
    assert parse({"PATH": "/zone", "maxbytespertrigger": "10g"}, stream=True).limit == Limit(bytes=10 << 30)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"groups": "a, b"}, Wanted.of({"a", "b"}, None)),
        ({"groups": '["a,b", "[c", ""]'}, Wanted.of({"a,b", "[c", ""}, None)),
        ({"tags": "a, b"}, Wanted.of(None, {"a", "b"})),
        ({"tags": r'["a,b", "\n\u0000\"", "", null]'}, Wanted.of(None, {"a,b", '\n\0"', "", None})),
        ({"tags": "[null]", "groups": "null"}, Wanted.of({"null"}, {None})),
        ({}, Wanted()),
    ],
)
def test_a_list_holds_any_name(given: dict[str, str], wanted: Wanted) -> None:
    """Names stand between commas; a JSON list holds any name, and for tags null, which is a row without a tag."""
    assert parse({"path": "/zone", **given}, stream=True).wanted == wanted


def test_a_path_is_made_absolute() -> None:
    """Executors have another working directory, so the path is absolute; a URL of files is one too."""
    assert parse({"path": "zone"}, stream=True).path == str(Path.cwd() / "zone")
    assert parse({"path": "file:///my%20zone"}, stream=True).path == "/my zone"
