"""What a partition is made of: its promises of what goes out together, and the open messages of each group."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.core.batching import Buffer
from sidecar.core.claims import Mark
from sidecar.core.partition.state import NO_TRIES, Tries, lane_key
from sidecar.core.records import Part


@dataclass(slots=True, eq=False)
class Intent:
    """A durable promise: what a group (None: every group) has from `first` to `last` goes out as one part."""

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
    ids: list[int] = field(default_factory=list)
    """Message ids of its settled rows, journalled when all of it is settled: a repeat must not be cut down by them."""
    partly: bool = False
    """Whether some of it is settled: not for a successor, to whom the intent is all or none."""
    tries: Tries = NO_TRIES
    """Of earlier owners, and of this one."""
    fresh: set[str] = field(default_factory=set)
    """Groups with a member that the window does not know: only what it knows wholly is not sent again."""
    errors: list[Mark] = field(default_factory=list)
    """Of its dead letters; the ledger is told when none of it can be sent again, since a twin may take them then."""

    def covers(self, key: int, offset: int) -> bool:
        """Whether a message of that group at that offset belongs to this intent."""
        mine = key not in self.excluded if self.key is None else key == self.key
        return mine and self.first <= offset <= self.last


@dataclass(slots=True, eq=False)
class Seal:
    """What waits for the next commit, whatever it says: it proves that the partition is still ours."""

    durable: bool = False


class Lane:
    """The open messages of one group in one partition.

    Args:
        group: The group.
        separator: The rows' separator.
    """

    __slots__ = ("buffer", "group", "key", "live")

    def __init__(self, group: str, separator: bytes) -> None:
        self.group = group
        self.key = lane_key(group)
        self.buffer = Buffer(separator)
        self.live: list[Part] = []
        """Parts not settled, by first offset."""
