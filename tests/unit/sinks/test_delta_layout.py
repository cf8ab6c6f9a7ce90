"""`sink.delta`: partitions, columns, properties and maintenance of its table, and how they may change."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from structlog.testing import capture_logs

from sidecar import files
from sidecar.config.model import Settings
from sidecar.core.records import Verdict
from sidecar.errors import ConfigError
from sidecar.sinks import delta as module
from sidecar.sinks.base import build_sink
from sidecar.sinks.delta import DeltaSink
from sidecar.sinks.table.layout import SmallFiles
from sidecar.zone.table import label_of
from tests.support.delta import batch_of, numbered, offsets_in, sent
from tests.support.landing import Sent, message, part
from tests.support.messages import ListColumns, tags_of
from tests.support.process import wait_until

DAY_MS = 86_400_000
TAGS = (None, "", "a/b=c%d", "a_b=c%d", "ä" * 300, "x" * 300, "007", "plain")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits follow one another at once."""
    monkeypatch.setattr(module, "PAUSES", 0)


def made(folder: Path, **keys: Any) -> DeltaSink:
    """A sink with these keys."""
    kafka = {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["t"]}
    settings = Settings.model_validate(
        {
            "source": {"kafka": kafka},
            "sink": {"delta": {"path": str(folder / "table"), **keys}},
            "state": {"dir": str(folder / "state")},
        }
    )
    sink = build_sink(settings, ListColumns(), tags_of)
    assert isinstance(sink, DeltaSink)
    return sink


def add(folder: Path, *numbers: int, **keys: Any) -> None:
    """Append parts with these keys."""
    sink = made(folder, **keys)
    assert {sink.deliver(batch_of(numbered(number))).verdict for number in numbers} <= {Verdict.ACK}
    sink.close()


def columns(folder: Path) -> list[str]:
    """The columns of the table."""
    return [field.name for field in DeltaTable(folder / "table").schema().fields]


def test_every_tag_and_hour_is_a_folder_and_stays_as_it_is(tmp_path: Path) -> None:
    """Null, empty, long and odd tags have folders of their own, hours are those of UTC, and rows are whole."""
    hours = [None, -1, 0, 3_599_999, 3_600_000, DAY_MS - 1, 1_774_746_000_000, 253_402_300_800_000]
    rows = [Sent(i, b"", b"v", tag, (), at) for i, (tag, at) in enumerate(zip(TAGS, hours, strict=True))]
    sink = made(tmp_path, partition_by=["date", "hour", "tag", "topic", "group"], columns=["offset", "tag"])
    assert sink.deliver(batch_of(part(rows, ""))).verdict is Verdict.ACK
    sink.close()
    table = DeltaTable(tmp_path / "table")
    assert table.metadata().partition_columns == ["date", "hour", "tag_label", "topic_label", "group_label"]
    assert columns(tmp_path) == ["offset", "tag", "date", "hour", "tag_label", "topic_label", "group_label"]
    found = {row["offset"]: row for row in table.to_pyarrow_table().to_pylist()}
    assert [found[i]["tag"] for i in range(len(TAGS))] == list(TAGS)
    labels = [found[i]["tag_label"] for i in range(len(TAGS))]
    assert labels == [None if tag is None else label_of(tag) for tag in TAGS]
    assert len(set(labels)) == len(TAGS)
    assert [found[i]["hour"] for i in range(len(TAGS))] == [None, None, 0, 0, 1, 23, 1, None]
    assert {row["topic_label"] for row in found.values()} == {"orders"}
    assert max(len(name) for path in (tmp_path / "table").rglob("*") for name in path.parts) < 255


@pytest.mark.parametrize(("words", "there"), [("none", []), ([], []), (["tag"], ["tag_label"]), (None, ["date"])])
def test_partitions_are_those_of_the_settings(tmp_path: Path, words: Any, there: list[str]) -> None:
    """Any or none; the default is what it was."""
    add(tmp_path, 0, **({} if words is None else {"partition_by": words}))
    assert DeltaTable(tmp_path / "table").metadata().partition_columns == there


