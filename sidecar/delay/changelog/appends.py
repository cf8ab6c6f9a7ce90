"""What owners append to their changelogs, and what of it is acknowledged. Knows no message."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, Changelog, Entry
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.disk.blocks import POSITION_MAX
from sidecar.errors import StateError

SYNC_PATIENCE_S = 5.0
"""Longest time that `sync` waits for the broker; a rebalance waits for it."""
ENTRY_BYTES = 100
"""Memory of an entry on the way, beyond its key and value."""
REMOVED_AT_ONCE = 1_000


class Appends:
    """Appends entries of owned partitions, and counts what is on the way. For the main thread.

    Args:
        changelog: Takes the entries.
    """

    def __init__(self, changelog: Changelog) -> None:
        self._changelog = changelog
        self.changes = 0
        """Number of calls so far that appended something."""
        self.entries = 0
        """Number of entries since a user set it to 0."""
        self._waiting: dict[int, tuple[int | None, int, Owned]] = {}
        """Calls that are not acknowledged: lowest position, bytes, and the partition."""
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
        """The lowest position of what is not acknowledged; above all positions if there is none."""
        return min((lowest for lowest, *_ in self._waiting.values() if lowest is not None), default=POSITION_MAX + 1)

    def append(
        self,
        owned: Owned,
        entries: Sequence[Entry],
        then: Callable[[int], None] | None = None,
        lowest: int | None = None,
    ) -> None:
        """Append entries.

        Args:
            owned: The partition.
            entries: At least one.
            then: Gets the offset of the last one once all are acknowledged.
            lowest: The lowest position of the messages among them.
        """
        self.changes += 1
        change, count = self.changes, len(entries)
        nbytes = sum(ENTRY_BYTES + len(entry.key) + len(entry.value or b"") for entry in entries)
        self._waiting[change] = lowest, nbytes, owned
        self.waiting_bytes += nbytes
        owned.behind += count
        self.entries += count

        def done(offset: int) -> None:
            if change not in self._waiting:  # the partition was left
                return
            if offset == LOST:  # it waits until the partition is left: nothing may take it for durable
                self.lost[owned.tp] = owned
                return
            self.waiting_bytes -= self._waiting.pop(change)[1]
            owned.acknowledged(count, offset)
            if then is not None:
                then(offset)

        self._changelog.append(owned.tp, entries, done)

    def leave(self, owned: Owned) -> None:
        """Nothing waits any more for what was appended to a partition."""
        self.lost.pop(owned.tp, None)
        for change in [change for change, waiting in self._waiting.items() if waiting[2] is owned]:
            self.waiting_bytes -= self._waiting.pop(change)[1]

    def remove(self, owned: Owned, keys: Sequence[bytes]) -> None:
        """Append records that say that these keys are not needed any more."""
        for first in range(0, len(keys), REMOVED_AT_ONCE):
            self.append(owned, [Entry(key, None) for key in keys[first : first + REMOVED_AT_ONCE]])

    def sync(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            StateError: It takes too long.
        """
        until_s = time.monotonic() + SYNC_PATIENCE_S
        while any(owned.tp not in self.lost for *_, owned in self._waiting.values()) and not self._changelog.broken:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise StateError(f"the broker has not acknowledged {self.waiting_bytes} bytes of delayed messages")
            self._changelog.serve(left_s)
        if self._changelog.broken:
            raise StateError(self._changelog.broken)
        if self._waiting:
            raise StateError("another process has claimed delayed messages that are not stored yet")
