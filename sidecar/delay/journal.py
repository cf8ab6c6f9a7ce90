"""The log of a store with several partitions, and its checkpoints, as jobs of another thread. Knows no message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sidecar import files
from sidecar.delay.disk.changes import Record
from sidecar.delay.disk.snapshot import Snapshot
from sidecar.delay.disk.wal import CHECKPOINT, WAL_BYTES_MAX, Wal
from sidecar.delay.lanes import PartitionReaders
from sidecar.delay.saving import Saving

ASKED_BYTES_MAX = 4 * WAL_BYTES_MAX
"""Size of a log at which a checkpoint is written without being allowed."""


class SyncJob:
    """Work for a thread that may wait for the disk.

    Args:
        saving: Its files are made durable next.
        checkpoint: Where the checkpoint is written, if it is ready.
        next_log: Folder and number of a log that is begun, if one is needed.
    """

    def __init__(
        self, logs: Sequence[Wal], saving: Saving | None, checkpoint: Path | None, next_log: tuple[Path, int] | None
    ) -> None:
        self.logs = list(logs)
        self.paths = list(saving.paths) if saving is not None else []
        self.is_logged = self.is_filed = self.is_saved = False
        """Which steps are done: the logs, the files, the checkpoint."""
        self.log: Wal | None = None
        """The log that was begun."""
        self.error: OSError | None = None
        self._saving, self._checkpoint, self._next_log = saving, checkpoint, next_log
        self._guard = threading.Lock()
        self._is_dropped = False

    def run(self) -> None:
        """Do the work; on any thread.

        Raises:
            OSError: It failed.
        """
        with self._guard:
            if self._is_dropped:
                return
            try:
                self._run()
            except OSError as error:
                self.error = error
                raise

    def _run(self) -> None:
        for log in self.logs:
            log.sync()
        self.is_logged = True
        for old in self.logs[:-1]:
            old.close()  # here, because to close a file that was removed takes long
        for path in self.paths:
            files.sync(path)
        if self._checkpoint is not None:
            files.sync(self._checkpoint.parent)
        self.is_filed = True
        if self._checkpoint is not None and self._saving is not None:
            files.put(self._checkpoint, self._saving.snapshot.encoded())
            self.is_saved = True
            self._saving.remove()
        if self._next_log is not None:
            self.log = Wal(*self._next_log)

    def drop(self) -> None:
        """Turn the job into a no-op; wait while it is running."""
        with self._guard:
            self._is_dropped = True


class JournalProgress:
    """Which changes are durable."""

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes."""
        self.synced = 0
        """Number of changes that are durable."""
        self._lowest: int | None = None
        """Lowest position that was put since `begin_sync`."""
        self._begun: tuple[int, int | None] = 0, None
        """Number of changes at the last `begin_sync`, and the lowest position of those that are not durable."""

    def note(self, position: int | None = None) -> None:
        """Count a change, with its lowest position if it put messages."""
        self.changes += 1
        self._lowest = _lower(self._lowest, position)

    @property
    def unsynced(self) -> int | None:
        """The lowest position that was put and is not durable."""
        return _lower(self._lowest, self._begun[1])

    def begin_sync(self) -> None:
        """Note that all changes are being made durable."""
        self._begun, self._lowest = (self.changes, self.unsynced), None

    def ended_sync(self) -> None:
        """Note that the changes before the last `begin_sync` are durable."""
        self.synced, self._begun = self._begun[0], (self._begun[0], None)


