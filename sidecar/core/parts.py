"""Units of naming, sending and settling: intents, parts, batches; tables of their states, and their memory."""

from __future__ import annotations

import enum
import hashlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from sidecar.core.batching import Buffer, body_bytes, held_bytes, reasons_of
from sidecar.core.claims import ClaimEnd
from sidecar.core.partition_state import ATTEMPTS_MAX, NO_TRIES, SECONDS_MAX, Tries, lane_key
from sidecar.core.records import DELAYED, Attempt, Fragment, TopicPartition
from sidecar.core.states import Event, after


@dataclass(slots=True, eq=False)
class Barrier:
    """Waits for the next successful commit, which proves that the partition is still owned."""

    durable: bool = False


class IntentState(enum.Enum):
    """State of an intent."""

    REMEMBERED = "is read again, and only the state folder has it"
    COLLECTING = "is read again"
    CUT = "waits for a commit"
    DURABLE = "is durable"
    ENDED = "has come to its end"

    __hash__ = object.__hash__


INTENTS: Mapping[tuple[IntentState, Event], IntentState] = {
    (IntentState.REMEMBERED, Event.DURABLE): IntentState.COLLECTING,
    (IntentState.REMEMBERED, Event.READ): IntentState.CUT,
    (IntentState.COLLECTING, Event.DURABLE): IntentState.COLLECTING,  # every commit has all intents, also below
    (IntentState.COLLECTING, Event.READ): IntentState.DURABLE,
    (IntentState.CUT, Event.DURABLE): IntentState.DURABLE,
    (IntentState.CUT, Event.ENDED): IntentState.ENDED,  # all of it was known
    (IntentState.DURABLE, Event.DURABLE): IntentState.DURABLE,
    (IntentState.DURABLE, Event.ENDED): IntentState.ENDED,
    (IntentState.ENDED, Event.DURABLE): IntentState.ENDED,  # by a commit that began before
}


@dataclass(slots=True, eq=False)
class Intent:
    """A durable promise: the messages of a group (None: every group) from `first` to `last` go out as one part.

    A successor gets it whole or not at all, and cuts the same part under the same name. Therefore nothing is sent
    before its intent is durable, and the intent stays until the last of its parts is settled.

    Entries for journal and ledger are withheld until the whole intent is settled. If they were written earlier, a
    successor would drop these messages from the intent's part, whose name stands for all of them.
    """

    key: int | None
    first: int
    last: int
    state: IntentState = IntentState.CUT
    old: bool = False
    """Made by an earlier owner: its part may have been sent, with members that are gone since."""
    excluded: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    """Groups whose part of a shared intent was parked by an earlier owner."""
    collected: dict[str, Buffer] = field(default_factory=dict)
    """While it is read again, its messages so far."""
    live: int = 0
    """Number of its parts that are not settled."""
    tries: Tries = NO_TRIES
    """Failed sends of earlier owners and of this one."""
    fresh: set[str] = field(default_factory=set)
    """Groups with a member unknown to the window: a part is skipped only if the window knows all of it."""
    withheld_ids: array[int] = field(default_factory=partial(array, "q"))
    """Message ids of settled rows."""
    withheld_errors: list[ClaimEnd] = field(default_factory=list)
    """Marks of dead letters: a twin may take their keys once no part of the intent can be sent again."""
    record: int | None = None
    """The number of the parked part that it is; None if it is in the state."""

    def __str__(self) -> str:
        return f"intent {self.first}-{self.last}"

    @property
    def durable(self) -> bool:
        """Whether a successor would get it."""
        return self.state is IntentState.DURABLE or self.state is IntentState.COLLECTING

    @property
    def is_read_again(self) -> bool:
        """Whether its messages are collected, as an earlier owner had read them."""
        return self.state is IntentState.COLLECTING or self.state is IntentState.REMEMBERED

    def move(self, event: Event) -> None:
        """Change the state by the table.

        Raises:
            StrayEventError: The event cannot happen in this state.
        """
        self.state = after(INTENTS, self, self.state, event)

    def covers(self, key: int, offset: int) -> bool:
        """Whether a message of this group at this offset belongs to the intent."""
        is_ours = key not in self.excluded | self.parked if self.key is None else key == self.key
        return is_ours and self.first <= offset <= self.last

    def leave_out(self, key: int, *, parked: bool = False) -> None:
        """Leave a group out of a shared intent: its messages are settled, have intents of their own, or are parked."""
        (self.parked if parked else self.excluded).add(key)

    def collect(self, group: str, fragment: Fragment, separator: bytes) -> None:
        """Add messages that are read again."""
        self.collected.setdefault(group, Buffer(separator)).add_fragment(fragment)

    def note_fresh(self, group: str) -> None:
        """Record that the window does not know a message of this group in it."""
        self.fresh.add(group)

    def complete(self) -> dict[str, list[Fragment]]:
        """End the collection: all that the log still has was read; return it by group."""
        self.move(Event.READ)
        collected, self.collected = self.collected, {}
        return {group: buffer.take_through(self.last) for group, buffer in collected.items()}

    def new_part(
        self, tp: TopicPartition, scope: str, home: str, group: str, fragments: list[Fragment], attempts: int = 0,
        *, primary: bool = True,
    ) -> Part:  # fmt: skip
        """A part of this intent: named by the intent's bounds, since members may be gone when it is sent again."""
        self.live += 1
        rows = sum(len(fragment.offsets) for fragment in fragments)
        nbytes = sum(map(body_bytes, fragments))
        unsent = primary and self.state is IntentState.CUT and not attempts
        return Part(
            tp, scope, group, self.first, self.last, fragments, rows, nbytes, self, home, attempts, primary=primary,
            unsent=unsent,
        )  # fmt: skip


