"""Which ranges a query reads next, by its offsets alone, which are in Spark's checkpoint. Knows no client and no Spark.

Offsets are JSON: `next`, the offset after the last one read of each partition; `from`, where the query began in each
partition; `ids`, the id of each topic; `name`, that of the query, under which it keeps message ids. So a micro-batch
that is replayed has the same ranges, whatever has become of the logs, and no file is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.spark.query.places import Place, offsets_at
from sidecar.spark.ranges.logs import Bounds, Logs, by_partition, by_topic
from sidecar.spark.ranges.planning import ends_of, lost

Offsets: TypeAlias = dict[str, Any]
ANEW = "begin anew with another checkpoint"


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition, without `end`.

    Args:
        tp: The partition.
        topic_id: Id of its topic.
        start: The first.
        end: The offset after the last.
        is_first: Whether the query reads nothing of the partition before.
        query: Name of the query; empty if it began without message ids.
    """

    tp: TopicPartition
    topic_id: str
    start: int
    end: int
    is_first: bool
    query: str = ""


def begin(logs: Logs, start: Place, name: str = "") -> Offsets:
    """The offsets of a query that has read nothing.

    Args:
        logs: The logs.
        start: Where it begins.
        name: That of the query.

    Raises:
        ConfigError: See `offsets_at`.
    """
    return _offsets({}, offsets_at(logs, logs.bounds(), "start", start), {}, name)


def latest(bounds: Mapping[TopicPartition, Bounds]) -> Offsets:
    """The offsets of a query that has read everything."""
    return _offsets({tp: found.high for tp, found in bounds.items()}, {}, {})


def advance(logs: Logs, start: Offsets, most: int | None, bounds: Mapping[TopicPartition, Bounds]) -> Offsets:
    """The offsets after the next micro-batch; `start` itself if there is nothing to read.

    Args:
        logs: The logs.
        start: The offsets before it.
        most: Limit of offsets; None for none.
        bounds: The bounds of all logs.

    Raises:
        StateError: A topic or partition is gone, was created again, or ends below the offset up to which it was read.
    """
    known = by_partition(start["next"])
    ids = logs.topic_ids(sorted({tp.topic for tp in bounds}))
    for tp, offset in known.items():
        if not logs.is_read(tp.topic):
            raise StateError(f"{tp.topic} was removed from the option topics: add it again, or {ANEW}")
        if why := lost(tp, offset, bounds[tp].high if tp in bounds else None):
            raise StateError(f"{why}; restore it or access to it, or {ANEW}")
        if ids.get(tp.topic, "") != start["ids"].get(tp.topic, ""):
            raise StateError(f"{tp.topic} was deleted and created again: {ANEW}")
    firsts = by_partition(start["from"])
    begun = {tp: known.get(tp, firsts.get(tp, found.low)) for tp, found in bounds.items()}
    ends = ends_of(begun, {tp: max(found.high, begun[tp]) for tp, found in bounds.items()}, most)
    if ends == known:
        return start
    return _offsets(ends, {tp: offset for tp, offset in begun.items() if tp not in known} | firsts, ids, _name(start))


def spans(start: Offsets, end: Offsets) -> list[Span]:
    """The ranges of a micro-batch, of partitions with new offsets."""
    known, firsts, ids = by_partition(start["next"]), by_partition(end["from"]), end["ids"]
    found: list[Span] = []
    for tp, last in by_partition(end["next"]).items():
        begun = known.get(tp, firsts[tp])
        if last > begun:
            found.append(Span(tp, ids.get(tp.topic, ""), begun, last, begun == firsts[tp], _name(end)))
    return found


def _name(offsets: Offsets) -> str:
    """The name of the query; empty in offsets of earlier builds."""
    return str(offsets.get("name", ""))


def _offsets(
    ends: Mapping[TopicPartition, int], firsts: Mapping[TopicPartition, int], ids: Mapping[str, str], name: str = ""
) -> Offsets:
    return {"next": by_topic(ends), "from": by_topic(firsts), "ids": dict(sorted(ids.items())), "name": name}
