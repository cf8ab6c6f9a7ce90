"""The state of a partition that the next owner gets, and its hashes of groups and names. Values only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

ATTEMPTS_MAX, SECONDS_MAX = (1 << 14) - 1, (1 << 21) - 1


def lane_key(group: str) -> int:
    """Hash of a group in the state, 48 bits."""
    return xxhash.xxh3_64_intdigest(group.encode("utf-8", "surrogateescape")) & (1 << 48) - 1


def derived_scope(scope: str, *why: str | int) -> str:
    """A scope for names within `scope` that no other cut can have; the same reasons give the same scope."""
    return hashlib.blake2b(
        "\n".join([scope, *map(str, why)]).encode("utf-8", "surrogateescape"), digest_size=4
    ).hexdigest()


class LaneState(NamedTuple):
    """A group's part of the state: open from `open_from` on (None: nothing open), and (first, last) of its intents."""

    open_from: int | None
    intents: tuple[tuple[int, int], ...]


class SharedIntent(NamedTuple):
    """An intent for all groups except the excluded ones, which are settled or have their own state."""

    first: int
    last: int
    excluded: frozenset[int] = frozenset()


class Tries(NamedTuple):
    """Failed sends of an intent, and the seconds since the first while it had an owner; never a date."""

    attempts: int
    seconds: int


NO_TRIES = Tries(0, 0)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Everything that a successor needs to continue exactly."""

    watermark: int
    seen: int
    lanes: dict[int, LaneState] = field(default_factory=dict)
    shared_from: int | None = None
    shared: tuple[SharedIntent, ...] = ()
    tries: dict[tuple[int, int, int], Tries] = field(default_factory=dict)
    """Tries of failed intents by lane, first and last offset; only of lanes, and at most `Room.tries`."""
