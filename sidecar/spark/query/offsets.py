"""The ranges that a query reads next, from its offsets in Spark's checkpoint alone. Knows no client and no Spark.

Offsets are JSON: `next`, the offset after the last one read of each partition; `from`, where the query began in each
partition; `ids`, the id of each topic; `name`, the query's name, under which it keeps message ids; `skipped`, where the
micro-batch begins in partitions whose next messages had expired, if there are any. So a replayed micro-batch has the
same ranges, however the logs have changed, and no file is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import orjson

from sidecar.config.source.base import start_of
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, PositionError
from sidecar.spark.ranges.broker import (
    LogExtent,
    Logs,
    OnGap,
    by_partition,
    by_topic,
    ends_of,
    expired,
    firsts_of,
    gap,
    highs_of,
    lost,
    lows_of,
)

Option: TypeAlias = Literal["start", "end"]
Place: TypeAlias = str | int | Mapping[TopicPartition, str | int]
"""``earliest``, ``latest``, milliseconds since the epoch, or an offset or a word for each partition."""
_WORDS = {-2: "earliest", -1: "latest"}
"""The numbers of Spark's connector."""


def parse_place(option: Option, text: str) -> Place:
    """The place that a text denotes.

    Raises:
        ValueError: It is no place; the message lists the valid ones.
    """
    place = _by_partition(text) if text.lstrip().startswith("{") else start_of(text)
    if option == "end" and "earliest" in (place.values() if isinstance(place, Mapping) else (place,)):
        raise ValueError("needs latest, a timestamp, or an offset or latest for each partition")
    return place


def _by_partition(text: str) -> Mapping[TopicPartition, str | int]:
    try:
        places = {tp: _WORDS.get(at, at) for tp, at in by_partition(_numbers(orjson.loads(text))).items()}
    except (ValueError, TypeError, AttributeError):
        places = {}
    if not places or any(isinstance(at, int) and at < 0 for at in places.values()):
        example = '{"orders": {"0": 23, "1": "latest"}}'
        raise ValueError(f"is {text} and needs an offset, earliest or latest for each partition, as in {example}")
    return places


def _numbers(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The offsets, with words replaced by numbers."""
    numbers = {word: number for number, word in _WORDS.items()}
    each = {topic: {queue: numbers.get(at, at) for queue, at in queues.items()} for topic, queues in found.items()}
    if any(type(at) is not int for queues in each.values() for at in queues.values()):
        raise ValueError
    return each


def offsets_at(
    logs: Logs, bounds: Mapping[TopicPartition, LogExtent], option: Option, place: Place
) -> dict[TopicPartition, int]:
    """The offset of a place in each log.

    Raises:
        ConfigError: Partitions are not named or do not exist, or an offset is not in its log.
    """
    if not isinstance(place, Mapping):
        return firsts_of(logs, bounds, place)
    for said, these in (("names no offset of", bounds.keys() - place), ("names", place.keys() - bounds)):
        if these:
            cause = "name all partitions that are read" if these <= bounds.keys() else "there is no such partition"
            raise ConfigError(f"option {option} {said} {', '.join(map(str, sorted(these)))}: {cause}")
    found = {tp: _offset(at, bounds[tp]) for tp, at in place.items()}
    for tp, offset in found.items():
        if not bounds[tp].low <= offset <= bounds[tp].high:
            low, high = bounds[tp].low, bounds[tp].high
            raise ConfigError(f"option {option} is {offset} for {tp}, whose log has the offsets from {low} to {high}")
    return found


def _offset(at: str | int, bounds: LogExtent) -> int:
    if isinstance(at, int):
        return at
    return bounds.low if at == "earliest" else bounds.high


def ended(
    logs: Logs, bounds: Mapping[TopicPartition, LogExtent], firsts: Mapping[TopicPartition, int], end: Place
) -> dict[TopicPartition, LogExtent]:
    """The bounds of a read that ends at `end`.

    Raises:
        ConfigError: See `offsets_at`; or an offset is before the one where the read begins.
    """
    ends = offsets_at(logs, bounds, "end", end)
    begun = {tp: firsts.get(tp, found.low) for tp, found in bounds.items()}
    for tp, offset in ends.items():
        if isinstance(end, Mapping) and offset < begun[tp]:
            raise ConfigError(f"option end is {offset} for {tp}, where the read begins at {begun[tp]}")
    return {tp: LogExtent(found.low, max(begun[tp], min(found.high, ends[tp]))) for tp, found in bounds.items()}


Offsets: TypeAlias = dict[str, Any]
ANEW = "begin anew with another checkpoint"


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition, without `end`.

    Args:
        end: The offset after the last.
        is_first: Whether it is the query's first range of the partition.
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
        on_gap: Behavior where messages expired before they were read.

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
    """The offsets at which partitions resume whose messages expired before they were read.

    Raises:
        PositionError: There are such partitions, and the options do not allow to go on.
    """
    found = expired(begun, lows_of(bounds))
    if found and on_gap == "stop":
        tp, low = next(iter(found.items()))
        raise PositionError(f"{gap(tp, begun[tp], low, 'the option on_gap')}; or {ANEW}")
    return found


def spans(start: Offsets, end: Offsets, lows: Mapping[TopicPartition, int] | None = None) -> list[Span]:
    """The ranges of a micro-batch, of partitions with new offsets.

    Args:
        lows: The starts of logs that lack messages of the micro-batch by now; None if it was planned a moment ago.
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
