"""Subscriptions that change while messages are held: which there are, and what may be filtered because of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sidecar.core.intake.reading import ReadingRules
from sidecar.core.messages.tag_index import TagIndex
from sidecar.core.messages.tags import TagFilter
from sidecar.delay.rows import Held

OFTEN = 0.03
PLACES = ("a", "b", "a")
"""Where tags are read: the same message has other tags under `b`."""
WANTED = ((0, 1, 2), (0, 1), (0, 1))


def reading_of(base: ReadingRules, number: int) -> ReadingRules:
    """The reading under one of the subscriptions."""
    place, wanted = PLACES[number], WANTED[number]
    filter_ = TagFilter(
        " || ".join(f"{place}{tag}" for tag in wanted), groups={f"g{tag}": f"{place}{tag}" for tag in wanted}
    )

    def tags(_: object, messages: Sequence[Any]) -> list[bytes]:
        return [b"%s%d" % (place.encode(), tag_of(message)) for message in messages]

    return replace(
        base, tags=tags, groups=filter_.groups, tag_index=TagIndex(filter_, place),
        may_want=filter_.may_want, refused=filter_.refused,
    )  # fmt: skip


def tag_of(message: Any) -> int:
    """The tag of a message, held or not."""
    return int((message.value or b"").split()[1]) if isinstance(message, Held) else message[1]


class Retagging:
    """The subscription in force, and what was read while it did not want it.

    Args:
        seed: Draws when it changes; no other draws depend on it.
        base: The reading if it never changes.
        tags: Tags by offset.
        changes: Whether it changes.
    """

    def __init__(self, seed: int, base: ReadingRules, tags: Sequence[int], *, changes: bool) -> None:
        self._r = random.Random(f"tags of {seed}")
        self._base, self._tags = base, tags
        self._changes = changes
        self.number = 0
        self.unwanted: set[int] = set()
        """Offsets of messages that were read while their tag was not wanted."""

    @property
    def reading(self) -> ReadingRules:
        """The reading in force."""
        return reading_of(self._base, self.number) if self._changes else self._base

    def is_due(self) -> bool:
        """Whether the subscription is to change now."""
        return self._changes and self._r.random() < OFTEN

    def change(self) -> ReadingRules:
        """Another subscription."""
        self.number = self._r.randrange(len(PLACES))
        return self.reading

    def read(self, offsets: Iterable[int]) -> None:
        """Messages are read, of the source or of the store."""
        if self._changes:
            self.unwanted.update(offset for offset in offsets if self._tags[offset] not in WANTED[self.number])
