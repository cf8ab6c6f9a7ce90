"""Which ranges a query reads next, by its offsets alone, which are in Spark's checkpoint. Knows no client and no Spark.

Offsets are JSON: `next`, the offset after the last one read of each partition; `from`, where the query began in each
partition; `ids`, the id of each topic; `name`, that of the query, under which it keeps message ids; `skipped`, where
the micro-batch begins in partitions whose next messages had expired, if there are any. So a micro-batch that is
replayed has the same ranges, whatever has become of the logs, and no file is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.errors import PositionError
from sidecar.spark.query.places import Place, offsets_at
from sidecar.spark.ranges.broker import (
    LogExtent,
    Logs,
    OnGap,
    by_partition,
    by_topic,
    ends_of,
    expired,
    gap,
    highs_of,
    lost,
    lows_of,
)

Offsets: TypeAlias = dict[str, Any]
ANEW = "begin anew with another checkpoint"


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition, without `end`.

    Args:
        end: The offset after the last.
        is_first: Whether the query reads nothing of the partition before.
        query: Name of the query; empty if it began without message ids.
        expired: Number of offsets before `start` that expired before they were read.
    """

    tp: TopicPartition
    topic_id: str
    start: int
    end: int
    is_first: bool
    query: str = ""
    expired: int = 0


def begin(logs: Logs, start: Place, name: str = "") -> Offsets:
    """The offsets of a query that has read nothing.

    Raises:
        ConfigError: See `offsets_at`.
    """
    return _offsets({}, offsets_at(logs, logs.bounds(), "start", start), {}, name)


def latest(bounds: Mapping[TopicPartition, LogExtent]) -> Offsets:
    """The offsets of a query that has read everything."""
    return _offsets(highs_of(bounds), {}, {})


def advance(
    logs: Logs, start: Offsets, most: int | None, bounds: Mapping[TopicPartition, LogExtent], on_gap: OnGap = "stop"
) -> Offsets:
    """The offsets after the next micro-batch; `start` itself if there is nothing to read.

    Args:
        most: Limit of offsets; None for none.
        bounds: The bounds of all logs.
        on_gap: What to do where messages expired before they were read.

    Raises:
        PositionError: A topic or partition is gone, was created again, ends below the offset up to which it was read,
            or begins behind it.
    """
    known = by_partition(start["next"])
    ids = logs.topic_ids(sorted({tp.topic for tp in bounds}))
    for tp, offset in known.items():
        if not logs.is_read(tp.topic):
            raise PositionError(f"{tp.topic} was removed from the option topics: add it again, or {ANEW}")
        if why := lost(tp, offset, bounds[tp].high if tp in bounds else None):
            raise PositionError(f"{why}; restore it or access to it, or {ANEW}")
        if ids.get(tp.topic, "") != start["ids"].get(tp.topic, ""):
            raise PositionError(f"{tp.topic} was deleted and created again: {ANEW}")
    firsts = by_partition(start["from"])
    begun = {tp: known.get(tp, firsts.get(tp, found.low)) for tp, found in bounds.items()}
    skipped = behind(begun, bounds, on_gap)
    begun |= skipped
    ends = ends_of(begun, {tp: max(found.high, begun[tp]) for tp, found in bounds.items()}, most)
    if ends == known:
        return start
    firsts = {tp: offset for tp, offset in begun.items() if tp not in known} | firsts
    after = _offsets(ends, firsts, ids, _name(start))
    return after | {"skipped": by_topic(skipped)} if skipped else after


def behind(
    begun: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, LogExtent], on_gap: OnGap
) -> dict[TopicPartition, int]:
    """Where partitions go on whose messages expired before they were read.

    Raises:
        PositionError: There are some, and the options do not say to go on.
    """
    found = expired(begun, lows_of(bounds))
    if found and on_gap == "stop":
        tp, low = next(iter(found.items()))
        raise PositionError(f"{gap(tp, begun[tp], low, 'the option on_gap')}; or {ANEW}")
    return found


def spans(start: Offsets, end: Offsets, lows: Mapping[TopicPartition, int] | None = None) -> list[Span]:
    """The ranges of a micro-batch, of partitions with new offsets.

    Args:
        lows: Where the logs begin that lack messages of it by now; None if it was planned a moment ago.
    """
    known, firsts, ids = by_partition(start["next"]), by_partition(end["from"]), end["ids"]
    skipped = by_partition(end.get("skipped", {}))
    found: list[Span] = []
    for tp, last in by_partition(end["next"]).items():
        begun = known.get(tp, firsts[tp])
        if last > begun:
            first = max(begun, min(last, max(skipped.get(tp, begun), (lows or {}).get(tp, begun))))
            is_first, gone = begun == firsts[tp], first - begun
            found.append(Span(tp, ids.get(tp.topic, ""), first, last, is_first, _name(end), gone))
    return found


def _name(offsets: Offsets) -> str:
    """The name of the query; empty in offsets of earlier builds."""
    return str(offsets.get("name", ""))


def _offsets(
    ends: Mapping[TopicPartition, int], firsts: Mapping[TopicPartition, int], ids: Mapping[str, str], name: str = ""
) -> Offsets:
    return {"next": by_topic(ends), "from": by_topic(firsts), "ids": dict(sorted(ids.items())), "name": name}
