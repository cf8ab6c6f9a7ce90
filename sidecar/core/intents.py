"""Durable promises of which messages go out together. Values only."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import partial

from sidecar.core.batching import Buffer
from sidecar.core.claims import ClaimEnd
from sidecar.core.partition_state import NO_TRIES, Tries


@dataclass(slots=True, eq=False)
class Barrier:
    """Waits for the next successful commit, which proves that the partition is still owned."""

    durable: bool = False


@dataclass(slots=True, eq=False)
class Withheld:
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
    withheld: Withheld = field(default_factory=Withheld)
    record: int | None = None
    """The number of the parked part that it is; None if it is in the state."""

    def covers(self, key: int, offset: int) -> bool:
        """Whether a message of this group at this offset belongs to the intent."""
        is_ours = key not in self.excluded | self.parked if self.key is None else key == self.key
        return is_ours and self.first <= offset <= self.last

    def stand(self, *, old: bool) -> None:
        """Make it durable without a commit: it follows from durable data, so each owner cuts it in the same way."""
        self.durable, self.old = True, old
