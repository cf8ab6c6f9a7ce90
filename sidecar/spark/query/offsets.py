"""The places at which a query begins and ends, and its offsets in Spark's checkpoint. Knows no client.

Offsets are JSON: `v`, the version; `next`, the offset after the last one read of each partition; `from`, where the
query began in each partition; `ids`, the id of each topic; `name`, the query's name, under which it keeps message ids;
`skipped`, where the micro-batch begins in partitions whose next messages had expired. So a replayed micro-batch has the
same ranges, however the logs have changed, and no file is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import orjson

from sidecar.config.source.base import start_of
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, PositionError
from sidecar.spark.ranges.broker import LogExtent, Logs, by_partition, by_topic, firsts_of
from sidecar.spark.ranges.walk import Offsets, Reached

Option: TypeAlias = Literal["start", "end"]
Place: TypeAlias = str | int | Mapping[TopicPartition, str | int]
"""``earliest``, ``latest``, milliseconds since the epoch, or an offset or a word for each partition."""
_WORDS = {-2: "earliest", -1: "latest"}
"""The numbers of Spark's connector."""


def parse_place(option: Option, text: str) -> Place:
    """The place that a text denotes; raises `ValueError` if it is none, with the valid ones."""
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
    """The bounds of a read that ends at `end`."""
    ends = offsets_at(logs, bounds, "end", end)
    begun = {tp: firsts.get(tp, found.low) for tp, found in bounds.items()}
    for tp, offset in ends.items():
        if isinstance(end, Mapping) and offset < begun[tp]:
            raise ConfigError(f"option end is {offset} for {tp}, where the read begins at {begun[tp]}")
    return {tp: LogExtent(found.low, max(begun[tp], min(found.high, ends[tp]))) for tp, found in bounds.items()}


VERSION = 1
START_OVER = "start over with another checkpoint"


def begin(logs: Logs, start: Place, name: str = "") -> Reached:
    """The offsets of a query that has read nothing."""
    return Reached({}, offsets_at(logs, logs.bounds(), "start", start), {}, name)


def parsed(offsets: Offsets) -> Reached:
    """The offsets in Spark's checkpoint."""
    if offsets.get("v") != VERSION:
        raise PositionError(
            f"the checkpoint has offsets of version {offsets.get('v')}, and this program knows {VERSION}: use the "
            f"version of Sidecar that wrote them, or {START_OVER}"
        )
    next_, firsts, skipped = (by_partition(offsets[key]) for key in ("next", "from", "skipped"))
    return Reached(next_, firsts, offsets["ids"], offsets["name"], skipped)


def kept(reached: Reached) -> Offsets:
    """The offsets as JSON; the same text for the same offsets."""
    return {
        "v": VERSION,
        "next": by_topic(reached.next),
        "from": by_topic(reached.firsts),
        "ids": dict(sorted((reached.ids or {}).items())),
        "name": reached.name,
        "skipped": by_topic(reached.skipped),
    }
