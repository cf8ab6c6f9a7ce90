"""Sorting of a range whose rows go into a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sidecar.core.intake.reading import Reading
from sidecar.core.ranges.sorting import RangeSorter
from sidecar.core.records import Run, TopicPartition
from tests.simulation.plan import Columns, Row, read_ids, read_tags
from tests.support.shell import TP, AllGroups, rows


class Keeper:
    """A framer that keeps the offsets it is given."""

    separator = b"\n"

    def __init__(self) -> None:
        self.kept: list[int] = []

    def frame(self, tp: TopicPartition, messages: Sequence[Row]) -> tuple[bytes, Sequence[int]]:
        """Keep them."""
        self.kept += [message[0] for message in messages]
        return b"", ()


def sorter(framer: Keeper, *, ids: bool = False) -> RangeSorter:
    """Of a range; messages with a negative tag are unwanted."""
    columns: Any = Columns()
    groups: Any = AllGroups()
    return RangeSorter(Reading(columns, framer, read_tags, groups, read_ids if ids else None), TP, "5c0pe000")


def read(ranged: RangeSorter, some: list[Row]) -> None:
    """One run."""
    ranged.read(Run(TP, some, some[0][0], some[-1][0]), 0.0)


def test_wanted_messages_are_framed_once() -> None:
    """Unwanted ones are counted, and what was read before is a duplicate."""
    framer = Keeper()
    ranged = sorter(framer)
    read(ranged, [*rows(0, 9, tag=1), *rows(10, 11, tag=-1)])
    read(ranged, rows(8, 14, tag=2))
    assert framer.kept == [*range(10), 12, 13, 14]
    books = ranged.books
    assert (books.delivered, books.filtered, books.duplicate) == (13, 2, 4)
    assert books.balanced


def test_an_id_that_was_seen_is_dropped() -> None:
    """In this run or an earlier one."""
    framer = Keeper()
    ranged = sorter(framer, ids=True)
    read(ranged, [(0, 1, 7, b"a"), (1, 1, 7, b"a"), (2, 1, 8, b"b")])
    read(ranged, [(3, 1, 8, b"b"), (4, 1, 9, b"c")])
    assert framer.kept == [0, 2, 4]
    assert (ranged.books.delivered, ranged.books.duplicate) == (3, 2)
