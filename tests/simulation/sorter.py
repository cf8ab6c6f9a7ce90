"""Runs of rows that sort themselves, as those of the fast lane do. Decides as the core would."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sidecar.core.records import NO_ID
from tests.simulation.plan import TPS, LineFramer, Row


class Rows(NamedTuple):
    """See `GroupRows`."""

    group: str
    offsets: Sequence[int]
    data: bytes
    ids: Sequence[int] | None
    unframeable: Sequence[int]


class Sorted(NamedTuple):
    """See `SortedRows`."""

    rows: list[Rows]
    filtered: int
    duplicate: int
    stamp_ms: int | None = None
    odd_ids: int = 0
    masked: int = 0


class Sorter:
    """Sorts rows by rules that are a table of groups by tag; all but the last are gone afterwards.

    Args:
        messages: The rows of the run.
    """

    def __init__(self, messages: list[Row]) -> None:
        self._messages = messages
        self.calls = 0

    def ids(self, rules: Any, /) -> tuple[array[int], int]:
        """See `RunSorter.ids`."""
        wanted = [row for row in self._messages if rules[row[1]] is not None]
        return array("q", map(_id, wanted)), wanted[-1][0] if wanted else -1

    def sort(self, rules: Any, fresh: bytes | None, /) -> Sorted:
        """See `RunSorter.sort`."""
        self.calls += 1
        wanted, chosen = [row for row in self._messages if rules[row[1]] is not None], defaultdict[str, list[Row]](list)
        for row, is_new in zip(wanted, fresh if fresh is not None else b"\1" * len(wanted), strict=True):
            if is_new:
                chosen[rules[row[1]]].append(row)
        found = [_rows(group, some, with_ids=fresh is not None) for group, some in chosen.items()]
        filtered, duplicate = len(self._messages) - len(wanted), len(wanted) - sum(map(len, chosen.values()))
        self._messages[:-1] = [None] * (len(self._messages) - 1)  # type: ignore[list-item]
        return Sorted(found, filtered, duplicate)


def _id(row: Row) -> int:
    return NO_ID if row[2] is None else row[2]


def _rows(group: str, some: list[Row], *, with_ids: bool) -> Rows:
    data, odd = LineFramer().frame(TPS[0], some)
    kept = [row for place, row in enumerate(some) if place not in set(odd)]
    ids = array("q", map(_id, kept)) if with_ids else None
    return Rows(group, array("q", [row[0] for row in kept]), data, ids, [some[place][0] for place in odd])
