"""Appends of owners to their changelogs, and the acknowledgements. Knows no message."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import LOST, Changelog, ChangelogEntry
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.partition import Write
from sidecar.delay.rows import POSITION_MAX
from sidecar.errors import StateError

SYNC_PATIENCE_S = 5.0
"""Longest time that `sync` waits for the broker; a rebalance waits for it."""
ENTRY_BYTES = 100
"""Memory of an entry on the way, beyond its key and value."""
REMOVED_AT_ONCE = 1_000


@dataclass(slots=True)
class _AppendCall:
    """A call of `append` that is on the way."""

    owned: Owned
    count: int
    key: bytes
    """Of the last entry."""
    nbytes: int
    changes: Sequence[Write]
    """Those of the local files."""
    lowest: int | None
    then: Callable[[int], None] | None

    def tell(self, offset: int) -> None:
        """Call `then`, the first time only."""
        then, self.then = self.then, None
        if then is not None:
            then(offset)


class Appends:
    """Appends entries of owned partitions, and lets what was changed enter the local files. For the main thread.

    A call is on the way until the changelog has acknowledged it and its changes are in the files.
    """

    def __init__(self, changelog: Changelog, cache: LocalCache) -> None:
        self._changelog = changelog
        self._cache = cache
        self.changes = 0
        """Number of calls so far that appended something."""
        self._waiting: dict[int, _AppendCall] = {}
        """Calls that are on the way."""
        self._acknowledged: deque[tuple[int, int]] = deque()
        """Calls that have not entered, in order, with the offsets of their last entries."""
        self.lost: dict[TopicPartition, Owned] = {}
        """Partitions that a later owner has claimed."""
        self.waiting_bytes = 0
        """Bytes on the way."""
        self.problem = ""
        """Why acknowledged changes could not enter; empty if they could."""

    @property
    def synced(self) -> int:
        """The number of calls that are no longer on the way, as are all before them."""
        return next(iter(self._waiting), self.changes + 1) - 1

    def lowest(self, owned: Owned) -> int:
        """The lowest position of a partition that is on the way; above all positions if there is none."""
        calls = self._waiting.values()
        lowest = (call.lowest for call in calls if call.owned is owned and call.lowest is not None)
        return min(lowest, default=POSITION_MAX + 1)

    def append(
        self,
        owned: Owned,
        entries: Sequence[ChangelogEntry],
        then: Callable[[int], None] | None = None,
        lowest: int | None = None,
    ) -> None:
        """Append entries, which stand for the changes of the local files that were prepared.

        Args:
            entries: At least one.
            then: Called exactly once: with the offset of the last one when all are acknowledged and in the files, or
                with `LOST` when that cannot happen any more, because another owner has claimed the partition or it was
                left.
            lowest: The lowest position of the messages among them.
        """
        self.changes += 1
        change, count = self.changes, len(entries)
        nbytes = sum(ENTRY_BYTES + len(entry.key) + len(entry.value or b"") for entry in entries)
        changes = self._cache.prepared(owned.number)
        call = _AppendCall(owned, count, entries[-1].key, nbytes, changes, lowest, then)
        self._waiting[change] = call
        self.waiting_bytes += nbytes

        def done(offset: int) -> None:
            if change not in self._waiting:  # the partition was left
                return
            if offset == LOST:  # it waits until the partition is left: nothing may take it for durable
                self.lost[owned.tp] = owned
                call.tell(LOST)
            else:
                self._acknowledged.append((change, offset))

        self._changelog.append(owned.tp, entries, done)

    def serve(self, timeout_s: float = 0.0) -> None:
        """Let acknowledged changes enter the files; wait this long at most for the first acknowledgement."""
        self._changelog.serve(timeout_s)
        self.problem = ""
        while self._acknowledged:
            change, offset = self._acknowledged[0]
            if (call := self._waiting.get(change)) is not None:
                owned = call.owned
                following = owned.following(call.count, offset)
                place = owned.place(offset, call.key) if following is not None and owned.is_clean else None
                try:
                    self._cache.enter(owned.number, call.changes, place)
                except StateError as error:
                    self.problem = str(error)
                    return
                owned.next_offset, owned.last = following, (offset, call.key)
            self._acknowledged.popleft()
            if call is not None:
                self._end(change)
                call.tell(offset)

    def note_place(self, owned: Owned) -> None:
        """Note how far the files are, though nothing enters."""
        if owned.next_offset is not None and owned.last is not None:
            with suppress(StateError):  # the next change that enters has it
                self._cache.enter(owned.number, (), owned.place(*owned.last))

    def _end(self, change: int) -> _AppendCall:
        call = self._waiting.pop(change)
        self.waiting_bytes -= call.nbytes
        return call

    def leave(self, owned: Owned) -> None:
        """Stop waiting for acknowledgements of a partition's appends."""
        self.lost.pop(owned.tp, None)
        for change in [change for change, call in self._waiting.items() if call.owned is owned]:
            self._end(change).tell(LOST)

    def remove(self, owned: Owned, keys: Sequence[bytes], below: int) -> None:
        """Append records that mark the keys of ended messages below a position as no longer needed."""
        for first in range(0, len(keys), REMOVED_AT_ONCE):
            if first + REMOVED_AT_ONCE >= len(keys):
                self._cache.forget_below(owned.number, below)
            self.append(owned, owned.tombstones(keys[first : first + REMOVED_AT_ONCE]))

    def sync(self) -> None:
        """Wait until nothing is on the way.

        Raises:
            StateError: It takes too long, or the local files cannot be written.
        """
        until_s = time.monotonic() + SYNC_PATIENCE_S
        while any(call.owned.tp not in self.lost for call in self._waiting.values()) and not self._changelog.broken:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise StateError(f"the broker has not acknowledged {self.waiting_bytes} bytes of delayed messages")
            self.serve(left_s)
            if self.problem:
                raise StateError(self.problem)
        if self._changelog.broken:
            raise StateError(self._changelog.broken)
        if self._waiting:
            raise StateError("another process has claimed delayed messages that are not stored yet")
