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
    _taken: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Position and key of messages that were taken, and not removed from the changelog."""

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
        """Remove and return the keys of messages below a committed watermark."""
        ended: list[bytes] = []
        while self._taken and self._taken[0][0] < watermark:
            position, key = self._taken.popleft()
            ended += self.moved.pop(position, [key])
        return ended
