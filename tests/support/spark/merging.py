"""Changes of keys for a merged table, and a plain model of what the table has after them. Starts no Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.support.audit import Tally
from tests.support.produce import Outgoing

SCHEMA = "id bigint, op string, number bigint"
"""Of the values of `outgoing`."""
RULE = {"key": "$.id", "order_by": "timestamp", "delete_when": "data.op = 'd'"}
BEGIN_MS = round(time.time() * 1000)  # a broker deletes what is old
MS_CHANGES = 20
"""Changes in a millisecond, whose order is that of their places."""
LATE = 0.1
"""Share of changes that come late."""
DELETED = 0.2
"""Share of changes that delete their key."""
KEYLESS_EVERY = 1_000


class Change(NamedTuple):
    """A change of a key, and its place; changes of a key are ordered by all but the first and the last of these.

    Attributes:
        key: Null for a message without one.
        order: What its order is read from.
        deletes: Whether it deletes the key.
    """

    key: int | None
    order: int
    topic: str
    partition: int
    offset: int
    deletes: bool


def last_of_each(changes: Iterable[Change]) -> dict[int, Change]:
    """What a table has: the last change of each key, also if it deletes it."""
    last: dict[int, Change] = {}
    for change in changes:
        if change.key is not None and (change.key not in last or last[change.key][1:5] < change[1:5]):
            last[change.key] = change
    return last


def made(topic: str, count: int, keys: int, partitions: int, seed: int) -> Iterator[Change]:
    """Changes of keys in any partition, in the order in which they are produced to a new topic.

    A late one comes up to a tenth of all changes after its time, which is before a later delete or update of its key as
    often as not.
    """
    chance, offsets = random.Random(seed), [0] * partitions
    span_ms = count // MS_CHANGES // 10
    for number in range(count):
        at_ms = BEGIN_MS + number // MS_CHANGES
        late = chance.random() < LATE
        partition = chance.randrange(partitions)
        yield Change(
            None if number % KEYLESS_EVERY == KEYLESS_EVERY - 1 else chance.randrange(keys),
            at_ms - chance.randint(0, span_ms) if late else at_ms,
            topic,
            partition,
            offsets[partition],
            chance.random() < DELETED,
        )
        offsets[partition] += 1


def outgoing(change: Change) -> Outgoing:
    """The change as a message; it has no key if the change has none."""
    key = "" if change.key is None else f'"id": {change.key}, '
    value = f'{{{key}"op": "{"d" if change.deletes else "u"}", "number": {change.offset}}}'
    return Outgoing(change.partition, value.encode(), timestamp_ms=change.order)


def compare(rows: Iterable[dict[str, object]], wanted: Iterable[Change]) -> Tally:
    """Rows of a table against changes; a key that has two rows is twice."""
    missing, found = {change.key: change[2:] for change in wanted}, Tally()
    seen: set[object] = set()
    for row in rows:
        key, there = row["merge_key"], tuple(row[name] for name in ("topic", "partition", "offset", "deleted"))
        if key in seen:
            found.twice.append((key, there))
        elif missing.pop(key, None) != there:  # type: ignore[call-overload]
            found.unknown.append((key, there))
        seen.add(key)
    found.lost += missing.items()
    return found
