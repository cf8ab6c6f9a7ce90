"""Assignment of queues to the members of a group: each member computes the same result from the same lists. Pure."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from sidecar.core.records import TopicPartition

Share: TypeAlias = Callable[[Sequence[TopicPartition], Sequence[str], str], set[TopicPartition]]
VIRTUAL_NODES = 10
"""Points of a member on the ring; as many as in Java's client."""


def average(queues: Sequence[TopicPartition], members: Sequence[str], me: str) -> set[TopicPartition]:
    """A range for each member, of lengths that differ by at most one, like Java's `AllocateMessageQueueAveragely`."""
    if me not in members:
        return set()
    ordered, index = sorted(queues, key=_order), sorted(members).index(me)
    size, longer = divmod(len(ordered), len(members))
    start = index * size + min(index, longer)
    return set(ordered[start : start + size + (index < longer)])


def consistent_hash(queues: Sequence[TopicPartition], members: Sequence[str], me: str) -> set[TopicPartition]:
    """Assign each queue to the next member on a ring: few queues of the others move if a member joins or leaves."""
    ring = sorted((_point(f"{member}-{i}"), member) for member in members for i in range(VIRTUAL_NODES))
    points = [point for point, _ in ring]
    positions = {tp: bisect_left(points, _point(":".join(map(str, _order(tp))))) for tp in queues}
    return {tp for tp in queues if ring and ring[positions[tp] % len(ring)][1] == me}


def _order(tp: TopicPartition) -> tuple[str, str, int]:
    return tp.topic, tp.broker, tp.partition


def _point(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()[:8])


SHARES: dict[Literal["average", "consistent_hash"], Share] = {"average": average, "consistent_hash": consistent_hash}
