"""Dead letters of a place, and those of a replay: parts of an interrupted one, and the chosen letters, cut into parts.

Sends nothing.
"""

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
from sidecar.state.beside import ALL, Chosen, LettersBeside, Outline, Totals
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


class LetterPlace(Replays, ABC):
    """The dead letters of one place, which a daemon may be adding to, and the record of a replay's parts."""

    source = STATE
    """The name of the place in the parts of a replay."""
    deleted_by = ""
    """For an operator: how records that nobody can delete one by one are deleted; empty if letters can be deleted."""

    def __init__(self, file: LettersBeside) -> None:
        super().__init__(file)
        self.file = file
        self._token = secrets.token_hex(8)

    @property
    def foreign(self) -> int:
        """Records read that are no dead letters."""
        return 0

    @abstractmethod
    def each(self, chosen: Chosen, after: int = 0, limit: int = ALL) -> Iterator[StoredLetter]:
        """The chosen letters with an id above `after`."""

    @abstractmethod
    def totals(self, chosen: Chosen) -> Totals: ...

    @abstractmethod
    def one(self, id_: int) -> StoredLetter | None: ...

    def among(self, chosen: Chosen, ids: tuple[int, ...]) -> int:
        """The number of these letters that are chosen."""
        both = tuple(set(chosen.ids) & set(ids)) if chosen.ids else ids
        return self.totals(chosen._replace(ids=both)).letters if both else 0

    @abstractmethod
    def streams(self, chosen: Chosen, target: Target, limits: Limits) -> Iterator[Stream]:
        """The parts of an interrupted replay, in the order in which they were fixed, and then the chosen letters."""

    @abstractmethod
    def load(self, part: ReplayPart) -> list[StoredLetter]:
        """The letters of a part that still exist, by offset."""

    def _cut(
        self, scope: str, tp: TopicPartition, letters: Iterable[Outline], target: Target, limits: Limits
    ) -> Iterator[ReplayPart]:
        """Cut letters of one partition, given by ascending offset, into parts of one group."""

        def part(of: Sequence[Outline]) -> ReplayPart:
            ids, first, last = tuple(letter.id for letter in of), of[0], of[-1]
            return ReplayPart(target, scope, tp, first.group, first.offset, last.offset, ids, self.source)

        lanes: dict[str, list[Outline]] = {}
        sizes: Counter[str] = Counter()
        for letter in letters:
            lane, size = lanes.setdefault(letter.group, []), sizes[letter.group] + letter.size_bytes
            if lane and (len(lane) >= limits.max_messages or size > limits.max_bytes):
                yield part(lane)
                lane.clear()
                sizes[letter.group] = 0
            lane.append(letter)
            sizes[letter.group] += letter.size_bytes + 1
        yield from map(part, lanes.values())


class StatePlace(LetterPlace):
    """The letters in the state folder, which are deleted one by one."""

    def each(self, chosen: Chosen, after: int = 0, limit: int = ALL) -> Iterator[StoredLetter]:
        return self.file.each(chosen, after, limit)

    def totals(self, chosen: Chosen) -> Totals:
        return self.file.totals(chosen)

    def one(self, id_: int) -> StoredLetter | None:
        return next(iter(self.file.page(Chosen(ids=(id_,)), 1)), None)

    def load(self, part: ReplayPart) -> list[StoredLetter]:
        return self.file.by_ids(part.letters)

    def streams(self, chosen: Chosen, target: Target, limits: Limits) -> Iterator[Stream]:
        pending = self.pending()
        done = {id_ for part in pending for id_ in part.letters}
        yield from again(pending)
        for of, tp in self.file.partitions(chosen):
            scope = derived_scope(of, "replay", self._token)
            fresh = (letter for letter in self._outlines(chosen, of, tp) if letter.id not in done)
            yield Stream(tp, scope, self._cut(scope, tp, fresh, target, limits), again=False)

    def _outlines(self, chosen: Chosen, scope: str, tp: TopicPartition) -> Iterator[Outline]:
        after = -1
        while page := self.file.outlines(chosen, scope, tp, after, OUTLINES):
            after = page[-1].offset
            yield from page


def again(pending: Sequence[ReplayPart]) -> Iterator[Stream]:
    """The parts of an interrupted replay, as streams."""
    for (scope, tp), parts in groupby(pending, key=lambda part: (part.scope, part.tp)):
        yield Stream(tp, scope, iter(list(parts)), again=True)
