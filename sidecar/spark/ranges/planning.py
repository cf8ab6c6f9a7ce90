"""The ends of the next ranges, and what may not have become of partitions that were read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

P = TypeVar("P")


def ends_of(begun: Mapping[P, int], ends: Mapping[P, int], most: int | None) -> dict[P, int]:
    """Where the ranges of a micro-batch end; partitions with more lag get more of it.

    Args:
        begun: Where each range begins.
        ends: The end of each log.
        most: Limit of offsets of all ranges together, exceeded by less than the number of partitions; None for none.
    """
    lag = {p: end - begun[p] for p, end in ends.items()}
    total = sum(lag.values())
    if most is None or total <= most:
        return dict(ends)
    return {p: begun[p] + min(behind, -(-most * behind // total)) for p, behind in lag.items()}


def lost(place: object, offset: int, end: int | None) -> str:
    """Why a partition cannot be read on, empty if it can.

    Args:
        place: The partition.
        offset: The offset up to which it was read.
        end: The end of its log; None if it is gone.
    """
    if end is None:
        return f"{place} was read to {offset} and is not there any more: it was deleted, or may not be read"
    if end < offset:
        return f"{place} ends at {end} and was read to {offset}: it was created again, or lost messages"
    return ""
