"""Reading some groups and tags by the index gives what reading all and comparing gives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition
from sidecar.zone import columns, index, read
from sidecar.zone.index import Wanted
from sidecar.zone.writer import Format
from tests.support.landing import Sent, part, writer

GROUPS = st.sampled_from(["", "g", "h", "g,h", "g\0"])
TAGS = st.none() | st.sampled_from(["", "a", "b", "a\n", "a\0", 'a"', "a,b", "ä", "\U0001f600", "x" * 70, "x" * 71])
PARTS = st.lists(st.lists(st.tuples(GROUPS, TAGS), min_size=1, max_size=12), min_size=1, max_size=4)
WANTED = st.builds(Wanted.of, st.none() | st.frozensets(GROUPS), st.none() | st.frozensets(TAGS, max_size=4))
DROP = st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 11)), max_size=40)
"""Partition and offset."""


@settings(max_examples=120, deadline=None)
@given(PARTS, WANTED, DROP, st.integers(1, 40), st.integers(1, 8), st.sampled_from(["arrow", "parquet"]))
def test_the_index_is_a_filter(
    parts: list[list[tuple[str, str | None]]],
    wanted: Wanted,
    dropped: frozenset[tuple[int, int]],
    rows: int,
    spans: int,
    form: Format,
) -> None:
    """Whatever blocks and spans a file has, wanted rows come in their order, without those that are left out."""
    made = [
        part(
            [Sent(i, None, b"v", tag) for i, (_, tag) in enumerate(some)],
            "",
            tp=TopicPartition("orders", number),
            groups=[group for group, _ in some],
        )
        for number, some in enumerate(parts)
    ]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "ROWS_MIN", rows)
        patch.setattr(columns, "ROWS_MAX", 2 * rows)
        patch.setattr(index, "SPANS_MAX", spans)
        zone = writer(Path(folder), format=form)
        entry = zone.land(Batch(1, "", made))
        zone.close()
        assert entry is not None
        drop = {
            cover.place: cover.offsets() & BitMap64(offset for number, offset in dropped if number == cover.partition)
            for cover in entry.covers
        }

        def found(**how: Any) -> list[tuple[str, str | None, int, int]]:
            names = ["group", "tag", "partition", "offset"]
            tables = read(folder, entry, names, **how)
            return [tuple(row.values()) for table in tables for row in table.to_pylist()]

        def is_wanted(row: tuple[str, str | None, int, int]) -> bool:
            return (wanted.groups is None or row[0] in wanted.groups) and (wanted.tags is None or row[1] in wanted.tags)

        everything = found()
        assert len(everything) == sum(map(len, parts))
        expected = list(filter(is_wanted, everything))
        assert found(groups=wanted.groups, tags=wanted.tags) == expected
        assert len(expected) <= wanted.rows_of(entry) <= entry.rows
        left = [row for row in expected if row[2:] not in dropped]
        assert found(groups=wanted.groups, tags=wanted.tags, drop=drop) == left
