"""Which messages of a range a query gets: tags, then ids, by the daemon's own rules. Reads no broker and no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from sidecar.config.tags import Dedup, Tags
from sidecar.core.books import Books
from sidecar.core.messages.fields import Raw
from sidecar.core.messages.ids import OddIds, id_reader
from sidecar.core.messages.tags import UNTAGGED
from sidecar.core.records import Columns, Message, TopicPartition
from sidecar.core.windows.dedup import RotatingSet


@dataclass(slots=True)
class Kept:
    """Messages that the query gets."""

    messages: Sequence[Message]
    raws: Sequence[Raw]


class Sieve:
    """Takes the messages of one partition, in order."""

    def __init__(self, tags: Tags, dedup: Dedup, columns: Columns) -> None:
        self.filter = tags.filter()
        self.groups: Mapping[Raw, str | None] = self.filter.groups
        """The group of each message, by its raw tags."""
        self._tags = tags.field.reader(columns) if tags.field else None
        self._ids = id_reader(dedup.field, dedup.as_, columns) if dedup.field else None
        self.odd_ids = OddIds(dedup.field, dedup.as_, columns) if dedup.field else None
        """Counts ids that cannot be compared."""
        self.window = RotatingSet(dedup.capacity) if dedup.field else None
        """The ids of the messages so far; None if positions are the ids: a range has each once."""
        self.books = Books()
        """What became of the messages so far; those that are kept are in flight."""
        self.masked = 0
        """How many messages the mask refused."""
        self._wants_all = self.groups[None] == UNTAGGED and tags.subscribe.strip() == "*" and not tags.exclude

    @property
    def tags_refused(self) -> dict[str, int]:
        """How many messages were filtered, by what refused their tags."""
        return {"mask": self.masked, "look": self.books.filtered - self.masked}

    def take(self, tp: TopicPartition, messages: Sequence[Message]) -> Kept:
        """Those that are wanted and new; their ids are known from now on."""
        count = len(messages)
        raws: Sequence[Raw] = self._tags(tp, messages) if self._tags else [None] * count
        if self._tags and not self._wants_all:
            groups, refused = self.groups, self.filter.refused
            others = refused.others
            wanted = [groups[raw] is not None for raw in raws]
            if not all(wanted):
                self.masked += sum(map(refused.__contains__, raws)) + refused.others - others
                messages, raws = list(compress(messages, wanted)), list(compress(raws, wanted))
        filtered = count - len(messages)
        if self._ids is not None and self.window is not None and messages:
            numbers = self._ids(tp, messages)
            if self.odd_ids is not None and None in numbers:
                self.odd_ids.look(tp, [one for one, number in zip(messages, numbers, strict=True) if number is None])
            new = self.window.take(numbers)
            if not all(new):
                messages, raws = list(compress(messages, new)), list(compress(raws, new))
        self.books.read(count, count - filtered - len(messages), filtered)
        return Kept(messages, raws)
