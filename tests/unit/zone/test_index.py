"""The index of joined batches: what is read for some tags, its bound, lines without it, and a changed choice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyroaring import BitMap64

from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition
from sidecar.errors import ZoneError
from sidecar.spark.source.options import Limit
from sidecar.spark.source.planner import Offsets, Planner
from sidecar.zone import Entry, Tail, data, read
from sidecar.zone.entry import line_of
from sidecar.zone.index import SPANS_MAX, Wanted, index_of, spans_of
from sidecar.zone.writer import Format
from tests.support.landing import Sent, joined, part, segment_path, writer

CHOICES = [Wanted.of(None, {"a"}), Wanted.of(None, {None, "c"}), Wanted.of({"group-b"}, {"b", "a"})]


def offsets(root: Path, entry: Entry, wanted: Wanted) -> list[int]:
    """The rows that are read of an entry, by offset."""
    tables = read(root, entry, ["offset"], groups=wanted.groups, tags=wanted.tags)
    return [row["offset"] for table in tables for row in table.to_pylist()]


def planned(root: Path, wanted: Wanted, start: Offsets, end: Offsets | None = None) -> tuple[list[int], Offsets]:
    """The offsets that a query reads in a micro-batch, and its end, if a driver begins with it."""
    planner = Planner(root, wanted=wanted, report=print)
    end = planner.latest(start, Limit()) if end is None else end
    tables = (table for share in planner.plan(start, end) for table in share.read(root, ["offset"]))
    return [row["offset"] for table in tables for row in table.to_pylist()], end


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_only_blocks_with_the_tag_are_read(tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file with 200 tags in several blocks, one block is decompressed for one tag, and its rows are known."""
    zone = writer(tmp_path, format=form)
    rows = [Sent(i, None, b"v", f"tag{i % 200}") for i in range(10_000)]
    entry = zone.land(Batch(1, "", [part(rows, "", groups=[row.tag or "" for row in rows])]))
    zone.close()
    assert entry is not None
    taken = Counter[int]()
    blocks = data._blocks

    def counted(*file: Any) -> Any:
        count, take = blocks(*file)
        return count, lambda number: taken.update([number]) or take(number)

    monkeypatch.setattr(data, "_blocks", counted)
    assert offsets(tmp_path, entry, Wanted.of(None, {"tag7"})) == list(range(7, 10_000, 200))
    assert taken.total() == 1
    assert Wanted.of(None, {"tag7"}).rows_of(entry) == 50
    assert Wanted.of(None, {"other"}).rows_of(entry) == 0
    taken.clear()
    assert len(offsets(tmp_path, entry, Wanted())) == 10_000
    assert len(taken) == 5
    assert sum(map(len, spans_of(entry.index))) == 200, "blocks begin where a tag begins"


def test_the_index_of_100_000_tags_is_small() -> None:
    """The number of its spans is bounded, and so are its names; one tag is found in one span of few hundred rows."""
    tags = sorted(f"{'long ' * 100}{i}" for i in range(50_000)) + sorted(f"{i}" for i in range(50_000))
    tables = [
        pa.RecordBatch.from_pydict({"group": ["g"] * 2_000, "tag": tags[i : i + 2_000]})
        for i in range(0, 100_000, 2_000)
    ]
    index = index_of(tables)
    assert sum(map(len, spans_of(index))) <= SPANS_MAX + len(tables)
    assert len(index) < 10_000
    (stretch,) = Wanted.of(None, {"777"}).stretches(index)
    assert stretch.found <= 400
    assert "777" in tags[stretch.begin + stretch.start : stretch.begin + stretch.stop]


def test_an_index_of_another_file_is_damage(tmp_path: Path) -> None:
    """Rows are never taken from the wrong place: the blocks have to be those of the index."""
    zone = writer(tmp_path)
    entry, other = zone.land(joined()), zone.land(joined(10, ("a", "b")))
    zone.close()
    assert entry is not None
    assert other is not None
    with pytest.raises(ZoneError, match="does not have the rows of its index"):
        offsets(tmp_path, replace(entry, index=other.index), Wanted.of(None, {"a"}))


def test_a_line_is_not_made_again_with_a_damaged_index(tmp_path: Path) -> None:
    """If line and data file are damaged, the index included, that is an error with the name of the file."""
    zone = writer(tmp_path)
    entry = zone.land(joined())
    zone.close()
    assert entry is not None
    text = orjson.loads(line_of(entry)[9:])["index"].encode()
    path = segment_path(tmp_path, "a", 0)
    path.write_bytes(path.read_bytes().replace(b"orders", b"brders"))
    file = tmp_path / entry.file
    file.write_bytes(file.read_bytes().replace(text, text[:20] + text[20:].swapcase()))
    with pytest.raises(ZoneError, match=r"line 1 of manifest/a"):
        Tail(tmp_path).poll()


def test_files_without_the_tag_are_passed_over(tmp_path: Path) -> None:
    """No task gets a file in which no wanted row is, and it does not count against the limit."""
    zone = writer(tmp_path)
    for number in range(20):
        zone.land(joined(number * 10, ("b", "c")))
    zone.land(joined(500, ("a", "b")))
    zone.land(joined(600, ("b", "a")))
    zone.close()
    planner = Planner(tmp_path, wanted=Wanted.of(None, {"a"}), report=print)
    end = planner.latest({}, Limit(rows=2))
    assert end == {"a": 21}
    assert [share.entry.seq for share in planner.plan({}, end)] == [20, 21]


def test_a_changed_choice_is_for_what_was_not_delivered(tmp_path: Path) -> None:
    """A query that goes on with other tags reads those from its checkpoint on, a micro-batch under way included."""
    zone = writer(tmp_path)
    zone.land(joined(0))
    a, b = Wanted.of(None, {"a"}), Wanted.of(None, {"b"})
    rows, end = planned(tmp_path, a, {})
    assert rows == [2, 5]
    assert planned(tmp_path, b, {}, end)[0] == [0, 3], "it was not committed, and is read with the new tags"
    zone.land(joined(10))
    zone.close()
    assert planned(tmp_path, b, end)[0] == [10, 13]


def test_copies_are_left_out_whatever_is_wanted(tmp_path: Path) -> None:
    """A row that another process landed before is left out, also if it was in a file without wanted rows there."""
    first, second = writer(tmp_path, "a"), writer(tmp_path, "b")
    first.land(joined(0, ("c", "c", "c")))
    second.land(joined(0, ("a", "b", "c", "a", "a")))
    first.close()
    second.close()
    assert planned(tmp_path, Wanted.of(None, {"a"}), {})[0] == [3, 4]


def test_copies_are_found_in_the_part_that_is_read(tmp_path: Path) -> None:
    """Rows that begin within a block are compared with the offsets of their own partition."""
    zone = writer(tmp_path)
    places = [TopicPartition("orders", number) for number in range(2)]
    parts = [part([Sent(0, None, b"", tag)], "", tp=tp, groups=[tag]) for tp, tag in zip(places, "ab", strict=True)]
    entry = zone.land(Batch(1, "", parts))
    zone.close()
    assert entry is not None
    drops = [{cover.place: BitMap64([0])} for cover in entry.covers]
    counts = [sum(table.num_rows for table in read(tmp_path, entry, drop=drop, tags={"b"})) for drop in drops]
    assert counts == [1, 0]