def test_a_table_keeps_its_partitions(tmp_path: Path) -> None:
    """Without the key it goes on with its own, in any order with them, and other ones are refused."""
    add(tmp_path, 0, partition_by=["date", "hour"], columns=["offset", "group"])
    add(tmp_path, 1, columns=["offset", "group"])
    add(tmp_path, 2, partition_by=["hour", "date"], columns=["group", "offset"])
    for words, needed in (["tag"], "tag_label"), ("none", "nothing"):
        told = rf"is partitioned by date, hour, and sink\.delta\.partition_by needs {needed}: "
        with pytest.raises(ConfigError, match=told) as caught:
            made(tmp_path, partition_by=words, columns=["offset", "group"])
        assert (caught.value.exit_code, "another path" in caught.value.hint) == (78, True)
    assert offsets_in(tmp_path / "table") == sent([numbered(i) for i in range(3)])


def test_a_column_that_was_dropped_does_not_come_back(tmp_path: Path) -> None:
    """A daemon that runs stops intake, the next start names it, and both ways that it tells help."""
    path, names = tmp_path / "table", ["offset", "key", "group", "value"]
    sink = made(tmp_path, columns=names)
    assert sink.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    rows = pa.table(DeltaTable(path).to_pyarrow_table()).drop_columns(["key"])
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite", partition_by=["date"])
    answer = sink.deliver(batch_of(numbered(1)))
    assert (answer.verdict, "has lost key: new rows" in answer.reason) == (Verdict.HALT, True)
    sink.close()
    with pytest.raises(ConfigError, match=r"table has lost key: new rows would bring back") as caught:
        made(tmp_path, columns=names)
    assert "List the others in sink.delta.columns" in caught.value.hint
    add(tmp_path, 1, columns=["offset", "group", "value"])
    assert columns(tmp_path) == ["offset", "group", "value", "date"]
    DeltaTable(path).alter.add_columns(Field("key", PrimitiveType("binary")))
    add(tmp_path, 2, columns=names)
    assert offsets_in(path) == sent([numbered(i) for i in range(3)])


def test_columns_are_added_and_not_left_out(tmp_path: Path) -> None:
    """Rows of both settings are whole, parts stay known, and a column that the table would lose is named."""
    add(tmp_path, 0, columns=["offset", "group"])
    add(tmp_path, 0, 1, columns=["value", "group", "offset"])
    assert columns(tmp_path) == ["offset", "group", "date", "value"]
    add(tmp_path, 1, 2)
    assert offsets_in(tmp_path / "table") == sent([numbered(i) for i in range(3)])
    with pytest.raises(ConfigError, match=r"sink\.delta\.columns leaves out .*value.*, which the table has") as caught:
        made(tmp_path, columns=["offset", "group"])
    assert "Columns may only be added" in caught.value.hint
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table(columns=["offset", "value"]).to_pylist()
    assert {row["offset"]: row["value"] for row in rows} == {
        offset: None if offset < 3 else message(offset).value for offset in range(9)
    }


def test_properties_are_those_of_a_new_table(tmp_path: Path) -> None:
    """They are set beside Sidecar's own, and one that deltalake does not know is an error with its name."""
    add(tmp_path, 0, properties={"delta.checkpointInterval": 7, "delta.appendOnly": True})
    assert DeltaTable(tmp_path / "table").metadata().configuration == {
        "delta.logRetentionDuration": "interval 2 days",
        "delta.checkpointInterval": "7",
        "delta.appendOnly": "true",
    }
    with pytest.raises(ConfigError, match=r"sink\.delta\.properties.*delta\.noSuchKey"):
        made(tmp_path / "other", properties={"delta.noSuchKey": "1"})


def test_many_partitions_are_reported_once(tmp_path: Path) -> None:
    """An addition to hundreds of them with few rows each is a warning, and one to a single partition is none."""
    rows = [Sent(i, None, b"v", f"tag{i % 300}") for i in range(600)]
    for words, told in (["tag"], 1), (["date"], 0):
        folder = tmp_path / words[0]
        sink = made(folder, partition_by=words)
        with capture_logs() as events:
            for first in (0, 600):
                again = [row._replace(offset=first + row.offset) for row in rows]
                assert sink.deliver(batch_of(part(again, ""))).verdict is Verdict.ACK
        sink.close()
        found = [event for event in events if event["event"] == "table.small_files"]
        assert [(event["rows"], event["files"]) for event in found] == [(600, 300)] * told