HISTORY_MAX = 20
"""Number of sends that a dead letter lists: the last ones."""


@dataclass(slots=True, eq=False)
class PartClaim:
    """A part's side of its claims in the ledger."""

    token: int = 0
    was: int | None = None
    """The token of the part that it is a half of, until its claim is answered."""
    first: bool = False
    """Whether this process has made no claim yet; an earlier one may have split its rows."""
    fewer: bool = False
    """It may have been sent under its name with rows that twins have now."""
    at_ms: float = -inf
    """Time of the last claim, monotonic."""
    tries: int = 0
    """Number of claims that left its rows to twins."""
    barrier: Barrier | None = None
    """A commit that must succeed before it is sent."""

    def answered(self, barrier: Barrier | None) -> None:
        """Record an answer of the ledger; a half waits at the barrier."""
        self.first, self.was = False, None
        self.barrier = barrier or self.barrier

    def own(self, at_ms: float) -> None:
        """Record that its rows are owned, by a claim that was asked for at this time."""
        self.at_ms = at_ms

    def fail(self) -> int:
        """Record that twins hold its rows; return how often."""
        self.tries += 1
        return self.tries


class PartState(enum.Enum):
    """State of a part; answers for one that is neither live nor on its way to the store are ignored."""

    LIVE = "is to be delivered"
    PARKING = "is on its way to the store"
    PARKED = "is in the store"
    REPLACED = "was replaced by its pieces"
    SETTLED = "is settled"
    LOST = "is another owner's"

    __hash__ = object.__hash__


PARTS: Mapping[tuple[PartState, Event], PartState] = {
    (PartState.LIVE, Event.ASKED): PartState.PARKING,
    (PartState.LIVE, Event.STORED): PartState.PARKED,  # it was fetched, and its record waits again
    (PartState.LIVE, Event.REPLACED): PartState.REPLACED,
    (PartState.LIVE, Event.ENDED): PartState.SETTLED,
    (PartState.LIVE, Event.LOST): PartState.LOST,
    (PartState.PARKING, Event.STORED): PartState.PARKED,
    (PartState.PARKING, Event.LOST): PartState.LOST,
}


