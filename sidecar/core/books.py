"""The books: each message that was handed over has exactly one outcome. Counts only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple, Self, TypeAlias

from sidecar.core.records import TopicPartition, group_label

CLOSE_AFTER_MS = 4_000
"""Time for which the books of a revoked partition are kept: a reload leaves no gap, and the last counts can be read."""
GROUPS_MAX = 200
"""Maximum number of groups with their own counts."""
OTHER = "other"
Counts: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int]


@dataclass(slots=True)
class Books:
    """Messages of one partition since the process began; ``consumed`` is the sum of the other nine."""

    consumed: int = 0
    delivered: int = 0
    duplicate: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    cancelled: int = 0
    released: int = 0
    in_flight: int = 0
    delayed: int = 0
    parked: int = 0

    @property
    def balanced(self) -> bool:
        """Whether every message handed over has exactly one outcome."""
        settled = self.delivered + self.duplicate + self.filtered + self.dead_lettered + self.cancelled
        return self.consumed == settled + self.released + self.in_flight + self.delayed + self.parked

    def read(self, count: int, duplicate: int, filtered: int) -> None:
        """Count `count` messages as consumed; those that are neither duplicate nor filtered are in flight."""
        self.consumed += count
        self.duplicate += duplicate
        self.filtered += filtered
        self.in_flight += count - duplicate - filtered

    def restore(self, delayed: int, parked: int = 0) -> None:
        """Count messages that a store holds since before the partition was taken."""
        self.consumed += delayed + parked
        self.delayed += delayed
        self.parked += parked

    def fetch(self, count: int) -> None:
        """Count parked messages as in flight."""
        self.parked -= count
        self.in_flight += count

    def read_out(self, count: int, duplicate: int, filtered: int) -> None:
        """Count messages that a store held and that are due."""
        self.read(count, duplicate, filtered)
        self.consumed -= count
        self.delayed -= count

    def cancel(self, count: int) -> None:
        """Count messages that a store held as cancelled."""
        self.delayed -= count
        self.cancelled += count

    def settle(self, outcome: str, count: int) -> None:
        """Move `count` messages from in flight to this outcome."""
        setattr(self, outcome, getattr(self, outcome) + count)
        self.in_flight -= count

    def __iadd__(self, other: Books) -> Self:
        for name in BOOKS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def counts(self) -> Counts:
        """The counters, in the order of `BOOKS`."""
        return _COUNTS(self)


BOOKS = tuple(field.name for field in fields(Books))
"""The ten counters, `consumed` first."""
_COUNTS: Callable[[Books], Counts] = attrgetter(*BOOKS)


class Tally:
    """Counts by group and kind, for at most `GROUPS_MAX` groups; further ones count as `OTHER`."""

    def __init__(self) -> None:
        self._labels: dict[int, str] = {}
        """By the hashes of groups: a producer's tag may be as large as a message."""
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, group: str, kind: str, count: int = 1) -> None:
        """Add `count` to a group's counter."""
        label = self._labels.get(hash(group))
        if label is None:
            label = OTHER
            if len(self._labels) < GROUPS_MAX:
                label = self._labels[hash(group)] = group_label(group)
        self._counts[label, kind] += count

    def counts(self) -> dict[tuple[str, str], int]:
        """The counts by group label and kind."""
        return dict(self._counts)


class Accounts(dict[TopicPartition, Books]):
    """The books of each partition, kept after revocation until they are closed. Closed books stay in the sum."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = Books()
        """The sum of the books of partitions that were revoked and closed."""
        self._gone_ms: dict[TopicPartition, float] = {}
        """Partitions that are no longer owned, and since when that is known."""

    def open(self, tp: TopicPartition) -> None:
        """Open the books of an owned partition; if it was owned before, its books continue."""
        self.setdefault(tp, Books())

    def of(self, tp: TopicPartition) -> Books:
        """The books of a partition together with those of its delayed messages.

        A message is delayed in the books of its partition. When it is due, it leaves there by the other books, whose
        number of delayed messages may thus be negative.
        """
        both = Books()
        for books in [self[each] for each in (tp.source, tp.store) if each in self]:
            both += books
        return both

    def release(self, tp: TopicPartition) -> None:
        """Count the messages of a lost partition that are in flight, or that its store still holds, as released."""
        books = self[tp]
        books.released += books.in_flight + books.parked
        books.in_flight = books.parked = 0
        if tp.delayed:
            held = self.of(tp).delayed
            books.released += held
            books.delayed -= held

    def close(self, owned: Collection[TopicPartition], now_ms: float) -> None:
        """Keep only the sum of the books of partitions that have not been owned for `CLOSE_AFTER_MS`."""
        self._gone_ms = {tp: self._gone_ms.get(tp, now_ms) for tp in self if tp not in owned}
        for tp, gone_ms in self._gone_ms.items():
            if now_ms >= gone_ms + CLOSE_AFTER_MS:
                self._closed += self.pop(tp)

    def total(self) -> Books:
        """The sum of all books, closed ones included."""
        return Books(*map(sum, zip(*(books.counts() for books in (self._closed, *self.values())), strict=True)))


@dataclass(slots=True)
class OpenGroup:
    """Unsettled messages of a tag group."""

    batches: int = 0
    """Batches that are filling."""
    messages: int = 0
    """Messages in these batches."""
    nbytes: int = 0
    """Size of these messages in a body."""
    oldest_ms: int | None = None
    """Timestamp of the oldest unsettled message, those that are sent or retried included; None if unknown."""


class OpenMessages(NamedTuple):
    """Unsettled messages by partition and group."""

    oldest: Mapping[TopicPartition, int] = {}
    """Timestamp of the oldest, epoch milliseconds."""
    groups: Mapping[str, OpenGroup] = {}
    """By label."""
