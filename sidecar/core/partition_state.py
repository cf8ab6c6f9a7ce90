"""What of a partition's state travels to the next owner, and how groups and names are hashed in it. Values only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

ATTEMPTS_MAX, SECONDS_MAX = (1 << 14) - 1, (1 << 21) - 1


def lane_key(group: str) -> int:
    """48 bits that stand for a group in the state."""
    return xxhash.xxh3_64_intdigest(group.encode("utf-8", "surrogateescape")) & (1 << 48) - 1


def derived_scope(scope: str, *why: str | int) -> str:
    """A scope for names within `scope` that no other cut can have; the same for the same reasons."""
    return hashlib.blake2b(
        "\n".join([scope, *map(str, why)]).encode("utf-8", "surrogateescape"), digest_size=4
    ).hexdigest()


class LaneState(NamedTuple):
    """A group's state as it travels: unbatched from `open_from` (None: nothing), and its intents' (first, last)."""

    open_from: int | None
    intents: tuple[tuple[int, int], ...]


class SharedIntent(NamedTuple):
    """An intent for all groups but the excluded ones, which are settled or have a state of their own."""

    first: int
    last: int
    excluded: frozenset[int] = frozenset()


class Tries(NamedTuple):
    """What an intent has failed so far: sends, and seconds while its owners lived, never a date."""

    attempts: int
    seconds: int


NO_TRIES = Tries(0, 0)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """All that a successor needs to go on exactly."""

    watermark: int
    seen: int
    lanes: dict[int, LaneState] = field(default_factory=dict)
    shared_from: int | None = None
    shared: tuple[SharedIntent, ...] = ()
    tries: dict[tuple[int, int, int], Tries] = field(default_factory=dict)
    """By lane, first and last offset, those of the intents that failed; of lanes alone, and at most `Room.tries`."""
