"""Promises of what goes out together, and what must be durable before it does. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.core.batching import Buffer
from sidecar.core.claims import Mark
from sidecar.core.partition_state import NO_TRIES, Tries


@dataclass(slots=True, eq=False)
class Barrier:
    """What waits for the next commit, whatever it says: that proves that the partition is still ours."""

    durable: bool = False


@dataclass(slots=True, eq=False)
class Withheld:
    """What the journal and the ledger are told when all of an intent is settled, and not before.

    Were they told earlier, a successor would cut the intent's part down by it, under a name that stands for all of it.
    """

    ids: list[int] = field(default_factory=list)
    """Message ids of settled rows."""
    errors: list[Mark] = field(default_factory=list)
    """Of dead letters: a twin may take them once none of the intent can be sent again."""


@dataclass(slots=True, eq=False)
class Intent:
    """A durable promise: what a group (None: every group) has from `first` to `last` goes out as one part.

    A successor gets it whole or not at all, and cuts the same part under the same name. So nothing is sent before its
    intent is durable, and the intent stays until the last of its parts is settled.
    """

    key: int | None
    first: int
    last: int
    durable: bool = False
    old: bool = False
    """Of an earlier life: its part was sent, perhaps, with members that are gone by now."""
    excluded: set[int] = field(default_factory=set)
    collected: dict[str, Buffer] | None = None
    """What was read again so far of an earlier life's intent; None once it is complete."""
    live: int = 0
    """Parts that are not settled."""
    tries: Tries = NO_TRIES
    """Of earlier owners, and of this one."""
    fresh: set[str] = field(default_factory=set)
    """Groups with a member that the window does not know: only what it knows wholly is not sent again."""
    withheld: Withheld = field(default_factory=Withheld)

    def covers(self, key: int, offset: int) -> bool:
        """Whether a message of that group at that offset belongs to this intent."""
        is_ours = key not in self.excluded if self.key is None else key == self.key
        return is_ours and self.first <= offset <= self.last

    def stand(self, *, old: bool) -> None:
        """It is durable without a commit: where what it was cut from is, and every life cuts it so again."""
        self.durable, self.old = True, old
