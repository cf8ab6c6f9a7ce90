"""What of one partition is settled, and the intents that say what may have been sent. No batch, no retry, no clock.

Below the watermark all is settled. Between it and `seen`, the next offset never read, a group's messages are unsettled
when an intent covers them, or when they stand at or above the offset from which the group is unbatched; everything else
there is settled. `state()` is that state and nothing more: a successor on another host goes on from it exactly.

Up to 64 groups at a time (`Room.lanes`) have intents of their own. When more are open at once, one cut serves all
groups of the partition (a shared intent), so that the state does not grow with groups.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap64

from sidecar.core.batching import Limits, body_bytes
from sidecar.core.claims import Mark
from sidecar.core.intents import Intent, Lane, Seal
from sidecar.core.lineage import Fingerprint, Lineage, Stamp, Trail
from sidecar.core.partition.state import (
    NO_TRIES,
    LaneState,
    PartitionState,
    SharedIntent,
    Tries,
    derived_scope,
    lane_key,
)
from sidecar.core.records import NO_ID, Fragment, Part, TopicPartition
from sidecar.core.room import Room

INTENT_BYTES = 10
SHARED_BYTES = 14
EXCLUDED_BYTES = 6


class Partition:
    """One ownership of a partition, from assignment to revocation.

    Args:
        tp: The partition.
        scope: Hash of cluster, consumer group, topic id and incarnation.
        epoch: Counts ownerships.
        state: Where the predecessor was; of a fresh one `watermark == seen`.
        separator: The rows' separator.
        lineage: From which commits it goes on.
        room: How much the state may take.
    """

    def __init__(
        self,
        tp: TopicPartition,
        scope: str,
        epoch: int,
        state: PartitionState,
        separator: bytes,
        lineage: Lineage = Lineage(),  # noqa: B008  # frozen
        room: Room = Room(),  # noqa: B008  # frozen
    ) -> None:
        self.tp = tp
        self.scope = scope
        self.epoch = epoch
        self.position = state.watermark
        """The next offset to read."""
        self.seen = state.seen
        self.committed = state.watermark
        """The durable watermark."""
        self.lanes: dict[str, Lane] = {}
        self.intents: list[Intent] = []
        self.durable: PartitionState | None = None
        """What was committed last in this ownership."""
        self.settled_ids: list[int] = []
        """Message ids of finished intents, for the journal."""
        self.marks: list[Mark] = []
        """Claims that came to their end, for the ledger before the next commit."""
        self.errors: list[Mark] = []
        """Those of finished intents, for the ledger once a commit says so."""
        self.seals: list[Seal] = []
        self.lineage = lineage
        self.room = room
        self.passed: dict[str, int] = {}
        """By group, the message read last, where that was settled earlier: see `Fragment.after`."""
        self._passed = BitMap64()
        """What of all groups was settled earlier, from the last shared cut on."""
        self.newest: Fingerprint | None = None
        """Of the last message that was read."""
        self._commits = 0
        """Begun in this ownership."""
        self._trail = Trail(lineage.fingerprints)
        self.shared_from = state.shared_from
        self._separator = separator
        self._unread = {key: lane.open_from for key, lane in state.lanes.items() if lane.open_from is not None}
        for key, lane in state.lanes.items():
            self.intents += [
                Intent(key, first, last, durable=lineage.durable, old=True, collected={})
                for first, last in lane.intents
            ]
        for intent in self.intents:
            intent.tries = state.tries.get((intent.key or 0, intent.first, intent.last), NO_TRIES)
        for one in state.shared:
            intent = Intent(None, one.first, one.last, durable=lineage.durable, old=True, collected={})
            intent.excluded.update(one.excluded)
            self.intents.append(intent)

    @property
    def replaying(self) -> bool:
        """Whether what an earlier life has seen is being read again."""
        return self.position < self.seen

    @property
    def watermark(self) -> int:
        """All offsets below are settled."""
        if not (self.intents or self.lanes or self.position < self.seen):  # most of the time, of most partitions
            return self.seen
        bounds = [intent.first for intent in self.intents]
        bounds += [lane.buffer.fragments[0].first for lane in self._open_lanes()]
        if self.replaying:
            bounds.append(self.position)
        return min(bounds, default=self.seen)

    @property
    def span(self) -> int:
        """Offsets between what is durably settled and what was read."""
        return self.position - self.committed

    def state(self) -> PartitionState:
        """The state as it travels."""
        intents: dict[int, list[tuple[int, int]]] = {}
        shared: list[SharedIntent] = []
        for intent in self.intents:
            if intent.key is None:
                shared.append(SharedIntent(intent.first, intent.last, frozenset(intent.excluded)))
            else:
                intents.setdefault(intent.key, []).append((intent.first, intent.last))
        opens = {key: max(start, self.position) for key, start in self._unread.items()}
        if self.shared_from is None:
            opens |= {lane.key: lane.buffer.fragments[0].first for lane in self._open_lanes()}
        lanes = {key: LaneState(opens.pop(key, None), tuple(sorted(own))) for key, own in intents.items()}
        lanes |= {key: LaneState(start, ()) for key, start in opens.items()}
        watermark = self.watermark
        shared_from = None if self.shared_from is None else max(self.shared_from, watermark)
        return PartitionState(watermark, self.seen, lanes, shared_from, tuple(shared), self._tries())

    def _tries(self) -> dict[tuple[int, int, int], Tries]:
        failed = [i for i in self.intents if i.key is not None and i.tries.attempts]
        longest = heapq.nlargest(self.room.tries, failed, key=lambda intent: intent.tries.seconds)
        return {(intent.key or 0, intent.first, intent.last): intent.tries for intent in longest}

    def unsettled(self) -> Iterator[Sequence[int]]:
        """Offsets of all messages that were read and are not settled for a successor, and of some that are."""
        for lane in self.lanes.values():
            yield from _offsets(lane.buffer.fragments)
            for part in lane.live:
                yield from _offsets(part.fragments)
        for intent in self.intents:
            if intent.partly:
                yield range(intent.first, intent.last + 1)
            for buffer in (intent.collected or {}).values():
                yield from _offsets(buffer.fragments)

    def stamp(self) -> tuple[Stamp, Lineage]:
        """The stamp of a commit that is begun now, and what it comes after, with the log's fingerprints up to here."""
        self._commits += 1
        if self.newest is not None:
            self._trail.add(self.newest)
        return Stamp(self.lineage.token, self._commits), replace(self.lineage, fingerprints=self._trail.dump())

    def _open_lanes(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.buffer.fragments]

    # Reading

    def lane(self, group: str) -> Lane:
        """The lane of `group`, begun when it has none."""
        found = self.lanes.get(group)
        if found is None:
            found = self.lanes[group] = Lane(group, self._separator)
        return found

    def place(self, group: str, offsets: Sequence[int]) -> Iterator[tuple[Intent | Lane | None, int, int]]:
        """Where messages that are read again belong: an intent, the open lane, or nowhere since they are settled.

        Args:
            group: Their group.
            offsets: Rising, all below `seen`.

        Yields:
            The place, and the slice [start, stop) of `offsets` that belongs there.
        """
        key = lane_key(group)
        own = [intent for intent in self.intents if intent.key == key]
        every = own + [intent for intent in self.intents if intent.key is None]
        opens = [start for start in (self._unread.get(key), self.shared_from) if start is not None]
        open_from = min(opens, default=self.seen)
        borders = sorted({open_from, *(b for i in every for b in (i.first, i.last + 1))})
        start = 0
        while start < len(offsets):
            offset = offsets[start]
            place: Intent | Lane | None = next((i for i in every if i.covers(key, offset)), None)
            if place is None and offset >= open_from:
                place = self.lane(group)
            beyond = bisect_right(borders, offset)
            stop = bisect_left(offsets, borders[beyond], start) if beyond < len(borders) else len(offsets)
            yield place, start, stop
            start = stop

    def read_past(self, position: int) -> list[Part]:
        """All below `position` was read; returns the parts of an earlier life that are complete by that."""
        self.position = max(self.position, position)
        self.seen = max(self.seen, self.position)
        if not self.replaying:
            self._unread.clear()
        complete = [i for i in self.intents if i.collected is not None and i.last < self.position]
        parts = [part for intent in complete for part in self._complete(intent)]
        self._drop_finished()
        return parts

    def _complete(self, intent: Intent) -> list[Part]:
        buffers, intent.collected = intent.collected or {}, None
        parts = [self._part(group, intent, buffer.take_through(intent.last)) for group, buffer in buffers.items()]
        for part in parts:
            part.attempts = max(1, intent.tries.attempts)
        return parts

    def pass_over(self, group: str, offsets: list[int]) -> None:
        """These of a group were read again, and settled earlier."""
        self.passed[group] = offsets[-1]
        self._passed.update(offsets)

    # Cutting

    @property
    def extra_bytes(self) -> int:
        """What intents beyond each group's first, shared intents and exclusions take of the room."""
        own = [intent.key for intent in self.intents if intent.key is not None]
        shared = [len(intent.excluded) for intent in self.intents if intent.key is None]
        return INTENT_BYTES * (len(own) - len(set(own))) + SHARED_BYTES * len(shared) + EXCLUDED_BYTES * sum(shared)

    def _own_keys(self) -> set[int]:
        keys = {intent.key for intent in self.intents if intent.key is not None} | self._unread.keys()
        if self.shared_from is None:
            keys |= {lane.key for lane in self._open_lanes()}
        return keys

    def admits(self, groups: Collection[str]) -> bool:
        """Whether all of `groups` may have lanes of their own; if not, the partition must share intents first."""
        if self.shared_from is not None or len(self.lanes) + len(self.intents) + len(groups) <= self.room.lanes:
            return True
        return len(self._own_keys().union(map(lane_key, groups))) <= self.room.lanes

    def share_intents(self, limits: Limits) -> list[Part]:
        """Cut all open lanes wholly; from here on one cut serves all groups.

        Where the room for intents is used up, the last part of a lane takes all that is left, beyond the limits.
        """
        parts = []
        for lane in self.lanes.values():
            while lane.buffer.fragments:
                whole = Limits(lane.buffer.count, lane.buffer.nbytes)
                parts.append(self._cut(lane, limits if self.may_cut(lane) else whole))
        self.shared_from = self.position
        return parts

    def may_cut(self, lane: Lane) -> bool:
        """Whether one more intent of this lane still fits in the state."""
        if self.shared_from is not None:
            return self.extra_bytes + SHARED_BYTES <= self.room.extra_cuts_bytes + INTENT_BYTES * self.room.lanes
        first = not any(intent.key == lane.key for intent in self.intents)
        return first or self.extra_bytes + INTENT_BYTES <= self.room.extra_cuts_bytes

    def cut(self, lane: Lane, limits: Limits) -> list[Part]:
        """Make the first of the lane's open messages a part; one of each lane where they share intents."""
        return [self._cut(lane, limits)] if self.shared_from is None else self._cut_shared(limits)

    def _cut(self, lane: Lane, limits: Limits) -> Part:
        fragments = lane.buffer.take(limits)
        intent = Intent(lane.key, fragments[0].first, fragments[-1].last)
        self.intents.append(intent)
        if lane.key in self._unread:
            self._unread[lane.key] = max(self._unread[lane.key], intent.last + 1)
        return self._part(lane.group, intent, fragments)

    def _cut_shared(self, limits: Limits) -> list[Part]:
        lanes = self._open_lanes()
        fits = [(lane.buffer.last_within(limits), lane.buffer.fragments[-1].last) for lane in lanes]
        short = [within for within, end in fits if within < end]
        first = min(lane.buffer.fragments[0].first for lane in lanes)
        # What was settled earlier must not stand in the range: it covers every group, and a successor would send it.
        self._passed.remove_range(0, first)
        short += [self._passed.min() - 1] if self._passed else []
        last = min(short, default=self.position - 1)
        lanes = [lane for lane in lanes if lane.buffer.fragments[0].first <= last]
        intent = Intent(None, min(lane.buffer.fragments[0].first for lane in lanes), last)
        self.intents.append(intent)
        parts = [self._part(lane.group, intent, lane.buffer.take_through(last)) for lane in lanes]
        few = len(parts) + len(self._own_keys()) <= self.room.lanes // 2
        self.shared_from = None if few and not short and not self.replaying else last + 1
        return parts

    def _part(self, group: str, intent: Intent, fragments: list[Fragment]) -> Part:
        scope = self.scope if intent.key is not None else derived_scope(self.scope, group)
        rows = sum(len(fragment.offsets) for fragment in fragments)
        nbytes = sum(map(body_bytes, fragments))
        bounds = intent.first, intent.last  # not the members': some may be gone when it is sent again
        part = Part(self.tp, scope, group, *bounds, fragments, rows, nbytes, self.epoch, intent=intent, home=self.scope)
        intent.live += 1
        insort(self.lane(group).live, part, key=lambda other: other.fragments[0].first)
        return part

    # Settling

    def settle(self, part: Part) -> None:
        """The part is done with: delivered, or in the dead letters."""
        self._remove(part)
        intent: Intent = part.intent
        intent.ids += _ids(part.fragments)
        intent.partly = True
        if intent.key is None and intent.live and part.primary and not self._has_more(part):
            self._exclude(intent, lane_key(part.group))
        self._drop_finished()

    def _has_more(self, part: Part) -> bool:
        """Whether there are other pieces of what the intent has of the part's group."""
        lane = self.lanes.get(part.group)
        return lane is not None and any(other.intent is part.intent for other in lane.live)

    def _exclude(self, intent: Intent, key: int) -> None:
        """Where there is room, what is settled of a shared intent is not sent again after a crash."""
        if self.extra_bytes + EXCLUDED_BYTES <= self.room.extra_cuts_bytes:
            intent.excluded.add(key)

    def _remove(self, part: Part) -> None:
        lane = self.lanes[part.group]
        lane.live.remove(part)
        part.intent.live -= 1
        part.epoch = -1
        if not lane.live and not lane.buffer.fragments:
            del self.lanes[part.group]

    def _drop_finished(self) -> None:
        for intent in self.intents:
            if not intent.live and intent.collected is None:
                self.settled_ids += intent.ids
                self.errors += intent.errors
        self.intents = [i for i in self.intents if i.live or i.collected is not None]

    def may_split(self, part: Part) -> bool:
        """Whether there is room for the two halves and, whatever is refused next, for halving one of them to the end.

        That foresight is why splits cannot wait for each other for ever.
        """
        cost = INTENT_BYTES * (part.count - 1).bit_length()
        if part.intent.key is None:
            cost += EXCLUDED_BYTES + INTENT_BYTES
            if len(self._own_keys() | {lane_key(part.group)}) > self.room.lanes:
                return False
        return self.extra_bytes + cost <= self.room.extra_bytes

    def split(self, part: Part, pieces: Sequence[list[Fragment]]) -> list[Part]:
        """Replace a refused part by its two halves, which get intents of their own.

        Nothing of the part was stored, and once a half may have been, the whole must never be sent again: so the halves
        wait for their intents to be durable.
        """
        intent: Intent = part.intent
        key = lane_key(part.group)
        bounds = (part.first, pieces[0][-1].last), (pieces[1][0].first, part.last)
        children = [Intent(key, first, last, tries=intent.tries) for first, last in bounds]
        self._remove(part)
        if intent.key is None:
            intent.excluded.add(key)
        self.intents += children
        parts = [self._part(part.group, child, piece) for child, piece in zip(children, pieces, strict=True)]
        self._drop_finished()
        return parts

    def separate(self, part: Part, pieces: Mapping[int, list[Fragment]], token: int) -> list[Part]:
        """Replace a part by pieces that the ledger tells apart, under its own intent; a name follows from the token.

        Args:
            part: The part.
            pieces: Its rows by token, but for those that are settled; not empty.
            token: The part's own: this piece keeps its name.
        """
        parts = []
        for one, fragments in pieces.items():
            piece = self._part(part.group, part.intent, fragments)
            if one == token:
                piece.scope, piece.primary = part.scope, part.primary
            else:
                piece.scope = derived_scope(piece.scope, part.first, part.last, one)
            parts.append(piece)
        part.intent.partly = True
        self._remove(part)
        return parts

    def seal(self) -> Seal:
        """What is durable when a commit that begins from now on succeeded."""
        self.seals.append(Seal())
        return self.seals[-1]

    def derive(self, part: Part, pieces: Mapping[str, list[Fragment]]) -> list[Part]:
        """Replace a part by pieces of it, under its own intent; a piece's name follows from the part's and its key.

        After a crash the whole part is sent again, meets the same answer, and leads to the same pieces and names.
        """
        parts = []
        for why, piece in pieces.items():
            parts.append(self._part(part.group, part.intent, piece))
            parts[-1].scope = derived_scope(part.scope, part.first, part.last, why)
            parts[-1].primary = False
        later = {number for piece in pieces.values() for number in _ids(piece)}
        part.intent.ids += [number for number in _ids(part.fragments) if number not in later]
        part.intent.partly = True
        self._remove(part)
        self._drop_finished()
        return parts


def _offsets(fragments: Iterable[Fragment]) -> Iterator[Sequence[int]]:
    for fragment in fragments:
        yield from (fragment.offsets, fragment.unframeable)


def _ids(fragments: Iterable[Fragment]) -> list[int]:
    return [number for fragment in fragments for number in fragment.ids or () if number != NO_ID]
