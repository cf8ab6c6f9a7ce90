"""An owned partition's entries in its changelog, and which of them are no longer needed. Appends nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.notes import NotedPlace
from sidecar.delay.changelog.reach import PutReach
from sidecar.delay.changelog.records import KeptState, RecordLineage, message_key
from sidecar.delay.changelog.takeover import TakenOver
from sidecar.delay.rows import Held


@dataclass(slots=True)
class Owned:
    """An owned partition."""

    name: bytes
    number: int
    """The local files' number of it."""
    tp: TopicPartition
    lineage: RecordLineage
    store: int
    """The id of the changelog."""
    epoch: int
    kept: KeptState | None
    """The state that was kept last."""
    garbage: list[bytes]
    """Keys that are not needed once a commit has named the epoch."""
    is_named: bool = False
    """Whether a commit has named the epoch."""
    is_proved: bool = False
    """Whether the changelog records this, too: a reset removes the commit."""
    is_doubted: bool = False
    """Whether it records this behind a record of another owner."""
    ended_below: int = 0
    """The watermark of the last commit: messages below it are no longer needed."""
    reach: PutReach | None = None
    """How far the source was read, if the changelog fences."""
    moved: dict[int, list[bytes]] = field(default_factory=dict)
    """All keys of messages that are at another position than the changelog's, by the position; the message's first."""
    cancelled: dict[int, list[bytes]] = field(default_factory=dict)
    """All keys of messages that were cancelled, by position, until all later owners know."""
    moving: int = 0
    """Number of messages that are being moved, and not acknowledged."""
    next_offset: int | None = None
    """The offset of the next entry that enters; None if another owner has appended since the claim."""
    last: tuple[int, bytes] | None = None
    """Offset and key of the last entry that entered."""
    is_clean: bool = False
    """Whether all is removed that was not needed at the takeover: a start from a note would not read and remove it."""
    withheld: list[list[bytes]] = field(default_factory=list)
    """All keys of changed messages that are no longer needed, and not removed."""
    _taken: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Position and key of messages that were taken, and not removed from the changelog."""

    @classmethod
    def of(cls, name: bytes, number: int, tp: TopicPartition, lineage: RecordLineage, found: TakenOver) -> Self:
        """A partition that was just taken over."""
        lineage = lineage if found.reach is None else found.reach.lineage
        owned = cls(name, number, tp, lineage, found.store, found.epoch, found.kept, list(found.garbage))
        owned.next_offset, owned.reach = found.next_offset, found.reach
        return owned

    @property
    def may_remove(self) -> bool:
        """Whether what it removes is void, or ended, for all later owners; not before a commit: it may be replaced."""
        return self.is_proved or (self.is_named and self.reach is not None)

    def tombstones(self, keys: Iterable[bytes]) -> list[ChangelogEntry]:
        """Entries that remove keys."""
        assert self.may_remove
        return [ChangelogEntry(key, None) for key in keys]

    def put(self, origins: Iterable[int]) -> list[ChangelogEntry]:
        """Note that messages are put; return the entries to append with them."""
        if self.reach is None:
            return []
        self.reach = self.reach._replace(seen=max(self.reach.seen, *(origin + 1 for origin in origins)))
        return [self.reach.entry()]

    def committed(self, watermark: int) -> list[ChangelogEntry]:
        """Note that the source's commit has this offset; return the entries to append."""
        if self.reach is None or self.reach.committed >= min(watermark, self.reach.seen):
            return []
        self.reach = self.reach._replace(committed=watermark)
        return [self.reach.entry()] if self.is_named else []

    def following(self, count: int, offset: int) -> int | None:
        """The next offset behind `count` records, of which the last one has this offset."""
        return offset + 1 if self.next_offset is not None and offset + 1 == self.next_offset + count else None

    def place(self, offset: int, key: bytes) -> bytes:
        """The byte form of a place up to which it has entered."""
        return NotedPlace(self.store, self.lineage, self.epoch, offset, key).encoded()

    def keys(self, held: Held) -> list[bytes]:
        """All keys of a message: its own first, without which the others say nothing."""
        return self.moved.get(held.position) or [message_key(held.position, held.epoch, held.origin)]

    def note_taken(self, messages: Iterable[Held]) -> None:
        """Note that messages were taken."""
        self._taken.extend((each.position, message_key(each.position, each.epoch, each.origin)) for each in messages)

    def rewind(self) -> None:
        """Prepare for all messages above the watermark to be taken again."""
        watermark = 0 if self.kept is None else self.kept.watermark
        self._taken = deque(each for each in self._taken if each[0] < watermark)

    def ended(self, watermark: int) -> list[bytes]:
        """Remove and return the keys of messages below a committed watermark; those of moved ones are withheld."""
        ended: list[bytes] = []
        while self._taken and self._taken[0][0] < watermark:
            position, key = self._taken.popleft()
            if position in self.moved:
                self.withheld.append(self.moved.pop(position))
            else:
                ended.append(key)
        return ended
