"""`sink.delta`: each part is in the table once, whoever brings it, however often, and whatever fails in between."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar import files
from sidecar.config.model import Settings
from sidecar.core.records import Verdict
from sidecar.errors import ConfigError
from sidecar.sinks import delta as module
from sidecar.sinks import table as table_package
from sidecar.sinks.base import build_sink
from sidecar.sinks.delta import DeltaSink
from sidecar.zone.table import TABLE_SCHEMA, label_of
from tests.support.delta import batch_of, numbered, offsets_in, rows_of, sent, sink
from tests.support.landing import Sent, message, part
from tests.support.messages import ListColumns, tags_of

WRITE = "sidecar.sinks.table.parts.write_deltalake"


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits follow one another at once, so that more of them get in each other's way."""
    monkeypatch.setattr(module, "PAUSES", 0)


def commits(path: Path) -> int:
    """Commits that added rows."""
    return sum(b'"add"' in log.read_bytes() for log in (path / "_delta_log").glob("*.json"))


def failing(when: str, times: int = 1) -> Callable[..., None]:
    """An append that fails `before` or `after` it landed, so many times."""
    left = [times]

    def write(*args: Any, **options: Any) -> None:
        broken = left[0] > 0
        left[0] -= 1
        if broken and when == "before":
            raise OSError(28, "No space left on device")
        write_deltalake(*args, **options)
        if broken:
            raise deltalake.exceptions.DeltaError("cannot write a checkpoint")

    return write


def test_rows_arrive_as_they_were_sent(tmp_path: Path) -> None:
    """Each column is what was produced: nulls, empty values, bytes, line feeds, headers, any timestamp, odd groups."""
    odd = Sent(9, b"\xff\x00", b"\n" * 3, None, (("a", None), ("a", b"\xfe\xfd")), None)
    late = Sent(10, None, b"", "", (), 200_000_000_000_000)
    early = Sent(11, None, None, "t", (), -1)
    table = sink(tmp_path)
    parts = [part([message(5), odd], ""), part([late, early], "007/ä" * 100)]
    assert [table.deliver(batch_of(one)).verdict for one in parts] == [Verdict.ACK] * 2
    table.close()
    rows = {row["offset"]: row for row in rows_of(tmp_path)}
    assert (rows[9]["key"], rows[9]["value"], rows[9]["tag"], rows[9]["timestamp"]) == (odd.key, odd.value, None, None)
    assert [tuple(one.values()) for one in rows[9]["headers"]] == [("a", None), ("a", b"\xfe\xfd")]
    assert (rows[10]["key"], rows[10]["value"], rows[10]["headers"], rows[10]["group"]) == (
        None,
        b"",
        None,
        "007/ä" * 100,
    )
    assert (rows[11]["value"], rows[5]["group"], rows[5]["batch_id"]) == (None, "", batch_of(parts[0]).key)
    found = DeltaTable(tmp_path).to_pyarrow_table(columns=["offset", "date", "group_label"]).to_pylist()
    labels = {row["offset"]: (str(row["date"]), row["group_label"]) for row in found}
    assert labels[5][0] == "2023-11-14"
    assert (labels[9][0], labels[10][0], labels[11][0]) == ("None", "8307-10-01", "None")
    assert labels[5][1] == label_of("") != ""
    assert len(labels[10][1]) < 100


def test_what_waits_goes_into_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one commit is made the batches of other threads gather; the next one has them all, each part once."""
    first, go = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> None:
        first.set()
        assert go.wait(30)
        write_deltalake(*args, **options)

    monkeypatch.setattr(WRITE, slow)
    table = sink(tmp_path)
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(table.deliver, batch_of(numbered(0)))]
        assert first.wait(30)
        answers += [pool.submit(table.deliver, batch_of(numbered(1 + i % 10))) for i in range(19)]
        while table._work.qsize() < 19:
            threading.Event().wait(0.001)
        go.set()
        assert {answer.result().verdict for answer in answers} == {Verdict.ACK}
    table.close()
    assert commits(tmp_path) == 2
    assert offsets_in(tmp_path) == sent([numbered(i) for i in range(11)])


def test_a_commit_is_followed_by_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes soon after a commit waits for the next one, with all that comes meanwhile; a stop ends the pause."""
    monkeypatch.setattr(module, "PAUSES", 1_000)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 2.0)
    table = sink(tmp_path)
    assert table.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(table.deliver, batch_of(numbered(i))) for i in range(1, 11)]
        assert {answer.result().verdict for answer in answers} == {Verdict.ACK}
        monkeypatch.setattr(module, "PAUSE_MAX_S", 600.0)
        late = pool.submit(table.deliver, batch_of(numbered(11)))
        late.add_done_callback(lambda _: None)
        threading.Event().wait(0.01)
        table.close()
        assert late.result().verdict in (Verdict.ACK, Verdict.BUSY)
    assert commits(tmp_path) in (2, 3)


