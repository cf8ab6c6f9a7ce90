"""Commits of a leased source: rows for the state file, written on another thread, identities of settled messages too.

A broker that was killed hands over again messages acknowledged just before; these are duplicates.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.state.interface import ProgressKey, State

GENERATION_MAX = 300_000
"""Limit of identities in a generation; there are two, of up to 100 bytes each in memory."""
GENERATION_S = 900.0
"""A broker whose clock is set back by ten minutes redelivers that much later messages whose end it does not know."""
CHUNK_MAX = 1_000
"""Identities of a row: the last row is written again until it is full."""
KIND = "settled"
IDENTITY_BYTES = 16


class SettledIdentities:
    """The window. Adding returns rows for `State.save_progress`; acknowledgements must wait until these are written."""

    def __init__(self, rows: Mapping[ProgressKey, str], now_s: float) -> None:
        self._younger: set[bytes] = set()
        self._older: set[bytes] = set()
        self._older_rows = sorted(key.number for key in rows if key.label == KIND)
        for number in self._older_rows:
            self._older.update(_unpacked(rows[_row(number)]))
        self._rows: list[int] = []
        self._chunk: list[bytes] = []
        self._next = self._older_rows[-1] + 1 if self._older_rows else 0
        self._begun_s = now_s

    def __contains__(self, identity: bytes) -> bool:
        return identity in self._younger or identity in self._older

    def is_younger(self, identity: bytes) -> bool:
        """Whether it was settled in the present generation, so by this process."""
        return identity in self._younger

    def add_identities(self, identities: Iterable[bytes], now_s: float) -> dict[ProgressKey, str]:
        """Remember these; return the rows that change."""
        changed: dict[ProgressKey, str] = {}
        left = list(identities)
        self._younger.update(left)
        while left:
            if len(self._chunk) == CHUNK_MAX or not self._rows:
                self._chunk = []
                self._rows.append(self._next)
                self._next += 1
            room = CHUNK_MAX - len(self._chunk)
            self._chunk += left[:room]
            del left[:room]
            changed[_row(self._rows[-1])] = _packed(self._chunk)
        if len(self._younger) >= GENERATION_MAX or now_s - self._begun_s >= GENERATION_S:
            changed |= self._rotate(now_s)
        return changed

    def _rotate(self, now_s: float) -> dict[ProgressKey, str]:
        dropped = {_row(number): "" for number in self._older_rows}
        self._older, self._older_rows = self._younger, self._rows
        self._younger, self._rows, self._chunk, self._begun_s = set(), [], [], now_s
        return dropped


def _row(number: int) -> ProgressKey:
    return ProgressKey("", number, KIND)


def _packed(identities: list[bytes]) -> str:
    return base64.b64encode(b"".join(identities)).decode()


def _unpacked(text: str) -> list[bytes]:
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:  # a damaged row: an unknown message is not a duplicate
        return []
    begins = range(0, len(raw) - IDENTITY_BYTES + 1, IDENTITY_BYTES)
    return [raw[begin : begin + IDENTITY_BYTES] for begin in begins]


EndedCommit: TypeAlias = tuple[Mapping[TopicPartition, bool], StateError | None, float]
"""Whether each partition was the source's to commit, why nothing was written (the next commit does it), and seconds."""


class LeasedCommits:
    """Writes the state file."""

    settled: SettledIdentities
    """Recently settled messages; from `load` on."""

    def __init__(self, state: State, group: str, disk: Executor, clock: Callable[[], float]) -> None:
        self._state = state
        self._group = group
        self._disk = disk
        self._clock = clock
        self._unsaved: dict[ProgressKey, str] = {}
        self._pending: tuple[Mapping[TopicPartition, bool], Future[None], float] | None = None
        """The results of a commit, its write, and its beginning."""

    def load(self) -> Mapping[ProgressKey, str]:
        self._state.bind("", self._group)
        rows = self._state.load_progress()
        self.settled = SettledIdentities(rows, self._clock())
        return rows

    def change(self, rows: Mapping[ProgressKey, str]) -> None:
        """Have the next commit write these rows; an empty text removes one."""
        self._unsaved |= rows

    def settle(self, identities: Iterable[bytes]) -> None:
        self._unsaved |= self.settled.add_identities(identities, self._clock())

    def begin_commit(self, results: Mapping[TopicPartition, bool]) -> None:
        saved = self._disk.submit(self._state.save_progress, dict(self._unsaved))
        self._pending = results, saved, self._clock()

    def ended(self, *, wait: bool = False) -> EndedCommit | None:
        """The commit that was begun, returned once after it has ended; with `wait`, waits for that."""
        if self._pending is None or not (wait or self._pending[1].done()):
            return None
        (results, saved, begun_s), self._pending = self._pending, None
        error = saved.exception()
        if error is not None and not isinstance(error, StateError):
            raise error
        if error is None:
            self._unsaved.clear()
        return results, error, self._clock() - begun_s

    def close(self) -> None:
        self._disk.shutdown()
