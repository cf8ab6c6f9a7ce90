"""Unsettled parts of one partition, and the entries due with its next commit. Knows no batch and no answer."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sidecar.core.batching import ids_of
from sidecar.core.claims import ClaimEnd
from sidecar.core.lineage import Fingerprint, Lineage, Stamp, extended
from sidecar.core.partition.parking import ParkedRecords
from sidecar.core.partition.promises import Promises
from sidecar.core.partition_state import PartitionState, Tries, derived_scope, lane_key
from sidecar.core.parts import Barrier, Intent, IntentState, Lanes, Part
from sidecar.core.records import Fragment, Parked, TopicPartition
from sidecar.core.states import Event


@dataclass(slots=True)
class BegunCommit:
    """Everything that a commit under way makes durable."""

    state: PartitionState
    intents: list[Intent]
    barriers: list[Barrier]
    errors: int
    """Number of errors that may be reported to the ledger after the commit."""
    ids: array[int]
    """Message ids that must be in the journal before it."""
    marks: tuple[ClaimEnd, ...]
    """Marks that must be in the ledger before it."""
    stamp: Stamp
    lineage: Lineage


class CommitEntries:
    """Collects entries: for the journal before a commit, for the ledger before or after it; and numbers commits.

    Args:
        lineage: The commits that the ownership's state came after.
    """

    def __init__(self, lineage: Lineage = Lineage()) -> None:  # noqa: B008  # frozen
        self._lineage = lineage
        self._newest: Fingerprint | None = None
        self._commits = 0
        self._durable: PartitionState | None = None
        self._ids = array("q")
        self._held_ids = array("q")
        self._marks: list[ClaimEnd] = []
        self._begun_marks = False
        """Whether a commit took marks and no commit succeeded since: the ledger may not have them yet."""
        self._errors: list[ClaimEnd] = []
        self._barriers: list[Barrier] = []
        self._next: Barrier | None = None
        """The barrier for the next commit that begins; None if nothing has asked for one yet."""

    def read(self, newest: Fingerprint) -> None:
        """Record the last message read: its fingerprint becomes durable with the next commit, and not before."""
        self._newest = newest

    def journal(self, number: int) -> None:
        """Add a settled message id that belongs to no intent."""
        self._ids.append(number)

    def journal_held(self, numbers: Iterable[int]) -> None:
        """Add the ids of messages that the store of delayed messages has: a commit under way may settle them."""
        self._held_ids.extend(numbers)

    def tell(self, mark: ClaimEnd) -> None:
        """Add a mark for the ledger, to be written before the next commit; no later commit reports it."""
        self._marks.append(mark)

    def finished(self, intent: Intent) -> None:
        """Release the withheld entries of an intent, which is settled as a whole.

        Ids are written before the commit that drops the intent, errors after it: if a twin took the key while the
        intent still stood, and a successor sent the intent again, both would be delivered.
        """
        self._ids += intent.withheld_ids
        self._errors += intent.withheld_errors

    def barrier(self) -> Barrier:
        """The barrier that becomes durable with a commit that begins from now on."""
        if self._next is None:
            self._next = Barrier()
            self._barriers.append(self._next)
        return self._next

    def begin_commit(self, state: PartitionState, intents: Iterable[Intent], *, proves: bool) -> BegunCommit | None:
        """Begin a commit of this state, with all entries that are due so far; None if nothing changed."""
        if not (proves or state != self._durable or self._marks or self._begun_marks or self._barriers):
            return None
        self._commits += 1
        self._next = None
        if self._newest is not None:
            trail = extended(self._lineage.fingerprints, self._newest)
            self._lineage = replace(self._lineage, fingerprints=trail)
        stamp = Stamp(self._lineage.token, self._commits)
        ids, self._ids = self._ids + self._held_ids, array("q")
        marks, self._marks, self._held_ids = tuple(self._marks), [], array("q")
        self._begun_marks |= bool(marks)
        # Copies: entries that are added while the commit is under way become durable with a later one.
        return BegunCommit(
            state, list(intents), list(self._barriers), len(self._errors), ids, marks, stamp, self._lineage
        )  # fmt: skip

    def take_held_ids(self) -> array[int]:
        """Remove and return the ids of held messages."""
        ids, self._held_ids = self._held_ids, array("q")
        return ids

    def take_all_marks(self) -> tuple[ClaimEnd, ...]:
        """Remove and return all marks for the ledger: this caller makes no commit."""
        marks, self._marks, self._errors = (*self._marks, *self._errors), [], []
        return marks

    def lift_barriers(self) -> None:
        """End all barriers: no other process can become the owner of the partition."""
        for barrier in self._barriers:
            barrier.durable = True
        self._barriers.clear()
        self._next = None

    def acknowledged(self, begun: BegunCommit) -> bool:
        """Handle a successful commit. Return whether another one is due, for entries that may be written now."""
        self._durable, self._begun_marks = begun.state, False
        for intent in begun.intents:
            if intent.state is not IntentState.DURABLE:
                intent.move(Event.DURABLE)
        for barrier in begun.barriers:
            barrier.durable = True
        self._barriers = [barrier for barrier in self._barriers if not barrier.durable]
        self._marks += self._errors[: begun.errors]
        del self._errors[: begun.errors]
        return begun.errors > 0

    def drop_ids(self) -> None:
        """Discard ids: this caller has no journal."""
        del self._ids[:], self._held_ids[:]


class Outstanding:
    """The parts that are cut and not settled.

    A message is in at most one live part. The parts that replace another have all of its unsettled messages, and a
    successor can derive their names after a crash. An intent stays while one of its parts is live.

    Args:
        scope: The partition's scope, in which an offset is one message.
    """

    def __init__(
        self, tp: TopicPartition, scope: str, lanes: Lanes, promises: Promises, parking: ParkedRecords
    ) -> None:
        self._tp = tp
        self._scope = scope
        self._lanes = lanes
        self._promises = promises
        self._parking = parking

    def add_part(
        self, group: str, intent: Intent, fragments: list[Fragment], attempts: int = 0, *,
        scope: str = "", home: str = "", primary: bool = True,
    ) -> Part:  # fmt: skip
        """Add a part of this intent.

        Args:
            scope: Of its name; by default that of the partition, or derived from it for a group of a shared intent.
            home: The partition's scope when the intent was made; by default it is the same now.
        """
        if not scope:
            scope = self._scope if intent.key is not None else derived_scope(self._scope, group)
        part = intent.new_part(self._tp, scope, home or self._scope, group, fragments, attempts, primary=primary)
        insort(self._lanes.of(group).live, part, key=lambda other: other.fragments[0].first)
        return part

    def is_next(self, part: Part) -> bool:
        """Whether the part is live and the first of its group."""
        return self._lanes[part.group].live[0] is part and self._parking.is_first(part)

    def settle(self, part: Part) -> None:
        """Settle a part that was delivered or dead-lettered."""
        part.withhold(ids_of(part.fragments))
        self.leave(part, Event.ENDED)

    def leave(self, part: Part, event: Event) -> None:
        """Remove a part that has come to its end, or is in the store."""
        self._remove(part, event)
        intent, lane = part.intent, self._lanes.get(part.group)
        # Only when none of the group's messages is left in it: a successor takes excluded messages for settled.
        has_more = lane is not None and any(other.intent is intent for other in lane.live)
        if intent.key is None and intent.live and part.primary and not has_more:
            self._promises.exclude(intent, lane_key(part.group))
        self._promises.drop_finished()

    def _remove(self, part: Part, event: Event) -> None:
        self._lanes.remove(part)
        part.move(event)
        if part.intent.record is not None and not part.intent.live:
            self._parking.end_record(part.intent.record)

    def close(self) -> None:
        """End all parts of a partition that is no longer owned: later answers are ignored."""
        for part in self._lanes.parts():
            part.move(Event.LOST)

    # Parking

    def load(self, record: Parked, rows: bytes) -> Part:
        """A parked part with its rows; it goes out under its old name."""
        self._parking.load(record.number)
        tries = Tries(record.attempts, record.seconds)
        intent = Intent(
            lane_key(record.group), record.first, record.last, IntentState.DURABLE, tries=tries, record=record.number
        )
        fragments = [Fragment(array("q", record.offsets), rows)]
        return self.add_part(record.group, intent, fragments, record.attempts, scope=record.scope, home=record.home)

    def unload(self, part: Part) -> None:
        """Drop a parked part that was loaded: its record waits."""
        self._lanes.remove(part)
        part.move(Event.STORED)
        self._parking.unload(part)

    def halve(self, part: Part, pieces: Sequence[list[Fragment]]) -> list[Parked]:
        """Replace a loaded parked part that was refused by records of its two halves."""
        self._lanes.remove(part)
        part.move(Event.REPLACED)
        return self._parking.halve(part, pieces)

    # Taking apart

    def split(self, part: Part, pieces: Sequence[list[Fragment]]) -> list[Part]:
        """Replace a refused part by its two halves, which get intents of their own; none if the state has no room.

        The receiver stored no row of the part. Once it may have stored a half, the whole must never be sent again: so
        the halves wait until their intents are durable.
        """
        if not self._promises.may_split(part, self._lanes):
            return []
        self._remove(part, Event.REPLACED)
        children = self._promises.halve(part, (pieces[0][-1].last, pieces[1][0].first))
        parts = [self.add_part(part.group, child, piece) for child, piece in zip(children, pieces, strict=True)]
        self._promises.drop_finished()
        return parts

    def separate(self, part: Part, pieces: Mapping[int, list[Fragment]], token: int) -> list[Part]:
        """Replace a part by the pieces that the ledger distinguishes, under its own intent; names follow from tokens.

        Args:
            pieces: Its unsettled rows by token; not empty.
            token: The part's own token: the piece under it keeps the part's name.
        """
        whole = self._scope if part.intent.key is not None else derived_scope(self._scope, part.group)
        parts = []
        for owner, fragments in pieces.items():
            is_own = owner == token
            scope = part.scope if is_own else derived_scope(whole, part.first, part.last, owner)
            primary = part.primary or not is_own
            parts.append(self.add_part(part.group, part.intent, fragments, scope=scope, primary=primary))
        self._remove(part, Event.REPLACED)
        return parts

    def derive(self, part: Part, pieces: Mapping[str, list[Fragment]]) -> list[Part]:
        """Replace a part by pieces of it, under its own intent; their names follow from the part's name and the key.

        After a crash the whole part is sent again, gets the same answer, and leads to the same pieces and names.
        """
        parts = []
        for why, piece in pieces.items():
            scope = derived_scope(part.scope, part.first, part.last, why)
            parts.append(self.add_part(part.group, part.intent, piece, scope=scope, home=part.home, primary=False))
        # Ids of accepted rows wait for the whole intent; the others stay with the pieces.
        later = {number for piece in pieces.values() for number in ids_of(piece)}
        part.withhold(number for number in ids_of(part.fragments) if number not in later)
        self._remove(part, Event.REPLACED)
        self._promises.drop_finished()
        return parts
