"""The durability of a store with several partitions. Knows no message."""

from __future__ import annotations

from sidecar.delay.journal import StoreJournal, SyncJob
from sidecar.state.folder import StateFolder


class Writes:
    """The durability of a store: what was done is durable after a job, which any thread can run."""

    _folder: StateFolder
    _journal: StoreJournal

    @property
    def changes(self) -> int:
        """Number of changes so far: calls of `put`, `keep`, `cancel`, and new names."""
        return self._journal.progress.changes

    @property
    def synced(self) -> int:
        """Number of changes that are durable."""
        return self._journal.progress.synced

    @property
    def broken(self) -> OSError | None:
        """Why what was written last cannot be made durable any more; None if it can."""
        return self._journal.broken

    @property
    def unsynced(self) -> int | None:
        """The lowest position of a message that is not durable; `take` does not reach it."""
        return self._journal.progress.unsynced

    def poll(self) -> None:
        """Nothing: `ended_sync` tells what is durable."""

    def begin_sync(self) -> SyncJob | None:
        """What makes all changes so far durable, for a thread that may wait for the disk; `ended_sync` must follow.

        None if all of them are durable, or a job has not ended. There may be something to do for a checkpoint, too.

        Raises:
            StateError: The disk is full or broken; nothing is lost of what is in memory. After a full disk, the next
                call tries again. After an error while something was made durable, each call fails: open the store anew.
        """
        with self._folder.errors("write"):
            return self._journal.begin()

    def ended_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Count the changes before a job as durable, unless it failed with an error.

        A checkpoint that could not be written is tried again by a later job.
        """
        self._journal.ended(job, error)

    def sync(self) -> None:
        """Make all changes durable at once; a job that has not ended does nothing any more.

        Raises:
            StateError: See `begin_sync`.
        """
        with self._folder.errors("write"):
            self._journal.sync()

    def in_place(self) -> bool:
        """Whether its log is where it was made: if not, what is written there is lost."""
        return self._journal.in_place