@dataclass(slots=True, eq=False)
class Part:
    """The unit of naming and settling: one group's messages in one partition from `first` to `last`."""

    tp: TopicPartition
    scope: str
    group: str
    first: int
    last: int
    fragments: list[Fragment]
    count: int
    """Number of rows; messages without a row are only in `unframeable`."""
    nbytes: int
    """Size of the rows in a body, before compression."""
    intent: Intent
    """The durable promise under which it was cut."""
    home: str = ""
    """The partition's own scope: within it an offset is one message. Empty: the same as `scope`."""
    attempts: int = 0
    """Number of sends so far; those of an earlier owner count as one."""
    history: list[Attempt] = field(default_factory=list)
    """The last sends, at most `HISTORY_MAX`."""
    primary: bool = True
    """False for a piece of another part, named by a scope that is derived from that part's."""
    unsent: bool = False
    """Whether it is certain that nothing was ever sent under its name, so that halves may take its place."""
    hold: PartClaim | None = None
    """Its claims; None without a ledger, or before the first claim."""
    state: PartState = PartState.LIVE

    def __str__(self) -> str:
        return f"part {self.name}"

    @property
    def alive(self) -> bool:
        """Whether its messages are unsettled, here and in no other part."""
        return self.state is PartState.LIVE or self.state is PartState.PARKING

    def move(self, event: Event) -> None:
        """Change the state by the table; the intent of a part that leaves has one part less.

        Raises:
            StrayEventError: The event cannot happen in this state; nothing was changed.
        """
        self.state = after(PARTS, self, self.state, event)
        self.intent.live -= self.state is not PartState.PARKING

    @property
    def unframeable(self) -> list[int]:
        """Offsets of its messages that have no row."""
        return [offset for fragment in self.fragments for offset in fragment.unframeable]

    @property
    def reasons(self) -> dict[int, str]:
        """Why messages have no row, by offset, unless the format is the reason."""
        return {offset: reason for fragment in self.fragments for offset, reason in reasons_of(fragment).items()}

    @property
    def name(self) -> str:
        """``topic@scope:partition:first-last``: stable over restarts and takeovers, never reused for other messages.

        With RocketMQ it is ``topic@scope:broker:queue:first-last``. The scope of delayed messages ends with
        ``+delayed``.
        """
        scope = self.scope + DELAYED * self.tp.delayed
        return f"{self.tp.topic}@{scope}:{self.tp.queue}:{self.first}-{self.last}"

    @property
    def ready(self) -> bool:
        """Whether a batch need not wait for the part: a successor would know of it, or it is no longer live."""
        # If a part were split while a dead letter of it is being stored, it would be unknown which half the letter
        # belongs to.
        durable = self.intent.durable and (self.hold is None or self.hold.barrier is None or self.hold.barrier.durable)
        return (durable and not any(each.unframeable for each in self.fragments)) or not self.alive

    def stand(self, *, again: bool) -> None:
        """Make the part durable without a commit: it follows from durable data, so each owner makes the same cut.

        Args:
            again: Whether an earlier owner may have sent it.
        """
        self.intent.move(Event.DURABLE)
        self.intent.old, self.attempts, self.unsent = again, int(again), not again

    def sent(self, attempt: Attempt) -> bool:
        """Record a send that was answered; return whether the history grew."""
        self.attempts, self.unsent = self.attempts + 1, False
        if not self.alive:
            return False
        grows = len(self.history) < HISTORY_MAX
        self.history = [*self.history[1 - HISTORY_MAX :], attempt]
        return grows

    def remember_tries(self, seconds: int) -> None:
        """Record in the intent how often and for how long it failed, for the next owner; not for shared intents."""
        if self.intent.key is not None:
            self.intent.tries = Tries(min(self.attempts, ATTEMPTS_MAX), min(seconds, SECONDS_MAX))

    def claim(self) -> PartClaim:
        """Its claim, which begins with the first call."""
        if self.hold is None:
            self.hold = PartClaim(first=True)
        return self.hold

    def claim_apart(self, part: Part, token: int, was: int | None) -> PartClaim:
        """Begin the claim of a piece of `part`, which was claimed.

        Args:
            was: The token of the part, if the piece is half of it.
        """
        assert part.hold is not None
        fewer = token == part.hold.token and part.attempts > 0
        self.hold = PartClaim(token, was, fewer=fewer, tries=part.hold.tries, barrier=part.hold.barrier)
        return self.hold

    def inherit(self, part: Part) -> None:
        """Take the place of `part`, as a piece of it that was sent before."""
        self.attempts, self.history = part.attempts, part.history
        if part.hold is not None:
            self.hold = replace(part.hold)

    def withhold(self, numbers: Iterable[int], *marks: ClaimEnd) -> None:
        """Keep these ids, and marks of dead letters, until the whole intent is settled."""
        self.intent.withheld_ids.extend(numbers)
        self.intent.withheld_errors.extend(marks)

    def drop_unframeable(self) -> None:
        """Drop messages without a row; they are settled."""
        for fragment in self.fragments:
            fragment.unframeable = ()
        self.fragments = [fragment for fragment in self.fragments if fragment.offsets]


