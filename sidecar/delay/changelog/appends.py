"""Appends of owners to their changelogs, and the acknowledgements. Knows no message."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, Changelog, ChangelogEntry
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.rows import POSITION_MAX
from sidecar.errors import StateError

SYNC_PATIENCE_S = 5.0
"""Longest time that `sync` waits for the broker; a rebalance waits for it."""
ENTRY_BYTES = 100
"""Memory of an entry on the way, beyond its key and value."""
REMOVED_AT_ONCE = 1_000


@dataclass(slots=True)
class _AppendCall:
    """A call of `append` that is not acknowledged."""

    lowest: int | None
    nbytes: int
    owned: Owned
    then: Callable[[int], None] | None

    def tell(self, offset: int) -> None:
        """Call `then`, the first time only."""
        then, self.then = self.then, None
        if then is not None:
            then(offset)


class Appends:
    """Appends entries of owned partitions, and counts what is on the way. For the main thread."""

    def __init__(self, changelog: Changelog) -> None:
        self._changelog = changelog
        self.changes = 0
        """Number of calls so far that appended something."""
        self.entries = 0
        """Number of entries since it was last set to 0."""
        self._waiting: dict[int, _AppendCall] = {}
        """Calls that are not acknowledged."""
        self.lost: dict[TopicPartition, Owned] = {}
        """Partitions that a later owner has claimed."""
        self.waiting_bytes = 0
        """Bytes on the way."""

    @property
    def synced(self) -> int:
        """The number of calls that are acknowledged, as are all before them."""
        return next(iter(self._waiting), self.changes + 1) - 1

    @property
    def lowest(self) -> int:
        """The lowest unacknowledged position; above all positions if there is none."""
        lowest = (call.lowest for call in self._waiting.values() if call.lowest is not None)
        return min(lowest, default=POSITION_MAX + 1)

    def append(
        self,
        owned: Owned,
        entries: Sequence[ChangelogEntry],
        then: Callable[[int], None] | None = None,
        lowest: int | None = None,
    ) -> None:
        """Append entries.

        Args:
            entries: At least one.
            then: Called exactly once: with the offset of the last one when all are acknowledged, or with `LOST` when
                that cannot happen any more, because another owner has claimed the partition or it was left.
            lowest: The lowest position of the messages among them.
        """
        self.changes += 1
        change, count = self.changes, len(entries)
        nbytes = sum(ENTRY_BYTES + len(entry.key) + len(entry.value or b"") for entry in entries)
        call = self._waiting[change] = _AppendCall(lowest, nbytes, owned, then)
        self.waiting_bytes += nbytes
        owned.behind += count
        self.entries += count

        def done(offset: int) -> None:
            if change not in self._waiting:  # the partition was left
                return
            if offset == LOST:  # it waits until the partition is left: nothing may take it for durable
                self.lost[owned.tp] = owned
                call.tell(LOST)
                return
            self._end(change)
            owned.acknowledged(count, offset)
            call.tell(offset)

        self._changelog.append(owned.tp, entries, done)

    def _end(self, change: int) -> _AppendCall:
        call = self._waiting.pop(change)
        self.waiting_bytes -= call.nbytes
        return call

    def leave(self, owned: Owned) -> None:
        """Stop waiting for acknowledgements of a partition's appends."""
        self.lost.pop(owned.tp, None)
        for change in [change for change, call in self._waiting.items() if call.owned is owned]:
            self._end(change).tell(LOST)

    def remove(self, owned: Owned, keys: Sequence[bytes]) -> None:
        """Append records that mark these keys as no longer needed."""
        for first in range(0, len(keys), REMOVED_AT_ONCE):
            self.append(owned, owned.tombstones(keys[first : first + REMOVED_AT_ONCE]))

    def sync(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            StateError: It takes too long.
        """
        until_s = time.monotonic() + SYNC_PATIENCE_S
        while any(call.owned.tp not in self.lost for call in self._waiting.values()) and not self._changelog.broken:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise StateError(f"the broker has not acknowledged {self.waiting_bytes} bytes of delayed messages")
            self._changelog.serve(left_s)
        if self._changelog.broken:
            raise StateError(self._changelog.broken)
        if self._waiting:
            raise StateError("another process has claimed delayed messages that are not stored yet")
