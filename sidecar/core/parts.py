"""What is named, sent and settled: parts, and the batches that one request carries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from sidecar.core.intents import Barrier, Intent
from sidecar.core.records import Attempt, Fragment, TopicPartition

HISTORY_MAX = 20
"""Sends that a dead letter tells of: the last ones."""


@dataclass(slots=True, eq=False)
class Hold:
    """A part's side of its claims in the ledger."""

    token: int = 0
    was: int | None = None
    first: bool = False
    """Nothing was asked for it in this life: earlier ones may have told its rows apart."""
    fewer: bool = False
    """Under its name it was sent, perhaps, with rows that twins have by now."""
    at_ms: float = -inf
    """When the last claim was asked for, monotonic."""
    tries: int = 0
    barrier: Barrier | None = None
    """A commit that must succeed before it is sent."""


@dataclass(slots=True, eq=False)
class Life:
    """How a part fares."""

    alive: bool = True
    """Until it is settled, replaced, or its partition is not ours any more: what comes later of it counts no more."""
    attempts: int = 0
    """Sends so far, those of an earlier life counted as one."""
    history: list[Attempt] = field(default_factory=list)
    """The last of them."""
    primary: bool = True
    """False for a piece of another part, named by a scope that is derived from that part's."""

    def sent(self, attempt: Attempt) -> bool:
        """Remember a send that was answered; whether more is remembered than before."""
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
    """Rows; messages without one are in `unframeable` alone."""
    nbytes: int
    """Of the rows in a body, before compression."""
    intent: Intent
    """The durable promise it was cut under."""
    home: str = ""
    """The partition's own scope: within it an offset is one message. Empty: the same as `scope`."""
    life: Life = field(default_factory=Life)
    hold: Hold | None = None
    """Its claims, where there is a ledger and it was asked."""

    @property
    def unframeable(self) -> list[int]:
        """Offsets of its messages that have no row."""
        return [offset for fragment in self.fragments for offset in fragment.unframeable]

    @property
    def name(self) -> str:
        """``topic@scope:partition:first-last``: stable over restarts and takeovers, never two sets of messages.

        With RocketMQ it is ``topic@scope:broker:queue:first-last``.
        """
        return f"{self.tp.topic}@{self.scope}:{self.tp.queue}:{self.first}-{self.last}"

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
        """Its messages without a row have their end; those with one are as they were."""
        for fragment in self.fragments:
            fragment.unframeable = ()
        self.fragments = [fragment for fragment in self.fragments if fragment.offsets]


@dataclass(slots=True, eq=False)
class Batch:
    """What one request carries: parts of one group."""

    id: int
    group: str
    parts: list[Part]
    count: int = field(init=False)
    nbytes: int = field(init=False)
    failing_since_ms: float | None = None
    """Since when it was sent in vain, by this owner and those before."""

    def __post_init__(self) -> None:
        self.count = sum(part.count for part in self.parts)
        self.nbytes = sum(part.nbytes for part in self.parts)

    @property
    def attempt(self) -> int:
        """1 only when no part was ever sent before."""
        return 1 + max(part.life.attempts for part in self.parts)

    @property
    def key(self) -> str:
        """The idempotency key: a hash of group and part names, 32 hexadecimal digits."""
        text = "\n".join([self.group, *(part.name for part in self.parts)])
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    @property
    def alive(self) -> list[Part]:
        """Its parts whose partitions are still ours."""
        return [part for part in self.parts if part.life.alive]

    def fragments(self) -> Iterable[Fragment]:
        """All fragments, part after part: the rows in their order."""
        for part in self.parts:
            yield from part.fragments
