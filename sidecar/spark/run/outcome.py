"""Outcomes of ranges, and the books of a micro-batch. Light to import: each commit is a new Python process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sidecar.core.books import Books
from sidecar.core.messages.tags import UNWANTED_MAX
from sidecar.core.records import TopicPartition

if TYPE_CHECKING:
    from sidecar.core.claims import ClaimEnd
    from sidecar.core.delivery.output import Carried


@dataclass(slots=True)
class Outcome:
    """The outcome of a range."""

    tp: TopicPartition
    last: int = -1
    """Offset of its last row that was not filtered out earlier."""
    books: Books = field(default_factory=Books)
    cuts: Mapping[str, int] = field(default_factory=dict)
    sends: Mapping[tuple[str, str], int] = field(default_factory=dict)
    batches: Mapping[tuple[str, str], int] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)
    """Files with dead letters."""
    refused: int = 0
    """Number of messages that the receiver permanently refused."""
    carried: list[Carried] = field(default_factory=list)
    """Rows whose keys twins held; they count as in flight."""
    errors: list[ClaimEnd] = field(default_factory=list)
    """Dead letters, of which the ledger is to be told when the micro-batch is committed."""
    scope: str = ""
    """Identity of the partition in the names of parts."""
    lane: str | None = None
    """Why the fast lane did not read it, empty if it did; None if it was not wanted."""
    odd_ids: int = 0
    """Messages whose id cannot be compared."""
    tags_refused: Mapping[str, int] = field(default_factory=dict)
    """Messages that a task filtered, by what refused their tags: see `LOOKS`."""
    unwanted: Collection[str] = ()
    """Unwanted tags, for people."""
    expired: int = 0
    """Offsets before the range that expired before they were read."""


def books_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The books of a micro-batch, as JSON."""
    return {
        "partitions": [[*outcome.tp, asdict(outcome.books)] for outcome in outcomes],
        "cuts": _sum([outcome.cuts for outcome in outcomes]),
        "sends": [[*pair, count] for pair, count in _sum([outcome.sends for outcome in outcomes]).items()],
        "batches": [[*pair, count] for pair, count in _sum([outcome.batches for outcome in outcomes]).items()],
        "letters": [name for outcome in outcomes for name in outcome.letters],
        "lane": sorted({outcome.lane for outcome in outcomes if outcome.lane is not None}),
        "expired": [[*outcome.tp, outcome.expired] for outcome in outcomes if outcome.expired],
        "odd_ids": sum(outcome.odd_ids for outcome in outcomes),
        "tags_refused": _sum([outcome.tags_refused for outcome in outcomes]),
        "unwanted": list({tag: None for outcome in outcomes for tag in outcome.unwanted})[:UNWANTED_MAX],
    }


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The books of the tasks of a micro-batch that fills a table, which have no sends and no letters, as one."""
    lane = {reason for part in parts for reason in part["lane"]}
    unwanted = list({tag: None for part in parts for tag in part.get("unwanted", ())})[:UNWANTED_MAX]
    return books_of([]) | {
        "partitions": [one for part in parts for one in part["partitions"]],
        "expired": [one for part in parts for one in part.get("expired", ())],
        "lane": sorted(lane),
        "odd_ids": sum(part.get("odd_ids", 0) for part in parts),
        "tags_refused": _sum([part.get("tags_refused", {}) for part in parts]),
        "unwanted": unwanted,
    }


def _sum(counts: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for summand in counts:
        total.update(summand)
    return dict(total)