def test_a_part_comes_once_whoever_brings_it(tmp_path: Path) -> None:
    """Another process with a stale view, a zombie, a batch put together otherwise, a part twice: nothing is doubled."""
    one, other = sink(tmp_path), sink(tmp_path)
    assert one.deliver(batch_of(numbered(0), numbered(0))).verdict is Verdict.ACK
    assert other.deliver(batch_of(numbered(2))).verdict is Verdict.ACK  # out of order, before part 1
    assert one.deliver(batch_of(numbered(1), numbered(2))).verdict is Verdict.ACK
    assert other.deliver(batch_of(numbered(1))).verdict is Verdict.ACK
    assert other.deliver(batch_of(numbered(0), numbered(1), numbered(3))).verdict is Verdict.ACK
    again = sink(tmp_path)
    assert again.deliver(batch_of(*map(numbered, range(4)))).verdict is Verdict.ACK
    for table in (one, other, again):
        table.close()
    assert commits(tmp_path) == 4
    assert offsets_in(tmp_path) == sent([numbered(i) for i in range(4)])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_with_an_unknown_end_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """An error is a retry with its reason, and the same batch is appended then, unless it had landed all the same."""
    table = sink(tmp_path)
    monkeypatch.setattr(WRITE, failing(when))
    answer = table.deliver(batch_of(numbered(0)))
    assert answer.verdict is Verdict.UNANSWERED
    assert ("No space left" if when == "before" else "checkpoint") in answer.reason
    assert table.deliver(batch_of(numbered(0), numbered(1))).verdict is Verdict.ACK
    table.close()
    assert offsets_in(tmp_path) == sent([numbered(0), numbered(1)])


