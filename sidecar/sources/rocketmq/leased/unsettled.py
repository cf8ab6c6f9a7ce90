"""The unsettled ranges of a numbering in a partition's state. Pure: reads the core's `PartitionState`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from sidecar.core.partition_state import PartitionState
from sidecar.sources.rocketmq.leased.columns import LeasedMessage

END = 1 << 62
Range = tuple[int, int]
"""First and last number."""
_NUMBER = attrgetter("number")


def promised(state: PartitionState, key: int | None) -> list[Range]:
    """The intents that have messages of a group."""
    if key is None:
        return []
    lane = state.lanes.get(key)
    shared = [(intent.first, intent.last) for intent in state.shared if key not in intent.excluded]
    return [*lane.intents, *shared] if lane else shared


def unsettled(state: PartitionState, key: int | None) -> list[Range]:
    """The ranges in which a group's messages are unsettled, by first number: promised, open, or not read yet."""
    lane = state.lanes.get(key) if key is not None else None
    starts = [state.seen]
    if key is not None and state.shared_from is not None:
        starts.append(state.shared_from)
    if lane is not None and lane.open_from is not None:
        starts.append(lane.open_from)
    return sorted([*promised(state, key), (min(starts), END)])


def within(messages: Sequence[LeasedMessage], numbers: Range, begin: int = 0) -> tuple[int, int]:
    """The slice of messages, by number, that a range covers; nothing before index `begin`."""
    start = bisect_left(messages, numbers[0], begin, key=_NUMBER)
    return start, bisect_right(messages, numbers[1], start, key=_NUMBER)


def divide(
    messages: Sequence[LeasedMessage], ranges: Sequence[Range]
) -> tuple[list[LeasedMessage], list[LeasedMessage]]:
    """Messages, by number, that the ranges cover, and the others."""
    inside: list[LeasedMessage] = []
    outside: list[LeasedMessage] = []
    begin = 0
    for numbers in ranges:
        start, stop = within(messages, numbers, begin)
        outside += messages[begin:start]
        inside += messages[start:stop]
        begin = stop
    outside += messages[begin:]
    return inside, outside
