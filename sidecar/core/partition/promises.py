"""The intents of one ownership, and the room that its state leaves them. No fragment, no commit.

Up to 64 groups at a time (`StateBudget.lanes`) have intents of their own. When more are open at once, one cut serves
all groups of the partition (a shared intent), so that the state does not grow with groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import NO_TRIES, LaneState, PartitionState, SharedIntent, Tries, lane_key
from sidecar.core.parts import Intent, IntentState, Lane, Lanes, Part
from sidecar.core.records import Parked
from sidecar.core.states import Event

INTENT_BYTES = 10
SHARED_BYTES = 14
EXCLUDED_BYTES = 6


class Promises:
    """The intents, and the offset of each group above which its messages are in no part yet.

    Each cut, split and exclusion is requested in advance, so that the state always fits into a commit's metadata.

    Args:
        durable: Whether the broker has the predecessor's intents, and not only the folder.
        release: Called with each intent that is dropped because it is settled as a whole.
    """

    def __init__(
        self, state: PartitionState, room: StateBudget, *, durable: bool, release: Callable[[Intent], object] = id
    ) -> None:
        self._room = room
        self._release = release
        self.shared_from = state.shared_from
        """If groups share intents, the offset from which nothing is in any intent."""
        self._unread = {key: lane.open_from for key, lane in state.lanes.items() if lane.open_from is not None}
        self.intents: list[Intent] = list(_resumed(state, durable=durable))

    # Room

    @property
    def extra_bytes(self) -> int:
        """Bytes of the room that further intents of groups, shared intents and exclusions take."""
        own = [intent.key for intent in self.intents if intent.key is not None]
        shared = [len(intent.excluded) for intent in self.intents if intent.key is None]
        return INTENT_BYTES * (len(own) - len(set(own))) + SHARED_BYTES * len(shared) + EXCLUDED_BYTES * sum(shared)

    def _own_keys(self, lanes: Lanes) -> set[int]:
        keys = {intent.key for intent in self.intents if intent.key is not None} | self._unread.keys()
        if self.shared_from is None:
            keys |= {lane.key for lane in lanes.open()}
        return keys

    def admits(self, groups: Collection[str], lanes: Lanes) -> bool:
        """Whether all `groups` may have lanes of their own; if not, the partition must share intents first."""
        if self.shared_from is not None or len(lanes) + len(self.intents) + len(groups) <= self._room.lanes:
            return True
        return len(self._own_keys(lanes).union(map(lane_key, groups))) <= self._room.lanes

    def may_cut(self, lane: Lane) -> bool:
        """Whether one more intent of this lane still fits in the state."""
        if self.shared_from is not None:
            return self.extra_bytes + SHARED_BYTES <= self._room.extra_cuts_bytes + INTENT_BYTES * self._room.lanes
        first = not any(intent.key == lane.key for intent in self.intents)
        return first or self.extra_bytes + INTENT_BYTES <= self._room.extra_cuts_bytes

    def may_split(self, part: Part, lanes: Lanes) -> bool:
        """Whether there is room for both halves and, whatever is refused next, for halving one of them down to one row.

        Therefore splits can never wait for each other forever.
        """
        # A part of n rows is halved at most log2(n) times until one row is left, and each halving adds one intent.
        cost = INTENT_BYTES * (part.count - 1).bit_length()
        if part.intent.key is None:
            cost += EXCLUDED_BYTES + INTENT_BYTES
            if len(self._own_keys(lanes) | {lane_key(part.group)}) > self._room.lanes:
                return False
        return self.extra_bytes + cost <= self._room.extra_bytes

    # Making and keeping

    def promise(self, key: int | None, first: int, last: int) -> Intent:
        """Add the promise that messages of a group (None: all groups) from `first` to `last` go out together."""
        self.intents.append(Intent(key, first, last))
        if key is not None and key in self._unread:
            self._unread[key] = max(self._unread[key], last + 1)
        return self.intents[-1]

    def share_from(self, position: int, parts: int, lanes: Lanes, *, rest: bool) -> None:
        """Share intents from `position` on, unless the groups are few and no message is left outside of parts.

        Args:
            parts: Number of groups that the last shared intent served.
            rest: Whether anything below the position is in no part, or is still to be read again.
        """
        few = parts + len(self._own_keys(lanes)) <= self._room.lanes // 2
        self.shared_from = None if few and not rest else position

    def halve(self, part: Part, border: tuple[int, int]) -> list[Intent]:
        """Give the halves of a part intents of their own; a shared intent loses its group.

        Args:
            border: Last offset of the first half, and first offset of the second.
        """
        key, intent = lane_key(part.group), part.intent
        bounds = (part.first, border[0]), (border[1], part.last)
        children = [Intent(key, first, last, tries=intent.tries) for first, last in bounds]
        if intent.key is None:
            intent.leave_out(key)
        self.intents += children
        return children

    def exclude(self, intent: Intent, key: int) -> None:
        """Exclude a settled group from a shared intent, if there is room: it is not sent again after a crash."""
        if self.extra_bytes + EXCLUDED_BYTES <= self._room.extra_cuts_bytes:
            intent.leave_out(key)

    def drop_finished(self) -> None:
        """Drop intents that are read and settled as a whole; their withheld entries become due."""
        for intent in [intent for intent in self.intents if not intent.live and not intent.is_read_again]:
            self.intents.remove(intent)
            intent.move(Event.ENDED)
            self._release(intent)

    def leave_out(self, records: Iterable[Parked]) -> None:
        """Leave parked parts out of intents: a shared intent that had no room to exclude them does not show them."""
        shared = {(intent.first, intent.last): intent for intent in self.intents if intent.key is None}
        for record in records:
            intent = shared.get((record.first, record.last))
            if intent is not None and record.scope != record.home:
                intent.leave_out(lane_key(record.group), parked=True)

    # Reading again

    def all_read(self) -> None:
        """End the replay: messages that an earlier owner left open are in the lanes now."""
        self._unread.clear()

    def of(self, key: int, seen: int) -> tuple[list[Intent], int]:
        """The intents that may cover a group's messages, its own first, and the offset from which the others are open.

        Below that offset, messages that no intent covers are settled.

        Args:
            seen: The offset from which no owner has read.
        """
        own = [intent for intent in self.intents if intent.key == key]
        opens = [start for start in (self._unread.get(key), self.shared_from) if start is not None]
        return own + [intent for intent in self.intents if intent.key is None], min(opens, default=seen)

    # State

    def state(self, watermark: int, seen: int, position: int, lanes: Lanes) -> PartitionState:
        """The state for the next owner: exactly what is unsettled, and nothing else."""
        intents: dict[int, list[tuple[int, int]]] = {}
        shared: list[SharedIntent] = []
        for intent in self.intents:
            if intent.key is None:
                shared.append(SharedIntent(intent.first, intent.last, frozenset(intent.excluded)))
            else:
                intents.setdefault(intent.key, []).append((intent.first, intent.last))
        opens = {key: max(start, position) for key, start in self._unread.items()}
        if self.shared_from is None:
            opens |= {lane.key: lane.buffer.fragments[0].first for lane in lanes.open()}
        travelling = {key: LaneState(opens.pop(key, None), tuple(sorted(own))) for key, own in intents.items()}
        travelling |= {key: LaneState(start, ()) for key, start in opens.items()}
        shared_from = None if self.shared_from is None else max(self.shared_from, watermark)
        failed = [intent for intent in self.intents if intent.key is not None and intent.tries.attempts]
        if len(failed) > self._room.tries:
            failed = heapq.nlargest(self._room.tries, failed, key=lambda intent: intent.tries.seconds)
        tries = {(intent.key or 0, intent.first, intent.last): intent.tries for intent in failed}
        return PartitionState(watermark, seen, travelling, shared_from, tuple(shared), tries)


def _resumed(state: PartitionState, *, durable: bool) -> Iterator[Intent]:
    """The intents in a state, which are collected as their messages are read again."""
    begun = IntentState.COLLECTING if durable else IntentState.REMEMBERED
    for key, lane in state.lanes.items():
        for first, last in lane.intents:
            yield Intent(key, first, last, begun, old=True, tries=state.tries.get((key, first, last), NO_TRIES))
    for shared in state.shared:
        yield Intent(None, shared.first, shared.last, begun, old=True, excluded=set(shared.excluded))


class Phase(Enum):
    """Phase of a message in a state."""

    SETTLED = "settled"
    """Delivered, kept as a dead letter, or dropped: the state does not distinguish them."""
    FIXED = "fixed"
    """In a part whose members are fixed: it is being sent, or waits for its next attempt."""
    OPEN = "open"
    """Read, and in no part yet."""
    UNREAD = "unread"
    """At or above the offset from which nothing was read."""


class Standing(NamedTuple):
    """A phase, and the part for `FIXED`."""

    phase: Phase
    first: int = 0
    last: int = 0
    tries: Tries = NO_TRIES
    """Failed sends up to the commit, as far as the state has them."""


def standing(state: PartitionState, group: str, offset: int) -> Standing:
    """The standing of a message of this group at this offset, when the state was committed."""
    if offset < state.watermark:
        return Standing(Phase.SETTLED)
    if offset >= state.seen:
        return Standing(Phase.UNREAD)
    key = lane_key(group)
    intents, open_from = Promises(state, StateBudget(), durable=True).of(key, state.seen)
    for intent in intents:
        if intent.covers(key, offset):
            return Standing(Phase.FIXED, intent.first, intent.last, intent.tries)
    return Standing(Phase.OPEN if offset >= open_from else Phase.SETTLED)
