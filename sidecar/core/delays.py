"""The rules of delayed messages: values in, decisions out. The store, the clock and the broker are elsewhere.

A held message has a *position*: its due time and a sequence number. The store of a partition is one more partition for
the core, and positions are its offsets. Owners come and go, so each rule protects against one of these:

* A message that is delivered too early cannot be taken back, and a clock may be wrong: `SteadyClock`.
* Messages that an earlier owner has read out are in parts that may have been sent. A successor reads out the same
  messages, whatever its own clock says (`deliverable_below`), reads all of them (`may_leave_unread`), and changes none
  of them (`changeable_from`).
* A process may put messages after it has lost the partition. Only a commit proves the ownership, so nothing is
  delivered (`deliverable_below`) and no change is final (`turn_of_change`) before one.
* Messages that a commit settles at the source are never read again. So the commit waits for messages to hold and for
  cancellations (`commit_may_go_on`).
* A store that was elsewhere may have messages that another owner has read again, or that will be read again:
  `takeover_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from sidecar.core.partition_state import PartitionState

SEQUENCE_BITS = 20
"""Bits of a position below its due time in milliseconds."""
STEP_MS = 10_000
"""A step forward by more than this is not trusted at once."""
LASTS_MS = 60_000
"""How long such a step must last."""
GOES_ON_AT = 0.9
"""Share of the most bytes below which a full store takes messages again."""
NAMES_MAX, NAMES_BYTES_MAX = 100_000, 16 << 20
"""Number and bytes of names waiting for a search at which partitions are no longer read."""
SEARCH_MS = 1_000
"""Time after which partitions are no longer read while names are sought one after the other: no commit goes on."""


class SteadyClock:
    """Follows a wall clock, except steps forward: a message that is delivered too early cannot be taken back.

    A step back is followed at once: messages wait.
    """

    def __init__(self) -> None:
        self._believed: tuple[float, int] | None = None
        """The last trusted reading: monotonic time and wall time, in milliseconds."""
        self._stepped_ms: float | None = None
        """Monotonic time since when the wall clock has been ahead."""

    @property
    def is_ahead(self) -> bool:
        """Whether the wall clock stepped forward, and has not been ahead for long enough."""
        return self._stepped_ms is not None

    def read(self, now_ms: float, wall_ms: int) -> int:
        """The time in milliseconds since the epoch.

        Args:
            now_ms: Monotonic time in milliseconds.
            wall_ms: The wall clock, in milliseconds since the epoch.
        """
        if self._believed is not None:
            then_ms, was_ms = self._believed
            expected_ms = was_ms + int(now_ms - then_ms)
            if wall_ms > expected_ms + STEP_MS:
                self._stepped_ms = now_ms if self._stepped_ms is None else self._stepped_ms
                if now_ms - self._stepped_ms < LASTS_MS:
                    return expected_ms
        self._stepped_ms, self._believed = None, (now_ms, wall_ms)
        return wall_ms


# Delivery


def deliverable_below(wall_ms: int, seen: int, unproven: int | None) -> int:
    """The position below which messages may be read out of a store.

    Args:
        wall_ms: The time by which messages are due.
        seen: The position below which an earlier owner has read out: a replay ignores the clock.
        unproven: The lowest position that no commit has proved to be this owner's; None if there is none.
    """
    below = max(wall_ms + 1 << SEQUENCE_BITS, seen)
    return below if unproven is None else min(below, unproven)


def is_replayed(below: int, seen: int, following: int | None) -> bool:
    """Whether a replay has no message left, though it has not come to its end: the last ones are gone.

    Args:
        below: The position up to which messages may be read out.
        seen: The end of the replay.
        following: The next position in the store; None if it has none.
    """
    return below >= seen and (following is None or following >= seen)


def may_leave_unread(*, is_replaying: bool, is_tapped: bool) -> bool:
    """Whether messages that no tag wants stay unread: not if a part needs all of its messages, or if they are shown."""
    return not (is_replaying or is_tapped)


def wait_s(following: Iterable[tuple[int | None, int | None]], wall_ms: int) -> float:
    """Time until the next message is due; infinite if only another event makes one deliverable.

    Args:
        following: Of each partition, the next position in its store and the lowest one that is not proved.
        wall_ms: The time by which messages are due.
    """
    clocked = [at for at, unproven in following if at is not None and (unproven is None or at < unproven)]
    return max(0.0, ((min(clocked) >> SEQUENCE_BITS) - wall_ms) / 1000) if clocked else inf


# Reading and committing


def why_not_read(*, undone: str, used: int, most: int, was_full: bool, searches_are_many: bool) -> str:
    """Why no partition is read, so that the store does not grow; empty if partitions are read.

    Args:
        undone: Why the store has not performed the core's requests; empty if it has.
        used: Bytes of the store.
        was_full: Whether the partitions are not read at present: some room must come before they are read again.
        searches_are_many: Whether too many names wait for a search.
    """
    if undone:
        return undone
    if used > most * (GOES_ON_AT if was_full else 1):
        return "delayed messages take up delay.disk_max"
    return "delayed messages that are cancelled are being searched for" if searches_are_many else ""


def are_many(names: int, nbytes: int, search_ms: float) -> bool:
    """Whether too many names wait for a search: partitions are not read then.

    Args:
        search_ms: Time since no name waited.
    """
    return names > NAMES_MAX or nbytes > NAMES_BYTES_MAX or search_ms > SEARCH_MS


def commit_may_go_on(*, is_all_held: bool, is_all_cancelled: bool) -> bool:
    """Whether states may be kept: a commit settles no message before it is held, or its cancellations are made."""
    return is_all_held and is_all_cancelled


# Takeovers


@dataclass(frozen=True, slots=True)
class StoreTakeover:
    """Which messages count in the store that a new owner of the partition has on its disk."""

    keeps_below: int | None = None
    """Held messages from this offset on are dropped, since they are read and put again."""
    restarts: bool = False
    """Whether the source's offsets are new; without `keeps_below`, held messages are another topic's, and stay."""
    void_from: int | None = None
    """Held messages from this offset up to `seen` are void: another owner has read them too."""
    is_unlisted: bool = False
    """Whether a commit may have listed the store and forgotten it: all of its messages count."""

    @property
    def counts_all_parked(self) -> bool:
        """Whether all parked parts in the store count, whatever the state says."""
        return self.restarts or self.is_unlisted


def offset_kept_below(state: PartitionState, held_below: int | None) -> int:
    """The offset from which on a reset reads messages again."""
    return state.watermark if held_below is None else held_below


def takeover_of(
    state: PartitionState, store: int, *, is_same_incarnation: bool, is_same_topic: bool, held_below: int | None
) -> StoreTakeover:
    """Decide which messages of a store count.

    Args:
        state: The partition's state, from which its new owner continues.
        is_same_incarnation: Whether the store's messages have offsets of this incarnation.
        is_same_topic: Whether they come from this topic, if it was not recreated.
        held_below: The offset below which messages stay, if owners hand on nothing but the offset.
    """
    if not is_same_incarnation:
        # An operator's reset, or other rules: from the offset on all comes again, and is put again.
        return StoreTakeover(offset_kept_below(state, held_below) if is_same_topic else None, restarts=True)
    void_from = state.stores.void_from(store)
    return StoreTakeover(void_from=void_from, is_unlisted=void_from is None and state.stores.may_have_listed(store))


def parked_that_count(takeover: StoreTakeover, before: int, last: int) -> int:
    """The number of the last parked part that counts since before this incarnation.

    Args:
        takeover: The result of `takeover_of`.
        before: The same, as the store's last owner kept it.
        last: The number of the last part in the store.
    """
    if takeover.restarts:
        return last
    return max(before, last) if takeover.is_unlisted else before


def is_outdated(state: PartitionState, store: int, last_named: int) -> bool:
    """Whether a later owner than that of the state may have removed parked parts that count in it.

    Args:
        state: The state in the state folder.
        store: The identity of the store that owners share.
        last_named: The last epoch that a commit has named.
    """
    return state.shares_parked and state.stores.own == store and last_named > state.stores.epoch


# Changes


class Turn(Enum):
    """The decision about a search, a request or a change."""

    DROP = auto()
    """The partition was lost: its new owner reads the canceller again, or is the one to ask."""
    WAIT = auto()
    GO_ON = auto()


def changeable_from(seen: int | None) -> int:
    """The position from which on messages may be changed: an owner has read out those below, so they are in parts.

    Args:
        seen: The position below which an owner has read out; None if the core does not have the partition.
    """
    return seen or 0


def turn_of_search(*, is_expected: bool, has_store: bool, is_moving: bool = False) -> Turn:
    """Decide about the search for the messages that a canceller names.

    Args:
        is_expected: Whether the ownership that read the canceller lasts.
        has_store: Whether the core has the partition of the store; if not, it is unknown which messages were read out.
        is_moving: Whether a message is being brought forward: it would be missed.
    """
    if not is_expected:
        return Turn.DROP
    return Turn.WAIT if is_moving or not has_store else Turn.GO_ON


def turn_of_request(
    *, is_owned: bool, is_loading: bool, has_store: bool, is_behind: bool, is_moving: bool = False
) -> Turn:
    """Decide about an operator's request.

    Args:
        is_owned: Whether the core has the partition.
        is_loading: Whether the store is being taken over or searched.
        has_store: Whether the core has the partition of the store.
        is_behind: Whether messages that are read again are in the store already: a commit must settle them first.
        is_moving: Whether a message is being brought forward, and found nowhere meanwhile.
    """
    if is_loading:
        return Turn.WAIT
    if not is_owned:
        return Turn.DROP
    return Turn.WAIT if is_behind or is_moving or not has_store else Turn.GO_ON


def turn_of_change(*, is_owned: bool, is_proved: bool) -> Turn:
    """Decide about a durable change: it is final once a commit that began later has proved the ownership."""
    if not is_owned:
        return Turn.DROP
    return Turn.GO_ON if is_proved else Turn.WAIT
