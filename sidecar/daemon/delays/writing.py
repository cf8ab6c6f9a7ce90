"""Makes changes of a store of delayed messages durable, on another thread, and then calls back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sidecar.delay.interface import Job, StoreWrites
from sidecar.errors import StateError


class _WaitingCall(NamedTuple):
    changes: int
    """The number of changes that must be durable."""
    durable: Callable[[], None]
    failed: Callable[[], None] | None
    """Called if the store cannot be written at present; None if that only takes longer."""


class Writing:
    """The writes of a store; only for the main thread.

    Args:
        begin: Runs a job on the writer's thread; `ended` follows on the main thread.
    """

    def __init__(self, writes: StoreWrites, begin: Callable[[Job], None]) -> None:
        self._writes = writes
        self._begin = begin
        self._job: Job | None = None
        self._waiting: deque[_WaitingCall] = deque()
        self.problem = ""
        """Why changes could not be made durable last; empty if they could."""

    def when_durable(self, durable: Callable[[], None], failed: Callable[[], None] | None = None) -> None:
        """Call one of these once all changes so far are durable, or cannot be made durable at present."""
        self._waiting.append(_WaitingCall(self._writes.changes, durable, failed))

    def sync(self) -> None:
        """Begin to make changes durable, unless that is under way; call back for those that are durable.

        Raises:
            StateError: See `ended`.
        """
        self._writes.poll()
        self._check()
        is_in_place = self._tell()
        if self._job is not None:
            return
        try:
            self._job = self._writes.begin_sync()
        except StateError as error:
            self._fail(str(error))
            return
        if self._job is not None:
            self._begin(self._job)
        elif is_in_place:  # all is durable, or waits for nothing but an acknowledgement
            self.problem = ""

    def ended(self, job: Job, error: OSError | None) -> None:
        """Handle the end of a write.

        Raises:
            StateError: The last writes can no longer be made durable: the next process repeats the log.
        """
        self._job = None
        self._writes.ended_sync(job, error)
        self.problem = "" if error is None else str(error)
        self.sync()

    def _check(self) -> None:
        if self._writes.broken is not None:
            of_disk = self._writes.broken.errno is not None  # else the text has the cure
            raise StateError(
                f"delayed messages cannot be made durable: {self._writes.broken}",
                hint="check the disk of state.dir, and start again: what was written is repeated then"
                if of_disk
                else "",
            )

    def sync_now(self) -> bool:
        """Make all changes durable; return whether they are.

        Raises:
            StateError: See `ended`.
        """
        try:
            self._writes.sync()
        except StateError as error:
            self._check()
            self.problem = str(error)
            return False
        return self._tell()

    def _tell(self) -> bool:
        """Call back for durable changes; return whether the files are where the next process finds them."""
        if not self._writes.in_place:
            self._fail("the folder delay of state.dir was moved or removed: put it back")
            return False
        while self._waiting and self._waiting[0].changes <= self._writes.synced:
            self._waiting.popleft().durable()
        return True

    def _fail(self, problem: str) -> None:
        self.problem = problem
        failed = [waiting.failed for waiting in self._waiting if waiting.failed is not None]
        self._waiting = deque(waiting for waiting in self._waiting if waiting.failed is None)
        for tell in failed:
            tell()
