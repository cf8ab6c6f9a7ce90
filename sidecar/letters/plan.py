"""The letters of a replay: parts of an interrupted replay, and the chosen letters, cut into parts. Sends nothing."""

from __future__ import annotations

import fcntl
import os
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sidecar.core.batching import Limits
from sidecar.core.partition_state import derived_scope
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.state.beside import Chosen, Lettered, LettersBeside, Outline
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import STATE, ReplayPart, Replays, Target

LOCK_FILE = "replay.lock"
OUTLINES = 5_000


class Replayed(NamedTuple):
    """The outcomes of the replayed letters."""

    delivered: int
    refused: int
    """Letters that stay, because they were refused again."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Exclude other replays of this folder.

    Raises:
        StateError: Another replay runs, or the lock cannot be acquired.
    """
    path = folder / LOCK_FILE
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StateError(
                    f"another replay of the dead letters in {folder} is running", hint="wait for its end, or stop it"
                ) from error
            yield
    except OSError as error:
        raise StateError(f"cannot lock {path}: {error.strerror}", hint="run this as the daemon's user") from error


class Stream(NamedTuple):
    """Parts of one partition and scope."""

    tp: TopicPartition
    scope: str
    parts: Iterator[ReplayPart]
    again: bool
    """Whether the parts are fixed already, and may have been sent."""


class ReplayPlan(Replays, ABC):
    """Letters in parts, and the record of these parts."""

    @abstractmethod
    def streams(self, chosen: Chosen) -> Iterator[Stream]:
        """The parts of an interrupted replay, in the order in which they were fixed, and then the chosen letters."""

    @abstractmethod
    def load(self, part: ReplayPart) -> list[StoredLetter]:
        """The letters of a part that still exist, by offset."""


class ReplayCuts:
    """Letters of one partition that are being cut into parts, by group."""

    def __init__(self, source: str, target: Target, limits: Limits) -> None:
        self._source = source
        self._target = target
        self._limits = limits

    def cut(self, scope: str, tp: TopicPartition, letters: Iterable[Outline]) -> Iterator[ReplayPart]:
        """Cut letters, given by ascending offset, into parts."""
        lanes: dict[str, list[Outline]] = {}
        sizes: Counter[str] = Counter()
        for letter in letters:
            lane, size = lanes.setdefault(letter.group, []), sizes[letter.group] + letter.size_bytes
            if lane and (len(lane) >= self._limits.max_messages or size > self._limits.max_bytes):
                yield self._part(scope, tp, lane)
                lane.clear()
                sizes[letter.group] = 0
            lane.append(letter)
            sizes[letter.group] += letter.size_bytes + 1
        yield from (self._part(scope, tp, lane) for lane in lanes.values())

    def _part(self, scope: str, tp: TopicPartition, letters: Sequence[Outline]) -> ReplayPart:
        ids = tuple(letter.id for letter in letters)
        first, last = letters[0], letters[-1]
        return ReplayPart(self._target, scope, tp, first.group, first.offset, last.offset, ids, self._source)


class StatePlan(ReplayPlan):
    """The letters in the state folder, which are deleted one by one."""

    def __init__(self, letters: LettersBeside, target: Target, limits: Limits) -> None:
        super().__init__(letters.state)
        self._file = letters
        self._lanes = ReplayCuts(STATE, target, limits)
        self._token = secrets.token_hex(8)

    def load(self, part: ReplayPart) -> list[StoredLetter]:
        return self._file.by_ids(part.letters)

    def streams(self, chosen: Chosen) -> Iterator[Stream]:
        pending = self.pending()
        done = {id_ for part in pending for id_ in part.letters}
        yield from again(pending)
        for each in self._file.partitions(chosen):
            scope = derived_scope(each.scope, "replay", self._token)
            fresh = (letter for letter in self._outlines(chosen, each) if letter.id not in done)
            yield Stream(each.tp, scope, self._lanes.cut(scope, each.tp, fresh), again=False)

    def _outlines(self, chosen: Chosen, of: Lettered) -> Iterator[Outline]:
        after = -1
        while page := self._file.outlines(chosen, of, after, OUTLINES):
            after = page[-1].offset
            yield from page


def again(pending: Sequence[ReplayPart]) -> Iterator[Stream]:
    """The parts of an interrupted replay, as streams."""
    for (scope, tp), parts in groupby(pending, key=lambda part: (part.scope, part.tp)):
        yield Stream(tp, scope, iter(list(parts)), again=True)
