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
STORES_MAX = 8
"""Earlier owners' stores in a commit: the oldest are forgotten."""


class Other(NamedTuple):
    """The store of an earlier owner."""

    store: int
    seen: int
    """The offset from which a later owner read."""
    parked: int = 0
    """`PartitionState.parked` as the later owner found it."""


class Stores(NamedTuple):
    """The stores of delayed messages that owners of a partition had on their disks, by the identity of each."""

    own: int = 0
    """Id of the current owner's store; 0 if there is none."""
    others: tuple[Other, ...] = ()
    """Stores of earlier owners, oldest first."""
    epoch: int = 0
    """Epoch of the owner if owners share the store, see `delay.changelog.takeover`; otherwise 0."""
    put: int = 0
    """Number of the last durable change of the own store: a start notices whether it is missing."""
    held: int = 0
    """Messages that the own store held then."""

    def taken_by(self, store: int, state: PartitionState, epoch: int = 0) -> Stores:
        """The stores once an owner with this store takes the partition, and continues from this state."""
        others = [other for other in self.others if other.store != store]
        if self.own not in (0, store):
            rest = (other for other in others if other.store != self.own)
            others = [*rest, Other(self.own, state.seen, state.parked)]
        return Stores(store, tuple(others[-STORES_MAX:]), epoch)

    def other(self, store: int) -> Other | None:
        """The listed store of this identity."""
        return next((each for each in self.others if each.store == store), None)

    def may_have_listed(self, store: int) -> bool:
        """Whether the store is not listed, but may have been: the list is full, and others' reads of it are unknown."""
        return self.own not in (0, store) and self.other(store) is None and len(self.others) >= STORES_MAX

    def void_from(self, store: int) -> int | None:
        """The offset from which others read this store's messages too, up to the committed `seen`; None if none did.

        If the store was never listed, its owner has committed nothing, and others read everything; unless nobody has
        committed anything since the group began, or since an operator's reset. If it may have been, nothing is void.
        """
        if self.own in (0, store) or self.may_have_listed(store):
            return None
        other = self.other(store)
        return 0 if other is None else other.seen


NO_STORES = Stores()


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Everything that a successor needs to continue exactly."""

    watermark: int
    seen: int
    lanes: dict[int, LaneState] = field(default_factory=dict)
    shared_from: int | None = None
    shared: tuple[SharedIntent, ...] = ()
    tries: dict[tuple[int, int, int], Tries] = field(default_factory=dict)
    """Tries of failed intents by lane, first and last offset; only of lanes, and at most `StateBudget.tries`."""
    stores: Stores = NO_STORES
    parked: int = 0
    """The number of the last part that was parked: parked parts with higher numbers do not count."""

    @property
    def shares_parked(self) -> bool:
        """Whether parts are parked in a store from which other owners may remove them."""
        return bool(self.parked and self.stores.epoch)

    @property
    def has_local(self) -> bool:
        """Whether messages and parked parts may be in a store that no other owner has."""
        return bool(self.stores.own and not self.stores.epoch)

    def parked_in(self, store: int) -> int:
        """The number of the last part that counts of those in the store of an owner."""
        if store == self.stores.own:
            return self.parked
        other = self.stores.other(store)
        return 0 if other is None else other.parked
