"""A changelog in memory that fences, as a database does: a later claim refuses all earlier owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, ChangelogEntry, ChangelogRecord
from sidecar.delay.rows import Held
from tests.support.model_changelog import ModelChangelog, ModelLog, held_of

Call = tuple[int, list[ChangelogEntry], Callable[[int], None] | None]
"""Entries with the epoch of their owner, and what is called once they are written."""


class ModelTable(ModelLog):
    """The records of one partition."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self.chance = chance
        self.epoch = 0
        self.dying: list[list[tuple[int, list[ChangelogEntry]]]] = []
        """The last transactions of dead processes, which may still be committed: calls with their epochs."""
        self.calls: list[list[Call]] = []
        """What living processes have on the way."""

    def write(self, epoch: int, entries: Sequence[ChangelogEntry]) -> int:
        """Append entries in one transaction; return the offset of the last one, or `LOST`."""
        if epoch != self.epoch:
            return LOST
        for entry in entries:
            self.records = [record for record in self.records if record.key != entry.key]
            if entry.value is not None:
                self.records.append(ChangelogRecord(self._end, *entry))
            self._end += 1
        return self._end - 1

    def claim(self) -> int:
        """Refuse all earlier owners; return the epoch."""
        self.arrive()
        self._end += 1
        self.epoch = self._end
        return self.epoch

    def arrive(self) -> None:
        if self.dying:
            calls = self.dying.pop(int(self._chance() * len(self.dying)))
            if self._chance() < 0.5:
                for epoch, entries in calls:
                    self.write(epoch, entries)

    def counted(self, named: int) -> list[Held]:
        """Those that stay, whatever becomes of transactions that are on the way."""
        removed = {entry.key for entry in self._on_the_way() if entry.value is None}
        return [held for record, held in self.there() if record.key not in removed]

    def on_the_way(self) -> list[Held]:
        return [held for entry in self._on_the_way() if (held := held_of(entry)) is not None]

    def _on_the_way(self) -> Iterator[ChangelogEntry]:
        for calls in self.dying:
            yield from (entry for _, entries in calls for entry in entries)
        for living in self.calls:
            yield from (entry for epoch, entries, _ in living if epoch == self.epoch for entry in entries)

    def compact(self, *, is_all: bool = False) -> None:
        pass


class ModelTables:
    """The `FencingRestorer` of one process.

    Args:
        table: The records.
    """

    def __init__(self, table: ModelTable) -> None:
        self.table = table
        self.epoch = 0
        """Of the last claim of this process."""

    def open(self, tp: TopicPartition) -> int:
        return self.table.open(tp)

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        del entries
        self.epoch = self.table.claim()
        return self.epoch - 1

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        return self.table.read(tp, end, begin)

    def find(self, tp: TopicPartition, key: bytes) -> bytes | None:
        return next((record.value for record in self.table.records if record.key == key), None)


class ModelAppender(ModelChangelog):
    """The `Changelog` of one process; each call is a transaction.

    Args:
        tables: What this process claimed.
    """

    def __init__(self, tables: ModelTables) -> None:
        super().__init__(tables.table)
        self._tables, self._chance = tables, tables.table.chance
        self._calls: list[Call] = []
        tables.table.calls.append(self._calls)

    def append(
        self, tp: TopicPartition, entries: Sequence[ChangelogEntry], done: Callable[[int], None] | None = None
    ) -> None:
        self._calls.append((self._tables.epoch, list(entries), done))

    def land(self, count: int) -> None:
        for epoch, entries, done in self._calls[:count]:
            self._landed.append((done, self._tables.table.write(epoch, entries)))
        del self._calls[:count]

    @property
    def is_idle(self) -> bool:
        return not self._calls and not self._landed

    def die(self) -> None:
        if self._calls:
            calls = self._calls[: 1 + int(self._chance() * len(self._calls))]
            self._tables.table.dying.append([(epoch, entries) for epoch, entries, _ in calls])
        self._calls.clear()
