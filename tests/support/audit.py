"""Counts what arrived against what was produced: lost, twice, wrong; books; what a kill may repeat. Starts nothing."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.receiver import Fault, Receiver, Request
from tests.support.workload import Place, canonical

BOOKS = (
    "delivered", "duplicate", "filtered", "dead_lettered", "cancelled", "released", "in_flight", "delayed", "parked",
)  # fmt: skip
SETTLED_MS = 200
"""What was settled in the last so many milliseconds before a kill may be repeated (promise 4)."""
COMMIT_MS = 150
"""Added to that: a commit on its way, on a busy machine."""
STARTS_MS = 500
"""A process sends nothing for so long after its start: what a receiver stores then is of the one before."""


@dataclass(repr=False)
class Tally:
    """What a receiver got, against what it should have got."""

    lost: list[Any] = field(default_factory=list)
    twice: list[Any] = field(default_factory=list)
    unknown: list[Any] = field(default_factory=list)
    """Rows that should not be there at all, or with another value."""

    @property
    def exact(self) -> bool:
        """Nothing is lost, twice or unknown."""
        return not (self.lost or self.twice or self.unknown)

    def add(self, other: Tally) -> None:
        """What another receiver got belongs to it too."""
        self.lost += other.lost
        self.twice += other.twice
        self.unknown += other.unknown

    def __repr__(self) -> str:
        shown = (f"{len(rows)} {what}: {rows[:5]}" for what, rows in vars(self).items() if rows)
        return f"Tally({', '.join(shown) or 'exact'})"


def tally_counts(got: Counter[Any], wanted: Counter[Any]) -> Tally:
    """Compare how often each thing came with how often it should have come."""
    lost, more = wanted - got, got - wanted
    return Tally(
        list(lost.elements()),
        [one for one in more.elements() if one in wanted],
        [one for one in more.elements() if one not in wanted],
    )


@dataclass
class Finding:
    """What one check came to."""

    point: str
    times: int
    messages: int
    found: Tally | None
    """None where rows are not what is counted."""
    seconds: float
    notes: str = ""
    repeated: int = 0
    """Rows that came again as promise 4 allows; they are not in `found`."""

    @property
    def exact(self) -> bool:
        """Nothing was lost, or came twice but where that is promised, or was not produced."""
        return self.found is None or self.found.exact


class CheckingReceiver(Receiver):
    """The receiver, which compares each row of `envelope` with what was produced, whole, repeats included.

    Args:
        prints: Fingerprint of each wanted message.
        out: File that parts are appended to.
        remember: Whether it remembers names.

    Attributes:
        wrong: Rows that differ from what was produced, or were not wanted; the first few.
    """

    def __init__(self, prints: Mapping[Place, int], out: Path | None = None, *, remember: bool = True) -> None:
        self.wrong: list[bytes] = []
        self._prints = prints
        self._checked = threading.Lock()
        super().__init__(out=out, remember=remember)

    def store(self, request: Request, marker: bytes = b"") -> list[int]:
        """Compare, then store."""
        for line in request.lines:
            place, print_ = canonical(line)
            if self._prints.get(place) != print_:
                with self._checked:
                    self.wrong = [*self.wrong, line[:300]][:5]
        return super().store(request, marker)


class StrikingReceiver(Receiver):
    """The receiver, which does something the moment a request has come, before it stores anything.

    Attributes:
        strike: What it does at the next request, once.
    """

    strike: Callable[[], None] | None = None

    def __enter__(self) -> StrikingReceiver:
        return self

    def fault_for(self, request: Request) -> Fault | None:
        """Strike, then go on as ever."""
        strike, self.strike = self.strike, None
        if strike is not None:
            strike()
        return super().fault_for(request)


@dataclass
class Life:
    """One process of the daemon, in milliseconds since the epoch."""

    began_ms: int
    ended_ms: int = 0
    state_deleted: bool = False


def tally(rows: Iterable[Sequence[Any]], wanted: Mapping[Place, str | None]) -> Tally:
    """Compare `envelope` rows (topic, partition, offset, value's hash) with what was wanted."""
    rows = list(rows)
    got = Counter((row[0], row[1], row[2]) for row in rows)
    found = {(row[0], row[1], row[2]): row[3] for row in rows}
    unknown = [place for place in got if place not in wanted or wanted[place] != found[place]]
    return Tally([p for p in wanted if p not in got], [p for p, n in got.items() if n > 1], unknown)


def tally_values(rows: Iterable[Sequence[Any]], wanted: Mapping[Place, str | None]) -> Tally:
    """Compare rows that have no offset by topic, partition and value's hash."""
    should = Counter((place[0], place[1], value) for place, value in wanted.items())
    return tally_counts(Counter((row[0], row[1], row[3]) for row in rows), should)


def check_books(status: Mapping[str, Any], *, left: bool = False) -> None:
    """Every message handed over has one outcome, in total and in each partition.

    Args:
        status: As the daemon tells it.
        left: Whether partitions were revoked or lost at any time: their counts may be in the total alone.
    """
    for books in (status, *status["partitions"]):
        outcomes = sum(books[name] for name in BOOKS)
        assert books["consumed"] == outcomes, f"the books do not balance: {books}"
    for name in ("consumed", *BOOKS):
        listed = sum(books[name] for books in status["partitions"])
        assert status[name] == listed or (left and status[name] > listed), name


def first_new_rows_ms(parts: Sequence[Mapping[str, Any]], lives: Sequence[Life]) -> dict[int, int]:
    """By the index of each life that stored anything new, the milliseconds from its process's start until then."""
    seen: set[tuple[Any, ...]] = set()
    first: dict[int, int] = {}
    for part in parts:
        rows = {tuple(row) for row in part["rows"]}
        life = _life_at(part["at_ms"], lives)
        if rows - seen and life not in first:
            first[life] = part["at_ms"] - lives[life].began_ms
        seen |= rows
    return first


def _life_at(at_ms: int, lives: Sequence[Life]) -> int:
    return max(i for i, life in enumerate(lives) if i == 0 or life.began_ms + STARTS_MS <= at_ms)


def oldest_repeat_ms(parts: Sequence[Mapping[str, Any]], lives: Sequence[Life]) -> tuple[int, int]:
    """How many rows were repeated, and how long before the kill the oldest of them was stored, in milliseconds.

    Raises:
        AssertionError: A row came twice in one life.
    """
    stored: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for part in parts:
        for row in part["rows"]:
            stored[tuple(row[:3])].append(part["at_ms"])
    repeats, oldest = 0, 0
    for place, times in stored.items():
        for before, after in pairwise(times):
            life = _life_at(before, lives)
            assert _life_at(after, lives) > life, f"{place} was stored twice in one life"
            oldest = max(oldest, lives[life].ended_ms - before)
            repeats += 1
    return repeats, oldest


def longest_gap_ms(parts: Sequence[Mapping[str, Any]], from_ms: int, to_ms: int) -> int:
    """The longest time without a stored part between two instants."""
    times = sorted(part["at_ms"] for part in parts if from_ms <= part["at_ms"] <= to_ms)
    return max((b - a for a, b in pairwise([from_ms, *times, to_ms])), default=0)