@settings(max_examples=15)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(st.integers(0, 11), min_size=1, max_size=4),
            st.sampled_from(["", "", "before", "after", "restart"]),
        ),
        max_size=14,
    )
)
def test_no_order_of_deliveries_and_failures_loses_or_doubles(
    steps: list[tuple[int, list[int], str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Three processes bring the same parts in any order, fail and start again: what was acknowledged is there once."""
    path = tmp_path_factory.mktemp("table")
    tables = [sink(path) for _ in range(3)]
    landed: set[int] = set()
    for who, numbers, trouble in steps:
        with pytest.MonkeyPatch.context() as patch:
            if trouble in ("before", "after"):
                patch.setattr(WRITE, failing(trouble))
            answer = tables[who].deliver(batch_of(*map(numbered, numbers)))
        if answer.verdict is Verdict.ACK or trouble == "after":
            landed.update(numbers)
        if trouble == "restart":
            tables[who].close()
            tables[who] = sink(path)
    for table in tables:
        table.close()
    assert offsets_in(path) == sent([numbered(number) for number in landed])


def test_two_processes_at_once(tmp_path: Path) -> None:
    """Two that append the same parts at the same time get in each other's way, and each part is there once."""
    tables = [sink(tmp_path), sink(tmp_path)]
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(tables[i % 2].deliver, batch_of(numbered(i // 2))) for i in range(40)]
        assert {answer.result().verdict for answer in found} == {Verdict.ACK}
    for table in tables:
        table.close()
    assert offsets_in(tmp_path) == sent([numbered(i) for i in range(20)])


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """After kill -9 in the midst of appending another process goes on: acknowledged parts are there, none is twice."""
    chance, begin, killed = random.Random(7), 0, 0
    while killed < 4:
        command = [sys.executable, "-m", "tests.support.delta", str(tmp_path), str(begin), "1000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            stop_at = begin + chance.randrange(1, 4)
            for line in child.stdout:
                word, number = line.split()
                begin = max(begin, int(number))
                assert word in ("begin", "ack")
                if int(number) == stop_at and word == "begin":
                    threading.Event().wait(chance.uniform(0, 0.02))  # anywhere in the commit
                    child.kill()
                    killed += 1
                    break
        there = offsets_in(tmp_path)
        assert sent([numbered(i) for i in range(begin)]) == [pair for pair in there if pair[1] < 3 * begin]
        assert len(there) == len(set(there))
        begin = max(0, begin - 2)  # the successor brings again what was known to be there, and what was not
    table, end = sink(tmp_path), len(there) // 3 + 4  # the last one may have gone on until the kill struck
    assert all(table.deliver(batch_of(numbered(i))).verdict is Verdict.ACK for i in range(begin, end))
    table.close()
    assert offsets_in(tmp_path) == sent([numbered(i) for i in range(end)])


def test_acknowledged_rows_are_synced_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, the folders that name it and then the log are synced before the answer: a power cut takes nothing back."""
    synced: list[Path] = []
    table = sink(tmp_path / "t")
    monkeypatch.setattr(files, "sync", synced.append)
    assert table.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    table.close()
    root = tmp_path / "t"
    (data,) = root.rglob("*.parquet")
    (log,) = (root / "_delta_log").glob("*1.json")
    assert set(synced) == {data, data.parent, data.parent.parent, root, log, log.parent}
    assert synced[0] == data
    assert synced[-2:] == [log, log.parent]


def test_other_programs_may_change_the_table(tmp_path: Path) -> None:
    """Compaction and rows of others get in between, and neither loses nor doubles anything."""
    table = sink(tmp_path)
    for number in range(4):
        assert table.deliver(batch_of(numbered(number))).verdict is Verdict.ACK
    assert DeltaTable(tmp_path).optimize.compact()["numFilesRemoved"] == 4
    foreign = DeltaTable(tmp_path).to_pyarrow_table().slice(0, 1)
    write_deltalake(tmp_path, foreign, mode="append")
    assert table.deliver(batch_of(numbered(3), numbered(4))).verdict is Verdict.ACK
    table.close()
    assert len(offsets_in(tmp_path)) == 5 * 3 + 1


def test_groups_share_a_file(tmp_path: Path) -> None:
    """A commit makes one file of all groups, whose rows lie by group, each with its label."""
    rows = [message(offset) for offset in range(6)]
    joined = part(rows, "", groups=["b", "a c", "b", "", "a c", "b"])
    table = sink(tmp_path)
    assert table.deliver(batch_of(joined)).verdict is Verdict.ACK
    table.close()
    (file,) = DeltaTable(tmp_path).file_uris()
    found = pq.ParquetFile(file).read(["group", "offset", "group_label"]).to_pylist()
    assert [(row["group"], row["offset"]) for row in found] == [
        ("", 3),
        ("a c", 1),
        ("a c", 4),
        ("b", 0),
        ("b", 2),
        ("b", 5),
    ]
    assert all(row["group_label"] == label_of(row["group"]) for row in found)


def test_a_table_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """A table that is partitioned by the group too stays so, and gets the rows of all groups."""
    DeltaTable.create(tmp_path, TABLE_SCHEMA, partition_by=["group_label", "date"])
    table = sink(tmp_path)
    assert table.deliver(batch_of(part([message(0), message(1)], "", groups=["a", "b"]))).verdict is Verdict.ACK
    table.close()
    assert offsets_in(tmp_path) == [("a", 0), ("b", 1)]
    assert len(list(tmp_path.glob("group_label=*"))) == 2


def test_a_table_that_was_made_again_has_nothing(tmp_path: Path) -> None:
    """When the table is replaced by an empty one, what the old one had is appended again, not taken for known."""
    table = sink(tmp_path / "t")
    assert table.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    (tmp_path / "t").rename(tmp_path / "old")
    other = sink(tmp_path / "t")
    for number in range(1, 5):
        other.deliver(batch_of(numbered(number)))
    other.close()
    table.deliver(batch_of(numbered(5)))
    assert table.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    table.close()
    assert offsets_in(tmp_path / "t") == sent([numbered(number) for number in range(6)])


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    """At the start it is an error that names the column; when it is changed later the intake stops, with a reason."""
    write_deltalake(tmp_path / "other", pa.table({"topic": ["x"], "offset": pa.array([1], pa.int32())}))
    with pytest.raises(ConfigError, match="other columns: offset is int32, and would be int64") as caught:
        sink(tmp_path / "other")
    assert "sink.delta.path" in caught.value.hint
    table = sink(tmp_path / "t")
    assert table.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    DeltaTable(tmp_path / "t").alter.add_columns(deltalake.Field("more", deltalake.schema.PrimitiveType("string")))
    answers = [table.deliver(batch_of(numbered(1))) for _ in range(2)]
    table.close()
    assert {answer.verdict for answer in answers} == {Verdict.HALT}
    assert "more" in answers[-1].reason


def test_a_place_that_cannot_be_a_table_is_refused(tmp_path: Path) -> None:
    """A file, and a torn log, are errors of the configuration with one line of reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot open the Delta table"):
        sink(tmp_path / "file")
    sink(tmp_path / "t").close()
    (log,) = (tmp_path / "t" / "_delta_log").glob("*.json")
    log.write_bytes(log.read_bytes()[:40])
    with pytest.raises(ConfigError, match="cannot open the Delta table") as caught:
        sink(tmp_path / "t")
    assert "unknown" not in str(caught.value)


def test_a_commit_without_its_rows_is_refused(tmp_path: Path) -> None:
    """A commit whose data a power cut took does not vouch for it: the error says what to remove, then all is well."""
    table = sink(tmp_path)
    for number in (0, 1):
        assert table.deliver(batch_of(numbered(number))).verdict is Verdict.ACK
    table.close()
    before = offsets_in(tmp_path)
    newest = max(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"")
    with pytest.raises(ConfigError, match="is incomplete, and version 2 names it") as caught:
        sink(tmp_path)
    name = caught.value.hint.split()[1]
    (tmp_path / "_delta_log" / name).unlink()
    table = sink(tmp_path)
    assert table.deliver(batch_of(numbered(1))).verdict is Verdict.ACK
    table.close()
    assert offsets_in(tmp_path) == before


def test_names_of_others_and_odd_metadata(tmp_path: Path) -> None:
    """A commit whose metadata only looks like ours says nothing, and does no harm."""
    sink(tmp_path).close()
    for odd in ("%%%", "YWJj", {"a": 1}, 7, '{"v": 1}', '{"a": 1}'):
        properties = deltalake.CommitProperties(custom_metadata={"sidecar": odd})
        empty = DeltaTable(tmp_path).to_pyarrow_table()
        write_deltalake(tmp_path, empty, mode="append", commit_properties=properties)
    table = sink(tmp_path)
    assert table.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    table.close()
    assert offsets_in(tmp_path) == sent([numbered(0)])


def test_a_commit_of_another_version_is_refused(tmp_path: Path) -> None:
    """Its parts cannot be recognized, so they would be appended again."""
    sink(tmp_path).close()
    properties = deltalake.CommitProperties(custom_metadata={"sidecar": '{"v": 2}'})
    empty = DeltaTable(tmp_path).to_pyarrow_table()
    write_deltalake(tmp_path, empty, mode="append", commit_properties=properties)
    with pytest.raises(ConfigError, match="names its parts in version 2, and this program knows 1"):
        sink(tmp_path)


def test_names_are_forgotten_at_their_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest names are kept; a part that comes again after that is appended again, not lost."""
    monkeypatch.setattr("sidecar.sinks.table.parts.NAMES_MAX", 2)
    table = sink(tmp_path)
    for number in (0, 1, 2, 2, 1, 0):
        assert table.deliver(batch_of(numbered(number))).verdict is Verdict.ACK
    table.close()
    assert offsets_in(tmp_path) == sorted(sent([numbered(i) for i in range(3)]) + sent([numbered(0)]))


def configured(tmp_path: Path, path: str) -> Settings:
    """Settings with this sink."""
    kafka = {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["t"]}
    state = {"dir": str(tmp_path / "state")}
    return Settings.model_validate({"source": {"kafka": kafka}, "sink": {"delta": {"path": path}}, "state": state})


def test_it_is_made_from_the_settings(tmp_path: Path) -> None:
    """`sink.delta` takes a path or a URL of one, and many batches at once; a part goes in wholly."""
    settings = configured(tmp_path, f"file://{tmp_path}/t")
    assert settings.sink.chosen.batches_at_once > 1
    made = build_sink(settings, ListColumns(), tags_of)
    assert isinstance(made, DeltaSink)
    assert made.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    made.close()
    (log,) = (tmp_path / "t" / "_delta_log").glob("*0.json")
    (metadata,) = [one["metaData"] for one in map(orjson.loads, log.read_bytes().splitlines()) if "metaData" in one]
    assert metadata["partitionColumns"] == ["date"]


@pytest.mark.parametrize("package", ["deltalake", "pyarrow"])
def test_without_its_packages_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Who has neither deltalake nor pyarrow gets the command that installs them."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delattr(table_package, "parts")
    forgotten = ("sidecar.sinks.delta", "sidecar.sinks.table.parts", "sidecar.zone")
    for name in [name for name in sys.modules if name.startswith(forgotten)]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=f"sink.delta needs {package}, which is not installed") as caught:
        build_sink(configured(tmp_path, str(tmp_path / "t")), ListColumns(), tags_of)
    assert caught.value.hint == "pip install consumer-sidecar[delta]"
