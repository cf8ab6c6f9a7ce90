"""The ends of the next ranges, and what may not have become of partitions that were read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from sidecar.errors import UnavailableError

P = TypeVar("P")
OnGap: TypeAlias = Literal["stop", "log_start"]
"""What becomes of a partition whose log begins behind the offset up to which it was read."""
ANEW: Final = "begin anew with another spark.checkpoint"
"""In texts: Spark passes on nothing else of an error."""
ON_GAP: Final = get_args(OnGap)


def ends_of(begun: Mapping[P, int], ends: Mapping[P, int], most: int | None) -> dict[P, int]:
    """Where the ranges of a micro-batch end; partitions with more lag get more of it.

    Args:
        ends: The end of each log.
        most: Limit of offsets of all ranges together, exceeded by less than the number of partitions; None for none.
    """
    lag = {p: end - begun[p] for p, end in ends.items()}
    total = sum(lag.values())
    if most is None or total <= most:
        return dict(ends)
    return {p: begun[p] + min(behind, -(-most * behind // total)) for p, behind in lag.items()}


def expired(reached: Mapping[P, int], lows: Mapping[P, int]) -> dict[P, int]:
    """The partitions whose log begins behind the offset up to which they were read, with that beginning.

    Args:
        lows: The first offset of each log.
    """
    return {p: low for p, low in lows.items() if reached.get(p, low) < low}


def gap(place: object, offset: int, low: int, key: str) -> str:
    """What to tell of messages that expired before they were read.

    Args:
        offset: The offset up to which it was read.
        low: The first offset of its log.
    """
    return (
        f"{place} was read to {offset}, and its log begins at {low}: {low - offset} offsets expired before they were "
        f"read. With {key}: log_start it goes on at {low}, without them"
    )


class ExpiredError(UnavailableError):
    """Messages of a range expired after it was planned; the next start decides as `gap` says.

    Args:
        offset: The offset up to which it was read.
        low: The first offset of its log.
    """

    def __init__(self, place: object, offset: int, low: int) -> None:
        super().__init__(
            f"{place} was read to {offset}, and its log begins at {low} by now: {low - offset} offsets expired before "
            "they were read. The next start goes on at the log's start if on_gap is log_start, and else says what to do"
        )
        self.low = low


def lost(place: object, offset: int, end: int | None) -> str:
    """Why a partition cannot be read on, empty if it can.

    Args:
        offset: The offset up to which it was read.
        end: The end of its log; None if it is gone.
    """
    if end is None:
        return f"{place} was read to {offset} and is not there any more: it was deleted, or may not be read"
    if end < offset:
        return f"{place} ends at {end} and was read to {offset}: it was created again, or lost messages"
    return ""
