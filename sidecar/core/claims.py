"""Business keys in a ledger: which copy of a message that was produced twice is delivered. Decides, and stores nothing.

The owner of a key is the place of a message (topic, partition, offset), not a process: a process that handles the same
message again, after a crash or a takeover, continues with the claim. A message elsewhere with the same key is the twin.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import xxhash

from sidecar.core.records import KEY_BYTES, Fragment, TopicPartition

DUPLICATE, HELD = -1, -2
"""Verdicts beside tokens: the twin was delivered; the twin is claimed, and its end is not known yet."""
_BIAS = 1 << 63


class ClaimState(enum.IntEnum):
    """State of a key's entry; a key without an entry is unclaimed."""

    PROCESSING = 1
    SUCCESS = 2
    ERROR = 3


ENDS = {"delivered": ClaimState.SUCCESS, "dead_lettered": ClaimState.ERROR}
"""Ledger states by outcome; a duplicate's entry is its twin's."""


class Want(NamedTuple):
    """The rows of one part to be claimed.

    Rows of a part with the same token were claimed together: they have one name, and always go out together.
    """

    place: int
    offsets: Sequence[int]
    keys: bytes
    """`KEY_BYTES` for each offset."""
    token: int
    """The token for rows that are claimed now."""
    was: int | None = None
    """Own rows under this token get `token`; all others keep theirs. None: all keep theirs."""
    ordered: bool = False
    """Whether no row is claimed behind a row that is held."""
    renewed: bool = False
    """Whether all rows were owned and the claim is renewed. A row that a twin took since then is held, even if the
    twin's claim has expired: the owner that replaced this one may have sent the other rows under the token's name."""


class LedgerEntry(NamedTuple):
    """A key's entry in the ledger."""

    place: int
    offset: int
    token: int
    state: ClaimState
    expired: bool = False
    """Whether its claim has expired; only with `ClaimState.PROCESSING`."""


class Claimed(NamedTuple):
    """An entry to be written: PROCESSING with a new expiry; an entry that is SUCCESS keeps its state."""

    key: bytes
    place: int
    offset: int
    token: int


class ClaimEnd(NamedTuple):
    """The end of rows that were claimed."""

    place: int
    state: ClaimState
    offsets: Sequence[int]
    keys: bytes


class Exchanged(NamedTuple):
    """Messages that a process had claimed when it died, and that another member of its group received since."""

    found: Mapping[bytes, bytes]
    """The messages missed here that other members had, by identity."""
    missed: Sequence[bytes]
    """Identities of the messages missed elsewhere."""


@lru_cache(maxsize=10_000)
def place_of(tp: TopicPartition, scope: str = "") -> int:
    """A 64-bit number for a partition, the same on every host and, without a scope, in every incarnation."""
    text = f"{tp.topic}\n{tp.broker}\n{tp.partition}" + (f"\n{scope}" if scope else "")
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) - _BIAS


def keys_in(keys: bytes) -> list[bytes]:
    """The keys, one by one."""
    return [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]


def mark_of(number: int, fragments: Sequence[Fragment], state: ClaimState, but: Collection[int] = ()) -> ClaimEnd:
    """The end of the rows of these fragments, except those whose index is in `but`."""
    offsets = [offset for fragment in fragments for offset in fragment.offsets]
    keys = b"".join([fragment.keys for fragment in fragments])
    if but:
        ended = [i for i in range(len(offsets)) if i not in but]
        single = keys_in(keys)
        offsets, keys = [offsets[i] for i in ended], b"".join([single[i] for i in ended])
    return ClaimEnd(number, state, offsets, keys)


def decide(wants: Sequence[Want], entries: Mapping[bytes, LedgerEntry]) -> tuple[list[list[int]], list[Claimed]]:
    """Decide which owner has each row, and which entries to write; call it within one transaction.

    Args:
        entries: The existing entries of their keys.

    Returns:
        For each want and row the token under which it is owned, or `DUPLICATE` or `HELD`; and the entries to write.
    """
    rows = [keys_in(want.keys) for want in wants]
    verdicts = [[HELD] * len(keys) for keys in rows]
    writes: list[Claimed] = []
    taken: set[bytes] = set()
    if entries:  # own rows first: they may have been sent, so a twin in the same request must not take an expired claim
        for want, keys, verdict in zip(wants, rows, verdicts, strict=True):
            _keep(want, keys, verdict, entries, taken, writes)
    for want, keys, verdict in zip(wants, rows, verdicts, strict=True):
        _take(want, keys, verdict, entries, taken, writes)
    return verdicts, writes


def _keep(
    want: Want,
    keys: list[bytes],
    verdict: list[int],
    entries: Mapping[bytes, LedgerEntry],
    taken: set[bytes],
    writes: list[Claimed],
) -> None:
    for i, (key, offset) in enumerate(zip(keys, want.offsets, strict=True)):
        entry = entries.get(key)
        if entry is None or (entry.place, entry.offset) != (want.place, offset):
            continue
        verdict[i] = want.token if entry.token == want.was else entry.token
        taken.add(key)
        if entry.state != ClaimState.SUCCESS or verdict[i] != entry.token:
            writes.append(Claimed(key, want.place, offset, verdict[i]))


def _take(
    want: Want,
    keys: list[bytes],
    verdict: list[int],
    entries: Mapping[bytes, LedgerEntry],
    taken: set[bytes],
    writes: list[Claimed],
) -> None:
    blocked = False
    for i, (key, offset) in enumerate(zip(keys, want.offsets, strict=True)):
        if verdict[i] >= 0:
            continue
        entry = entries.get(key)
        if entry is not None and entry.state == ClaimState.SUCCESS:
            verdict[i] = DUPLICATE
        elif blocked or key in taken or (entry and (want.renewed or _runs(entry))):
            blocked = want.ordered
        else:
            verdict[i] = want.token
            taken.add(key)
            writes.append(Claimed(key, want.place, offset, want.token))


def _runs(entry: LedgerEntry) -> bool:
    return entry.state == ClaimState.PROCESSING and not entry.expired
