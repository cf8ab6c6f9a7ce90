"""Units of naming, sending and settling: intents, parts, batches, and the memory that they hold. Decides nothing."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from sidecar.core.batching import Buffer, held_bytes, reasons_of
from sidecar.core.claims import ClaimEnd
from sidecar.core.partition_state import NO_TRIES, Tries, lane_key
from sidecar.core.records import DELAYED, Attempt, Fragment, TopicPartition


@dataclass(slots=True, eq=False)
class Barrier:
    """Waits for the next successful commit, which proves that the partition is still owned."""

    durable: bool = False


@dataclass(slots=True, eq=False)
class _Withheld:
    """Entries for journal and ledger, written when the whole intent is settled, and not before.

    If they were written earlier, a successor would drop these messages from the intent's part, whose name stands for
    all of them.
    """

    ids: array[int] = field(default_factory=partial(array, "q"))
    """Message ids of settled rows."""
    errors: list[ClaimEnd] = field(default_factory=list)
    """Marks of dead letters: a twin may take their keys once no part of the intent can be sent again."""


@dataclass(slots=True, eq=False)
class Intent:
    """A durable promise: the messages of a group (None: every group) from `first` to `last` go out as one part.

    A successor gets it whole or not at all, and cuts the same part under the same name. Therefore nothing is sent
    before its intent is durable, and the intent stays until the last of its parts is settled.
    """

    key: int | None
    first: int
    last: int
    durable: bool = False
    old: bool = False
    """Made by an earlier owner: its part may have been sent, with members that are gone since."""
    excluded: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    """Groups whose part of a shared intent was parked by an earlier owner."""
    collected: dict[str, Buffer] | None = None
    """The messages of a recovered intent that were read again so far; None once it is complete."""
    live: int = 0
    """Number of its parts that are not settled."""
    tries: Tries = NO_TRIES
    """Failed sends of earlier owners and of this one."""
    fresh: set[str] = field(default_factory=set)
    """Groups with a member unknown to the window: a part is skipped only if the window knows all of it."""
    withheld: _Withheld = field(default_factory=_Withheld)
    record: int | None = None
    """The number of the parked part that it is; None if it is in the state."""

    def covers(self, key: int, offset: int) -> bool:
        """Whether a message of this group at this offset belongs to the intent."""
        is_ours = key not in self.excluded | self.parked if self.key is None else key == self.key
        return is_ours and self.first <= offset <= self.last

    def stand(self, *, old: bool) -> None:
        """Make the intent durable without a commit: it follows from durable data, so each owner makes the same cut."""
        self.durable, self.old = True, old


HISTORY_MAX = 20
"""Number of sends that a dead letter lists: the last ones."""


@dataclass(slots=True, eq=False)
class PartClaim:
    """A part's side of its claims in the ledger."""

    token: int = 0
    was: int | None = None
    first: bool = False
    """Whether this process has made no claim yet; an earlier one may have split its rows."""
    fewer: bool = False
    """It may have been sent under its name with rows that twins have now."""
    at_ms: float = -inf
    """Time of the last claim, monotonic."""
    tries: int = 0
    barrier: Barrier | None = None
    """A commit that must succeed before it is sent."""


@dataclass(slots=True, eq=False)
class Life:
    """The changing state of a part."""

    alive: bool = True
    """False once it is settled or replaced, or its partition is no longer owned; later answers are ignored."""
    attempts: int = 0
    """Number of sends so far; those of an earlier owner count as one."""
    history: list[Attempt] = field(default_factory=list)
    """The last sends, at most `HISTORY_MAX`."""
    primary: bool = True
    """False for a piece of another part, named by a scope that is derived from that part's."""

    def sent(self, attempt: Attempt) -> bool:
        """Record a send that was answered; return whether the history grew."""
        self.attempts += 1
        if not self.alive:
            return False
        grows = len(self.history) < HISTORY_MAX
        self.history = [*self.history[1 - HISTORY_MAX :], attempt]
        return grows


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
    life: Life = field(default_factory=Life)
    hold: PartClaim | None = None
    """Its claims; None without a ledger, or before the first claim."""

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
    def durable(self) -> bool:
        """Whether a successor would know of the part: it is not sent before that."""
        return self.intent.durable and (self.hold is None or self.hold.barrier is None or self.hold.barrier.durable)

    def inherit(self, part: Part) -> None:
        """Take the place of `part`, as a piece of it that was sent before."""
        self.life.attempts, self.life.history = part.life.attempts, part.life.history
        if part.hold is not None:
            self.hold = replace(part.hold)

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

    def __post_init__(self) -> None:
        self.count = sum(part.count for part in self.parts)
        self.nbytes = sum(part.nbytes for part in self.parts)

    @property
    def attempt(self) -> int:
        """The number of the next send; 1 only if no part was ever sent before."""
        return 1 + max(part.life.attempts for part in self.parts)

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
        return [part for part in self.parts if part.life.alive]

    def fragments(self) -> Iterable[Fragment]:
        """All fragments, part after part: the rows in their order."""
        for part in self.parts:
            yield from part.fragments


PART_BYTES = 1_600
"""Memory of a part with its batch, intent, lane and group, without its rows; measured."""
ATTEMPT_BYTES = 250


def held_by(part: Part) -> int:
    """Memory that the part holds, in bytes."""
    return PART_BYTES + ATTEMPT_BYTES * len(part.life.history) + sum(map(held_bytes, part.fragments))


class Memory:
    """Bytes of messages that are read and not settled. Each hold is freed exactly once, so the count is 0 at rest."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0
        """The bytes held now, without dead letters that are being stored."""

    def hold(self, count: int) -> None:
        """Add `count` bytes; a negative count subtracts."""
        self.held_bytes += count

    def free(self, count: int) -> None:
        """Subtract `count` bytes."""
        self.held_bytes -= count


class Lane:
    """The open messages of one group in one partition."""

    __slots__ = ("buffer", "group", "key", "live")

    def __init__(self, group: str, separator: bytes) -> None:
        self.group = group
        self.key = lane_key(group)
        self.buffer = Buffer(separator)
        self.live: list[Part] = []
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
            lane = self[group] = Lane(group, self.separator)
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