@dataclass(slots=True, eq=False)
class Batch:
    """Parts of one group that one request carries."""

    id: int
    group: str
    parts: list[Part]
    count: int = field(init=False)
    nbytes: int = field(init=False)
    failing_since_ms: float | None = None
    """Time of the first failed send, by this owner or an earlier one."""

    def __str__(self) -> str:
        return f"batch {self.id}"

    def __post_init__(self) -> None:
        self.count = sum(part.count for part in self.parts)
        self.nbytes = sum(part.nbytes for part in self.parts)

    @property
    def attempt(self) -> int:
        """The number of the next send; 1 only if no part was ever sent before."""
        return 1 + max(part.attempts for part in self.parts)

    @property
    def key(self) -> str:
        """The idempotency key: a hash of group and part names, 32 hexadecimal digits."""
        text = "\n".join([self.group, *(part.name for part in self.parts)])
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    @property
    def since_ms(self) -> float:
        """Monotonic time since when its oldest message is open; its number if that is not known."""
        times_ms = (part.fragments[0].at_ms for part in self.parts if part.fragments)
        return min(times_ms, default=0.0) or float(self.id)

    @property
    def alive(self) -> list[Part]:
        """Its parts whose partitions are still owned."""
        return [part for part in self.parts if part.alive]

    def failing_ms(self, now_ms: float) -> float:
        """Time since its first failed send; it begins now, unless earlier owners failed as well."""
        # Failures of earlier owners count: otherwise a process that crashes now and then would never give up.
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms - 1000 * max(part.intent.tries.seconds for part in self.parts)
        return now_ms - self.failing_since_ms

    def fragments(self) -> Iterable[Fragment]:
        """All fragments, part after part: the rows in their order."""
        for part in self.parts:
            yield from part.fragments


PART_BYTES = 1_600
"""Memory of a part with its batch, intent, lane and group, without its rows; measured."""
ATTEMPT_BYTES = 250


def held_by(part: Part) -> int:
    """Memory that the part holds, in bytes."""
    return PART_BYTES + ATTEMPT_BYTES * len(part.history) + sum(map(held_bytes, part.fragments))


@dataclass(slots=True)
class Memory:
    """Bytes of messages that are read and not settled. What is added is subtracted exactly once, so it is 0 at rest."""

    held_bytes: int = 0
    """The bytes held now, without dead letters that are being stored."""


@dataclass(slots=True, eq=False)
class Lane:
    """The open messages of one group in one partition."""

    group: str
    key: int
    """The group's `lane_key`."""
    buffer: Buffer
    live: list[Part] = field(default_factory=list)
    """Parts that are not settled, by first offset: with `ordered`, only the first is sent."""


class Lanes(dict[str, Lane]):
    """Lanes by group. Groups without open messages and live parts have none, so that idle groups take no memory.

    Attributes:
        separator: The rows' separator; it changes only while there is no lane.
    """

    def __init__(self, separator: bytes) -> None:
        super().__init__()
        self.separator = separator

    def of(self, group: str) -> Lane:
        """The lane of `group`, created if there is none."""
        lane = self.get(group)
        if lane is None:
            lane = self[group] = Lane(group, lane_key(group), Buffer(self.separator))
        return lane

    def open(self) -> list[Lane]:
        """The lanes with open messages."""
        return [lane for lane in self.values() if lane.buffer.fragments]

    def remove(self, part: Part) -> None:
        """Remove a part that is no longer live, and its lane if that is empty."""
        lane = self[part.group]
        lane.live.remove(part)
        if not lane.live and not lane.buffer.fragments:
            del self[part.group]

    def parts(self) -> list[Part]:
        """All parts that are not settled."""
        return [part for lane in self.values() for part in lane.live]
