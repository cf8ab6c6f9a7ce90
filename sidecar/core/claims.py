"""Business keys in a ledger: which copy of a message that a producer sent twice goes out. Decides, and stores nothing.

The owner of a key is the place of a message (topic, partition, offset), not a process: who handles the same message
again, after a crash or a takeover, has the claim and goes on; a message elsewhere with the same key is the twin.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import xxhash

from sidecar.core.records import KEY_BYTES, Fragment, TopicPartition

DUPLICATE, HELD = -1, -2
"""Verdicts beside tokens: the twin was delivered; the twin is claimed, and nothing is known of its end yet."""
_BIAS = 1 << 63


class State(enum.IntEnum):
    """What is known of a key; one that has no entry is NONE."""

    PROCESSING = 1
    SUCCESS = 2
    ERROR = 3


ENDS = {"delivered": State.SUCCESS, "dead_lettered": State.ERROR}
"""What the ledger is told; a duplicate leaves it to its twin."""


class Want(NamedTuple):
    """The rows of one part that are to be claimed.

    A token tells which rows of a part were claimed together: they have one name, and go out together ever after.
    """

    place: int
    offsets: Sequence[int]
    keys: bytes
    """`KEY_BYTES` for each offset."""
    token: int
    """What is claimed now gets this one."""
    was: int | None = None
    """Rows that are ours under this token get `token`; all others keep theirs. None: all keep theirs."""
    ordered: bool = False
    """Nothing is claimed behind a row that is held."""
    renewed: bool = False
    """All of it was ours. What a twin took since is held, even when the twin's claim is over: the owner that replaced
    this one may have sent the others under the token's name."""


class Entry(NamedTuple):
    """A key as the ledger has it."""

    place: int
    offset: int
    token: int
    state: State
    expired: bool = False
    """Its claim is over; of `State.PROCESSING` alone."""


class Claimed(NamedTuple):
    """An entry to be written: PROCESSING with a new expiry, but what is SUCCESS stays that."""

    key: bytes
    place: int
    offset: int
    token: int


class Mark(NamedTuple):
    """What became of rows that were claimed."""

    place: int
    state: State
    offsets: Sequence[int]
    keys: bytes


class Exchanged(NamedTuple):
    """Messages that a process had claimed when it died, and that another member of its group got since."""

    found: Mapping[bytes, bytes]
    """What others had of what is missed here, by identity."""
    missed: Sequence[bytes]
    """What is missed elsewhere."""


@lru_cache(maxsize=10_000)
def place_of(tp: TopicPartition, scope: str = "") -> int:
    """64 bits that stand for a partition, the same on every host and, without a scope, in every incarnation."""
    text = f"{tp.topic}\n{tp.broker}\n{tp.partition}" + (f"\n{scope}" if scope else "")
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) - _BIAS


def keys_in(keys: bytes) -> list[bytes]:
    """The single keys."""
    return [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]


def mark_of(number: int, fragments: Sequence[Fragment], state: State, but: Collection[int] = ()) -> Mark:
    """Rows of these fragments have come to their end, but for those whose index is in `but`."""
    offsets = [offset for fragment in fragments for offset in fragment.offsets]
    keys = b"".join([fragment.keys for fragment in fragments])
    if but:
        ended = [i for i in range(len(offsets)) if i not in but]
        single = keys_in(keys)
        offsets, keys = [offsets[i] for i in ended], b"".join([single[i] for i in ended])
    return Mark(number, state, offsets, keys)


def decide(wants: Sequence[Want], entries: Mapping[bytes, Entry]) -> tuple[list[list[int]], list[Claimed]]:
    """What is ours, and what is to be written so that it is; to be called within one transaction.

    Args:
        wants: What is to be claimed.
        entries: The entries of all their keys, where there are any.

    Returns:
        For each want and row the token that it is ours under, or `DUPLICATE` or `HELD`; and the entries to write.
    """
    rows = [keys_in(want.keys) for want in wants]
    verdicts = [[HELD] * len(keys) for keys in rows]
    writes: list[Claimed] = []
    taken: set[bytes] = set()
    if entries:  # ours first: it may have been sent, so a twin in the same request must not take it when it expired
        for want, keys, verdict in zip(wants, rows, verdicts, strict=True):
            _keep(want, keys, verdict, entries, taken, writes)
    for want, keys, verdict in zip(wants, rows, verdicts, strict=True):
        _take(want, keys, verdict, entries, taken, writes)
    return verdicts, writes


def _keep(
    want: Want,
    keys: list[bytes],
    verdict: list[int],
    entries: Mapping[bytes, Entry],
    taken: set[bytes],
    writes: list[Claimed],
) -> None:
    for i, (key, offset) in enumerate(zip(keys, want.offsets, strict=True)):
        entry = entries.get(key)
        if entry is None or (entry.place, entry.offset) != (want.place, offset):
            continue
        verdict[i] = want.token if entry.token == want.was else entry.token
        taken.add(key)
        if entry.state != State.SUCCESS or verdict[i] != entry.token:
            writes.append(Claimed(key, want.place, offset, verdict[i]))


def _take(
    want: Want,
    keys: list[bytes],
    verdict: list[int],
    entries: Mapping[bytes, Entry],
    taken: set[bytes],
    writes: list[Claimed],
) -> None:
    blocked = False
    for i, (key, offset) in enumerate(zip(keys, want.offsets, strict=True)):
        if verdict[i] >= 0:
            continue
        entry = entries.get(key)
        if entry is not None and entry.state == State.SUCCESS:
            verdict[i] = DUPLICATE
        elif blocked or key in taken or (entry and (want.renewed or _runs(entry))):
            blocked = want.ordered
        else:
            verdict[i] = want.token
            taken.add(key)
            writes.append(Claimed(key, want.place, offset, want.token))


def _runs(entry: Entry) -> bool:
    return entry.state == State.PROCESSING and not entry.expired
