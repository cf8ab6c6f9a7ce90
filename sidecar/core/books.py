"""The books: each message that was handed over has exactly one outcome. Counts only."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple, Self, TypeAlias

from sidecar.core.records import TopicPartition, group_label


class Distribution(NamedTuple):
    """Values by bucket: one count for each upper bound, and one for larger values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    """Sum of the values."""


class Histogram:
    """Collects values; one thread writes, any may take `read`.

    Args:
        bounds: Upper bounds of the buckets, rising.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def read(self) -> Distribution:
        """The values counted so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


CLOSE_AFTER_MS = 4_000
"""Time for which the books of a revoked partition are kept: a reload leaves no gap, and the last counts can be read."""
GROUPS_MAX = 200
"""Maximum number of groups with their own counts."""
OTHER = "other"
LOOKS = ("mask", "look")
"""The steps that refuse messages by their tags: the mask, and the exact look behind it."""
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


AGE_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0)
"""Seconds."""
MESSAGES_BOUNDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)
BYTES_BOUNDS = (256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0)


class DeliveryCounts(NamedTuple):
    """Counts since the start, by group's label where they are by group."""

    messages: Mapping[str, int] = {}
    """In batches that were accepted as a whole."""
    nbytes: Mapping[str, int] = {}
    """Size of their bodies, before compression."""
    ages: Distribution = Histogram(AGE_BOUNDS).read()
    batch_messages: Distribution = Histogram(MESSAGES_BOUNDS).read()
    batch_bytes: Distribution = Histogram(BYTES_BOUNDS).read()
