"""Unsettled parts of one partition, and the entries due with its next commit. Knows no batch and no answer."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sidecar.core.batching import body_bytes, ids_of
from sidecar.core.claims import ClaimEnd
from sidecar.core.partition.parking import ParkedRecords
from sidecar.core.partition.promises import Promises
from sidecar.core.partition_state import PartitionState, Tries, derived_scope, lane_key
from sidecar.core.parts import Barrier, Intent, Lanes, Life, Part
from sidecar.core.records import Fragment, Parked, TopicPartition


@dataclass(slots=True)
class BegunCommit:
    """Everything that a commit under way makes durable."""

    state: PartitionState
    intents: list[Intent]
    barriers: list[Barrier]
    errors: int
    """Number of errors that may be reported to the ledger after the commit."""


class CommitEntries:
    """Collects entries: for the journal before a commit, for the ledger before or after it."""

    def __init__(self) -> None:
        self._durable: PartitionState | None = None
        self._ids = array("q")
        self._held_ids: list[int] = []
        self._marks: list[ClaimEnd] = []
        self._begun_marks = False
        """Whether a commit took marks and no commit succeeded since: the ledger may not have them yet."""
        self._errors: list[ClaimEnd] = []
        self._barriers: list[Barrier] = []

    def journal(self, number: int) -> None:
        """Add a settled message id that belongs to no intent."""
        self._ids.append(number)

    def journal_held(self, number: int) -> None:
        """Add the id of a message that the store of delayed messages has: a commit under way may settle it."""
        self._held_ids.append(number)

    def tell(self, mark: ClaimEnd) -> None:
        """Add a mark for the ledger, to be written before the next commit; no later commit reports it."""
        self._marks.append(mark)

    def finished(self, intents: Iterable[Intent]) -> None:
        """Release the withheld entries of these intents, which are settled as a whole.

        Ids are written before the commit that drops the intent, errors after it: if a twin took the key while the
        intent still stood, and a successor sent the intent again, both would be delivered.
        """
        for intent in intents:
            self._ids += intent.withheld.ids
            self._errors += intent.withheld.errors

    def barrier(self) -> Barrier:
        """Add a barrier, which becomes durable with a commit that begins from now on."""
        self._barriers.append(Barrier())
        return self._barriers[-1]

    def outdated(self, state: PartitionState) -> bool:
        """Whether there is anything to commit."""
        return bool(state != self._durable or self._marks or self._begun_marks or self._barriers)

    def begin(self, state: PartitionState, intents: Iterable[Intent]) -> BegunCommit:
        """Begin a commit of this state, with all entries that are due so far."""
        # Copies: entries that are added while the commit is under way become durable with a later one.
        return BegunCommit(state, list(intents), list(self._barriers), len(self._errors))

    @property
    def has_ids(self) -> bool:
        """Whether there are entries for the journal."""
        return bool(self._ids or self._held_ids)

    def take_ids(self) -> array[int]:
        """Remove and return the message ids for the journal."""
        ids, self._ids = self._ids, array("q")
        return ids + self.take_held_ids()

    def take_held_ids(self) -> array[int]:
        """Remove and return the ids of held messages."""
        ids, self._held_ids = array("q", self._held_ids), []
        return ids

    def take_marks(self) -> tuple[ClaimEnd, ...]:
        """Remove and return the marks for the ledger."""
        marks, self._marks = tuple(self._marks), []
        self._begun_marks |= bool(marks)
        return marks

    def take_errors(self) -> tuple[ClaimEnd, ...]:
        """Remove and return the errors that may be reported to the ledger after a commit."""
        errors, self._errors = tuple(self._errors), []
        return errors

    def lift_barriers(self) -> None:
        """End all barriers: no other process can become the owner of the partition."""
        for barrier in self._barriers:
            barrier.durable = True
        self._barriers.clear()

    def acknowledged(self, begun: BegunCommit) -> bool:
        """Handle a successful commit. Return whether another one is due, for entries that may be written now."""
        self._durable, self._begun_marks = begun.state, False
        for intent in begun.intents:
            intent.durable = True
        for barrier in begun.barriers:
            barrier.durable = True
        self._barriers = [barrier for barrier in self._barriers if not barrier.durable]
        self._marks += self._errors[: begun.errors]
        del self._errors[: begun.errors]
        return begun.errors > 0

    def drop_ids(self) -> None:
        """Discard ids: this caller has no journal."""
        del self._ids[:]
        self._held_ids.clear()


class Outstanding:
    """The parts that are cut and not settled.

    A message is in at most one live part. The parts that replace another have all of its unsettled messages, and a
    successor can derive their names after a crash. An intent stays while one of its parts is live.

    Args:
        scope: The partition's scope, in which an offset is one message.
    """

    def __init__(
        self,
        tp: TopicPartition,
        scope: str,
        lanes: Lanes,
        promises: Promises,
        dues: CommitEntries,
        parking: ParkedRecords,
    ) -> None:
        self._tp = tp
        self._scope = scope
        self._lanes = lanes
        self._promises = promises
        self._dues = dues
        self._parking = parking

    def add(self, group: str, intent: Intent, fragments: list[Fragment]) -> Part:
        """A new part of this intent: named by the intent's bounds, since members may be gone when it is sent again."""
        scope = self._scope if intent.key is not None else derived_scope(self._scope, group)
        rows = sum(len(fragment.offsets) for fragment in fragments)
        nbytes = sum(map(body_bytes, fragments))
        bounds = intent.first, intent.last
        return self._add(Part(self._tp, scope, group, *bounds, fragments, rows, nbytes, intent, self._scope))

    def _add(self, part: Part) -> Part:
        part.intent.live += 1
        insort(self._lanes.of(part.group).live, part, key=lambda other: other.fragments[0].first)
        return part

    def is_next(self, part: Part) -> bool:
        """Whether the part is live and the first of its group."""
        is_first = self._lanes[part.group].live[0] is part
        return is_first and self._parking.is_first(part)

    def settle(self, part: Part) -> None:
        """Settle a part that was delivered or dead-lettered."""
        part.intent.withheld.ids += ids_of(part.fragments)
        self.leave(part)

    def leave(self, part: Part) -> None:
        """A part has come to its end, or is in the store."""
        self._remove(part)
        intent = part.intent
        # Only when none of the group's messages is left in it: a successor takes excluded messages for settled.
        if intent.key is None and intent.live and part.life.primary and not self._has_more(part):
            self._promises.exclude(intent, lane_key(part.group))
        self.drop_finished()

    def _has_more(self, part: Part) -> bool:
        """Whether the intent has other live parts of the part's group."""
        lane = self._lanes.get(part.group)
        return lane is not None and any(other.intent is part.intent for other in lane.live)

    def _remove(self, part: Part) -> None:
        self._lanes.remove(part)
        part.intent.live -= 1
        part.life.alive = False
        if part.intent.record is not None and not part.intent.live:
            self._parking.end(part.intent.record)

    def drop_finished(self) -> None:
        """Drop intents that are read and settled as a whole; their withheld entries become due."""
        self._dues.finished(self._promises.take_finished())

    def close(self) -> None:
        """End all parts of a partition that is no longer owned: later answers are ignored."""
        for part in self._lanes.parts():
            part.life.alive = False

    # Parking

    def load(self, record: Parked, rows: bytes) -> Part:
        """A parked part with its rows; it goes out under its old name."""
        self._parking.load(record)
        tries = Tries(record.attempts, record.seconds)
        bounds = record.first, record.last
        intent = Intent(lane_key(record.group), *bounds, durable=True, tries=tries, record=record.number)
        fragments = [Fragment(array("q", record.offsets), rows)]
        life = Life(attempts=record.attempts)
        part = Part(
            self._tp, record.scope, record.group, *bounds, fragments, len(record.offsets), record.nbytes, intent,
            record.home, life,
        )  # fmt: skip
        return self._add(part)

    def unload(self, part: Part) -> None:
        """Drop a parked part that was loaded: its record waits."""
        assert part.intent.record is not None
        self._lanes.remove(part)
        part.life.alive = False
        self._parking.unload(part.intent.record, part.life.attempts, part.intent.tries.seconds)

    def halve(self, part: Part, pieces: Sequence[list[Fragment]]) -> list[Parked]:
        """Replace a loaded parked part that was refused by records of its two halves."""
        assert part.intent.record is not None
        self._lanes.remove(part)
        part.life.alive = False
        bounds = (part.first, pieces[0][-1].last), (pieces[1][0].first, part.last)
        halves = [
            replace(part, scope=part.home, first=first, last=last, fragments=piece, nbytes=sum(map(body_bytes, piece)))
            for (first, last), piece in zip(bounds, pieces, strict=True)
        ]
        return self._parking.halve(part.intent.record, halves)

    # Taking apart

    def may_split(self, part: Part) -> bool:
        """Whether the state has room for the part's halves."""
        return self._promises.may_split(part, self._lanes)

    def split(self, part: Part, pieces: Sequence[list[Fragment]]) -> list[Part]:
        """Replace a refused part by its two halves, which get intents of their own.

        The receiver stored no row of the part. Once it may have stored a half, the whole must never be sent again: so
        the halves wait until their intents are durable.
        """
        self._remove(part)
        children = self._promises.halve(part, (pieces[0][-1].last, pieces[1][0].first))
        parts = [self.add(part.group, child, piece) for child, piece in zip(children, pieces, strict=True)]
        self.drop_finished()
        return parts

    def separate(self, part: Part, pieces: Mapping[int, list[Fragment]], token: int) -> list[Part]:
        """Replace a part by the pieces that the ledger distinguishes, under its own intent; names follow from tokens.

        Args:
            pieces: Its unsettled rows by token; not empty.
            token: The part's own token: the piece under it keeps the part's name.
        """
        parts = []
        for owner, fragments in pieces.items():
            piece = self.add(part.group, part.intent, fragments)
            if owner == token:
                piece.scope, piece.life.primary = part.scope, part.life.primary
            else:
                piece.scope = derived_scope(piece.scope, part.first, part.last, owner)
            parts.append(piece)
        self._remove(part)
        return parts

    def derive(self, part: Part, pieces: Mapping[str, list[Fragment]]) -> list[Part]:
        """Replace a part by pieces of it, under its own intent; their names follow from the part's name and the key.

        After a crash the whole part is sent again, gets the same answer, and leads to the same pieces and names.
        """
        parts = []
        for why, piece in pieces.items():
            parts.append(self.add(part.group, part.intent, piece))
            parts[-1].scope = derived_scope(part.scope, part.first, part.last, why)
            parts[-1].life.primary, parts[-1].home = False, part.home
        # Ids of accepted rows wait for the whole intent; the others stay with the pieces.
        later = {number for piece in pieces.values() for number in ids_of(piece)}
        part.intent.withheld.ids.extend(number for number in ids_of(part.fragments) if number not in later)
        self._remove(part)
        self.drop_finished()
        return parts