def test_an_addition_is_small_below_a_thousand_rows_for_each_of_two_hundred_files() -> None:
    """Each partition gets a file with each addition."""
    small = SmallFiles("/t")
    for rows, count, reported in ((1, 199, False), (200_000, 200, False), (199_999, 200, True)):
        small.look(rows, count)
        assert small.reported is reported


def operations(folder: Path) -> list[str]:
    """The operations in the table's log, the first ones first."""
    return [str(one["operation"]) for one in reversed(DeltaTable(folder / "table").history())]


def test_maintenance_leaves_each_part_once(tmp_path: Path) -> None:
    """Beside commits of two processes files are compacted, old ones are deleted, and nothing is lost or doubled."""
    add(tmp_path, *range(6))
    old_s = time.time() - 8 * 86_400
    orphan = tmp_path / "table" / "date=2023-11-14" / "part-killed.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (old_s, old_s))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "table-maintenance.json").write_text('{"optimize": 0, "vacuum": 0}')
    tables = [made(tmp_path, maintenance={"optimize": "1m", "vacuum": "1m"}), made(tmp_path)]
    number, deadline_s = 6, time.monotonic() + 60
    while not {"OPTIMIZE", "VACUUM END"} <= {*operations(tmp_path)}:
        assert time.monotonic() < deadline_s
        assert tables[number % 2].deliver(batch_of(numbered(number - 1), numbered(number))).verdict is Verdict.ACK
        number += 1
    wait_until(lambda: tables[0].maintained["vacuum", "ok"] > 0, 30, "the end of a VACUUM")
    tables[0].close()
    assert tables[1].deliver(batch_of(*map(numbered, range(number + 1)))).verdict is Verdict.ACK
    tables[1].close()
    assert offsets_in(tmp_path / "table") == sent([numbered(i) for i in range(number + 1)])
    assert not orphan.exists()
    assert tables[0].maintained["optimize", "ok"] > 0
    assert len(list((tmp_path / "table").rglob("*.parquet"))) > len(DeltaTable(tmp_path / "table").file_uris())


def test_a_failed_operation_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are acknowledged while each OPTIMIZE fails, and a stop does not wait for one that hangs."""
    monkeypatch.setattr("sidecar.sinks.table.upkeep._intervals_s", lambda _: {"optimize": 0.01})
    hang = threading.Event()
    calls: list[Callable[[], object]] = [lambda: 1 / 0, lambda: 1 / 0, lambda: hang.wait(60)]
    monkeypatch.setattr("sidecar.sinks.table.by_deltalake.optimize", lambda table, path, guard: calls.pop(0)())
    sink = made(tmp_path, maintenance={"optimize": "1m"})
    number, deadline_s = 0, time.monotonic() + 60
    while calls:
        assert time.monotonic() < deadline_s
        assert sink.deliver(batch_of(numbered(number))).verdict is Verdict.ACK
        number += 1
    begun_s = time.monotonic()
    sink.close()
    assert time.monotonic() - begun_s < 30
    hang.set()
    assert sink.maintained["optimize", "failed"] == 2
    assert offsets_in(tmp_path / "table") == sent([numbered(i) for i in range(number)])


def test_a_compaction_is_durable_before_what_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a batch is acknowledged, commits before its own are synced too: a torn one would take it along."""
    sink = made(tmp_path)
    for number in range(3):
        assert sink.deliver(batch_of(numbered(number))).verdict is Verdict.ACK
    DeltaTable(tmp_path / "table").optimize.compact()
    (compacted,) = DeltaTable(tmp_path / "table").file_uris()
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    assert sink.deliver(batch_of(numbered(3))).verdict is Verdict.ACK
    sink.close()
    logs = [path.name for path in synced if path.suffix == ".json"]
    assert logs == [f"{version:020d}.json" for version in (4, 5)]
    assert Path(compacted) in synced
