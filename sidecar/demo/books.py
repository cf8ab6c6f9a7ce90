"""Compares delivered with generated messages, and decides whether the books balance. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.demo.stream import PARTITIONS, Made

Position = tuple[int, int]
"""Partition and offset."""


class DeliveredRow(NamedTuple):
    """A row as the receiver stored it."""

    place: Position
    value: str


@dataclass(frozen=True, slots=True)
class DemoBooks:
    """The outcomes of all messages."""

    produced: int
    consumed: int
    delivered: int
    duplicate: int
    filtered: int
    dead_lettered: int
    lost: int
    twice: int
    wrong: int
    """Rows and dead letters that should not exist, or have another value than was sent."""

    @property
    def balanced(self) -> bool:
        """Whether each message has exactly its proper outcome."""
        ends = self.delivered + self.duplicate + self.filtered + self.dead_lettered
        return self.produced == self.consumed == ends and not (self.lost or self.twice or self.wrong)


def count(made: Iterable[Made], consumed: int, rows: Iterable[DeliveredRow], letters: Iterable[Position]) -> DemoBooks:
    """The books of a run.

    Args:
        made: All messages, in the order they were sent.
        consumed: Messages below the offsets that the daemon committed.
        rows: Rows in the receiver's database.
        letters: Places of the daemon's dead letters.
    """
    arrived: dict[Position, list[str]] = {}
    for row in rows:
        arrived.setdefault(row.place, []).append(row.value)
    dead = set(letters)
    ends: Counter[str] = Counter()
    for position, message in _placed(made):
        ends["produced"] += 1
        ends.update(_ends(message, arrived.pop(position, []), dead=position in dead))
        dead.discard(position)
    ends["wrong"] += sum(map(len, arrived.values())) + len(dead)
    names = ("produced", "delivered", "duplicate", "filtered", "dead_lettered", "lost", "twice", "wrong")
    return DemoBooks(consumed=consumed, **{name: ends[name] for name in names})


def _placed(made: Iterable[Made]) -> Iterator[tuple[Position, Made]]:
    following = [0] * PARTITIONS
    for message in made:
        yield (message.partition, following[message.partition]), message
        following[message.partition] += 1


def _ends(message: Made, values: list[str], *, dead: bool) -> dict[str, int]:
    """The outcome of one message, by the values that arrived from its place."""
    if message.kind == "poison":
        return {"dead_lettered" if dead else "lost": 1, "wrong": len(values)}
    if message.kind == "unwanted":
        return {"wrong": len(values) + dead} if values or dead else {"filtered": 1}
    if message.kind == "repeated":
        return {"twice": len(values), "wrong": int(dead)} if values or dead else {"duplicate": 1}
    changed = sum(value != message.value for value in values)
    outcome = "delivered" if values else "lost"
    return {outcome: 1, "twice": max(0, len(values) - 1), "wrong": changed + dead}
