"""Units of naming, sending and settling: parts, and the batches that one request carries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from sidecar.core.batching import reasons_of
from sidecar.core.intents import Barrier, Intent
from sidecar.core.records import DELAYED, Attempt, Fragment, TopicPartition

HISTORY_MAX = 20
"""Number of sends that a dead letter lists: the last ones."""


@dataclass(slots=True, eq=False)
class PartClaim:
    """A part's side of its claims in the ledger."""

    token: int = 0
    was: int | None = None
    first: bool = False
    """No claim was made in this process; an earlier one may have split its rows."""
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
        """Why messages have no row, by offset, unless it is the format."""
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
        """Whether a successor would know of it: it is not sent before that."""
        return self.intent.durable and (self.hold is None or self.hold.barrier is None or self.hold.barrier.durable)

    def inherit(self, part: Part) -> None:
        """It takes that part's place, and was sent before, as a part of it."""
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
