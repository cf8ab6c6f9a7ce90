"""Batches of several tag groups in one file: order, columns, and reading of some groups."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from sidecar.core.parts import Batch
from sidecar.spark.source.options import Limit
from sidecar.spark.source.planner import Planner
from sidecar.zone import Entry, Tail, read
from sidecar.zone.index import Wanted
from sidecar.zone.writer import Format
from tests.support.landing import TAGS, Sent, entries, joined, part, segment_path, writer


def found(root: Path, entry: Entry, **how: object) -> list[tuple[str, str | None, int]]:
    """Group, tag and offset of the rows that are read of an entry."""
    tables = read(root, entry, ["group", "tag", "offset"], **how)  # type: ignore[arg-type]
    return [(row["group"], row["tag"], row["offset"]) for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_rows_lie_by_group_and_tag(tmp_path: Path, form: Format) -> None:
    """A file has the rows of all groups, by group, tag and offset; each row has its own group."""
    zone = writer(tmp_path, format=form)
    entry = zone.land(joined())
    zone.close()
    assert entry is not None
    assert found(tmp_path, entry) == [
        ("", None, 1),
        ("group-a", "a", 2),
        ("group-a", "a", 5),
        ("group-b", "b", 0),
        ("group-b", "b", 3),
        ("group-c", "c", 4),
    ]


def test_a_damaged_line_of_a_joined_batch_is_made_again(tmp_path: Path) -> None:
    """The data file has the whole description: readers and the next start of the writer restore the line from it."""
    zone = writer(tmp_path)
    zone.land(joined())
    zone.close()
    path = segment_path(tmp_path, "a", 0)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"orders", b"brders"))
    told: list[str] = []
    (entry,) = Tail(tmp_path, report=told.append).poll()["a"]
    assert (len(found(tmp_path, entry)), len(told)) == (6, 1)
    zone = writer(tmp_path)
    assert zone.land(joined()) is None, "its parts are known"
    zone.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_some_groups_are_read(tmp_path: Path, form: Format) -> None:
    """Of a file with several groups only the wanted rows are read, without those that were delivered before."""
    first, second = writer(tmp_path, "a", format=form), writer(tmp_path, "b", format=form)
    first.land(joined(0, TAGS[:4]))
    second.land(joined(0))
    first.close()
    second.close()
    planner = Planner(tmp_path, wanted=Wanted.of({"group-a", "none"}, None), report=print)
    end = planner.latest({}, Limit())
    shares = planner.plan({}, end)
    rows = [list(table.to_pylist()) for share in shares for table in share.read(tmp_path, ["offset"])]
    assert [row for some in rows for row in some] == [{"offset": 2}, {"offset": 5}]
    assert [len(found(tmp_path, entry, groups={"group-c"})) for entry in entries(tmp_path)] == [0, 1]
    other = writer(tmp_path, "c", format=form)
    entry = other.land(Batch(1, "paid", [part([Sent(0, None, b"")], "paid")]))
    other.close()
    assert entry is not None
    assert [len(found(tmp_path, entry, groups={group})) for group in ("paid", "group-a")] == [1, 0]


def test_files_of_one_group_are_still_passed_over(tmp_path: Path) -> None:
    """A file that has a single other group is not read at all."""
    zone = writer(tmp_path)
    zone.land(Batch(1, "paid", [part([Sent(0, None, b"")], "paid")]))
    zone.land(joined(10))
    zone.close()
    planner = Planner(tmp_path, wanted=Wanted.of({"group-a"}, None), report=print)
    assert [share.entry.seq for share in planner.plan({}, planner.latest({}, Limit()))] == [1]
