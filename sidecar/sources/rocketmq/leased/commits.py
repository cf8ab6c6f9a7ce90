"""Commits of a leased source: rows for the state file, written on another thread, one commit after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import NamedTuple

from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.sources.rocketmq.leased.settled import SettledIdentities
from sidecar.state.interface import ProgressKey, State


class EndedCommit(NamedTuple):
    """A commit that has ended."""

    results: Mapping[TopicPartition, bool]
    """Whether each partition was this source's to commit."""
    error: StateError | None
    """The reason for which nothing was written; the next commit has these rows too."""
    elapsed_s: float


class _SavedRows(NamedTuple):
    results: Mapping[TopicPartition, bool]
    saved: Future[None]
    begun_s: float


class LeasedCommits:
    """Writes the state file.

    Args:
        clock: Monotonic seconds.
    """

    settled: SettledIdentities
    """Messages that were settled not long ago; from `load` on."""

    def __init__(self, state: State, group: str, disk: Executor, clock: Callable[[], float]) -> None:
        self._state = state
        self._group = group
        self._disk = disk
        self._clock = clock
        self._unsaved: dict[ProgressKey, str] = {}
        self._pending: _SavedRows | None = None

    def load(self) -> Mapping[ProgressKey, str]:
        """All rows of the group."""
        self._state.bind("", self._group)
        rows = self._state.load_progress()
        self.settled = SettledIdentities(rows, self._clock())
        return rows

    def change(self, rows: Mapping[ProgressKey, str]) -> None:
        """Have the next commit write these rows; an empty text removes one."""
        self._unsaved |= rows

    def settle(self, identities: Iterable[bytes]) -> None:
        """Have the next commit write that these messages are settled."""
        self._unsaved |= self.settled.add(identities, self._clock())

    def begin(self, results: Mapping[TopicPartition, bool]) -> None:
        """Begin a commit."""
        saved = self._disk.submit(self._state.save_progress, dict(self._unsaved))
        self._pending = _SavedRows(results, saved, self._clock())

    def ended(self, *, wait: bool = False) -> EndedCommit | None:
        """The commit that was begun, returned once after it has ended; with `wait`, waits for that."""
        pending = self._pending
        if pending is None or not (wait or pending.saved.done()):
            return None
        self._pending = None
        error = pending.saved.exception()
        if error is not None and not isinstance(error, StateError):
            raise error
        if error is None:
            self._unsaved.clear()
        return EndedCommit(pending.results, error, self._clock() - pending.begun_s)

    def close(self) -> None:
        """End the thread."""
        self._disk.shutdown()
