"""What a changelog has of an owned partition, and what of it is not needed any more. Appends nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.records import Kept, Lineage, message_key
from sidecar.delay.disk.blocks import Held


@dataclass(slots=True)
class Owned:
    """An owned partition."""

    name: bytes
    tp: TopicPartition
    lineage: Lineage
    store: int
    """The id of the changelog."""
    epoch: int
    kept: Kept | None
    """The state that was kept last."""
    garbage: list[bytes]
    """Keys that are not needed once a commit has named the epoch."""
    is_named: bool = False
    """Whether a commit has named the epoch."""
    is_proved: bool = False
    """Whether the changelog tells so, too: a reset removes the commit."""
    moved: dict[int, list[bytes]] = field(default_factory=dict)
    """All keys of messages that are at another position than the changelog's, by the position; the message's first."""
    cancelled: dict[int, list[bytes]] = field(default_factory=dict)
    """All keys of messages that were cancelled, by position, until all owners to come know."""
    staying: list[list[bytes]] = field(default_factory=list)
    """All keys of messages that earlier owners cancelled, and that owners to come must know; each message's first."""
    next_offset: int | None = None
    """The offset of what is acknowledged next if nobody else has appended anything since the claim; None if one has."""
    bookmark: int = 0
    """The number of the last bookmark that was appended; 0 if there is none, or none that notes may refer to."""
    bookmark_offset: int | None = None
    """Its offset, once it is acknowledged."""
    valid: int = 0
    """Notes of bookmarks with smaller numbers are not to be believed."""
    behind: int = 0
    """Number of entries that were appended behind it."""
    withheld: list[list[bytes]] = field(default_factory=list)
    """All keys of changed messages that are not needed any more; they stay until a note has the change."""
    noted: list[list[bytes]] = field(default_factory=list)
    """Those that stay until the note that is taken now is durable."""
    _taken: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Position and key of messages that were taken, and not removed from the changelog."""

    def acknowledged(self, count: int, offset: int) -> None:
        """So many records are acknowledged, the last one at this offset."""
        if self.next_offset is not None:
            self.next_offset = offset + 1 if offset + 1 == self.next_offset + count else None

    def keys(self, held: Held) -> list[bytes]:
        """All keys of a message: its own first, without which the others say nothing."""
        return self.moved.get(held.position) or [message_key(held.position, held.epoch, held.origin)]

    def take(self, messages: Iterable[Held]) -> None:
        """Messages were taken."""
        self._taken.extend((each.position, message_key(each.position, each.epoch, each.origin)) for each in messages)

    def rewind(self) -> None:
        """All above the watermark will be taken again."""
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

    def removable(self) -> list[list[bytes]]:
        """All keys of messages that are ended or cancelled, and not removed."""
        watermark = 0 if self.kept is None else self.kept.watermark
        taken = [[key] for position, key in self._taken if position < watermark and position not in self.moved]
        return [*taken, *self.staying, *self.cancelled.values(), *self.withheld, *self.noted]