def _lower(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


class StoreJournal:
    """The changes of a store, until they are durable.

    A log that is full is followed by another one, which a job begins. From then on a checkpoint is prepared: what the
    store knew at that moment, and the sizes of the files once they have all that the old log has. They may have
    messages of the new log, too: that log is durable before the checkpoint is written.

    Args:
        snapshot: Makes a snapshot for a log with this number.

    Raises:
        OSError: The log cannot be begun.
    """

    def __init__(self, folder: Path, number: int, lanes: PartitionReaders, snapshot: Callable[[int], Snapshot]) -> None:
        self._folder, self._number, self._lanes, self._snapshot = folder, number, lanes, snapshot
        self.progress = JournalProgress()
        self.record = Record()
        """Changes that are not in the log yet."""
        self._log = Wal(folder, number)
        self._logs = [self._log]
        """The logs that were written since they were made durable."""
        self._next: Wal | None = None
        """A log for the time when this one is full."""
        self._saving: Saving | None = None
        self._job: SyncJob | None = None
        self.broken: OSError | None = None
        """Why changes can no longer be made durable."""
        self.bytes_max: int | None = None
        """Size at which a log is full; None for `WAL_BYTES_MAX`."""
        self._rewrites = True
        """Whether checkpoints free the space of ended messages."""
        self.asks = False
        """Whether later checkpoints wait until they are allowed, or the log is `ASKED_BYTES_MAX` long."""

    @property
    def end(self) -> tuple[int, int]:
        """Number of the log that is written, and its bytes."""
        return self._number_of_log, self._log.end

    @property
    def asked(self) -> Saving | None:
        """A checkpoint that waits until it is allowed: all messages put before its log began are in files."""
        saving = self._saving
        return saving if saving is not None and saving.is_flushed and not saving.is_allowed else None

    @property
    def in_place(self) -> bool:
        """Whether the log is still at its path."""
        return self._log.in_place

    @property
    def nbytes(self) -> int:
        """Bytes of the logs."""
        return self._log.end + (self._saving.old_bytes if self._saving is not None else 0)

    @property
    def _number_of_log(self) -> int:
        return self._log.number

    @property
    def has_work(self) -> bool:
        """Whether `begin_sync` would continue or begin a checkpoint though nothing was changed."""
        if self._saving is not None:
            return self.asked is None
        return self._next is not None or self._is_full()

    def write(self) -> None:
        """Write the changes that are not in the log yet.

        Raises:
            OSError: The disk cannot be written; the next call tries again.
        """
        self._check()
        if self.record:
            self._log.write(self.record.encoded())
            self.record = Record()

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def step(self) -> None:
        """Do a little for a checkpoint that is prepared.

        Raises:
            OSError: The disk cannot be written; the next call tries again.
        """
        if self._saving is not None:
            self._saving.step(self._lanes)

    def begin_sync(self, *, ends: bool = False) -> SyncJob | None:
        """Return a job that makes all changes durable; None if there is nothing to do, or a job was not ended.

        Args:
            ends: Whether a log that is not full is followed by another one, too.

        Raises:
            OSError: The disk cannot be written, and the next call tries again; or a log or file could not be made
                durable, and each call fails.
        """
        self._check()
        if self._job is not None:
            return None
        self.write()
        if self._next is not None and self._saving is None:
            self._switch(self._next)
        self.step()
        next_log = None
        if self._next is None and self._saving is None and (ends or self._is_full()):
            self._number += 1
            next_log = self._folder, self._number
        if self.progress.changes == self.progress.synced and self._saving is None and next_log is None:
            return None
        is_allowed = self._saving is not None and (self._saving.is_allowed or self._log.end > ASKED_BYTES_MAX)
        is_ready = self._saving is not None and self._saving.is_flushed and is_allowed
        self._job = SyncJob(self._logs, self._saving, self._folder / CHECKPOINT if is_ready else None, next_log)
        self.progress.begin_sync()
        return self._job

    def _is_full(self) -> bool:
        if self._log.end > (self.bytes_max or WAL_BYTES_MAX) or self._lanes.over():
            return True
        return self._lanes.is_wasteful

    def _switch(self, log: Wal) -> None:
        old, self._log, self._next = self._log, log, None
        self._logs.append(log)
        self.save([old.path], old.end)

    def save(self, old: Sequence[Path], old_bytes: int) -> None:
        """Prepare a checkpoint; all that the store knows is in logs, and in none of the present one.

        Args:
            old: The logs that are removed afterwards.
        """
        lanes = self._lanes
        over = [lanes.drop(hour) for hour in lanes.over()]
        removed, nbytes = [*old, *(file.path for file in over)], old_bytes + sum(file.size for file in over)
        snapshot = self._snapshot(self._number_of_log)
        wasteful = lanes.wasteful() if self._rewrites else []
        self._saving = Saving(snapshot, lanes.unsaved(), wasteful, removed, nbytes)
        self._saving.is_allowed = not self.asks

    def ended(self, job: SyncJob, error: OSError | None) -> None:
        """Count a job's work; a job that `sync` did instead is ignored."""
        if job is not self._job:
            return
        self._job = None
        if job.is_logged:
            self.progress.ended_sync()
            self._logs = [log for log in self._logs if log is self._log or log not in job.logs]
        if job.is_filed and self._saving is not None:
            del self._saving.paths[: len(job.paths)]
        elif error is not None and not job.is_filed:
            self.broken = error
        if job.log is not None:
            self._next = job.log
        if job.is_saved and self._saving is not None:
            self._saving = None

    def sync(self) -> None:
        """Make all changes durable, here and now.

        Raises:
            OSError: See `begin_sync`.
        """
        if self._job is not None:
            self._job.drop()
            self.ended(self._job, self._job.error)
        self._do(self.begin_sync())

    def _do(self, job: SyncJob | None) -> None:
        if job is None:
            return
        try:
            job.run()
        except OSError as error:
            self.ended(job, error)
            raise
        self.ended(job, None)

    def finish(self) -> None:
        """Make all changes durable, and leave nothing to repeat. No file is rewritten: a start or a stop waits for it.

        Raises:
            OSError: See `begin_sync`.
        """
        self._rewrites = False
        if self._saving is not None:
            self._saving.hurry()
        self.sync()
        while self._saving is not None or self._log.end:
            self._do(self.begin_sync(ends=True))
        self._rewrites = True

    def close(self) -> None:
        """Close the logs."""
        for log in [*self._logs, self._next]:
            if log is not None:
                log.close()
