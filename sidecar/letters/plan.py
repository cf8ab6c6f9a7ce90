"""What a replay takes: parts that an interrupted one left, and the chosen letters, cut into parts. Sends nothing."""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sidecar.core.batching import Limits
from sidecar.core.partition_state import derived_scope
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.state.beside import Chosen, Lettered, LettersBeside, Outline
from sidecar.state.replays import ReplayPart, Replays, Target

LOCK_FILE = "replay.lock"
OUTLINES = 5_000


class Replayed(NamedTuple):
    """What became of the letters."""

    delivered: int
    refused: int
    """Letters that stay, because they were refused again."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """No other replay of this folder runs meanwhile.

    Raises:
        StateError: One does, or the lock cannot be had.
    """
    path = folder / LOCK_FILE
    try:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StateError(
                    f"another replay of the dead letters in {folder} is running", hint="wait for its end, or stop it"
                ) from error
            yield
    except OSError as error:
        raise StateError(f"cannot lock {path}: {error.strerror}", hint="run this as the daemon's user") from error


class LeftOver(NamedTuple):
    """What an interrupted replay left in parts: it is sent first."""

    targets: frozenset[Target]
    ids: tuple[int, ...]
    """Ids of the letters."""


def left_over(letters: LettersBeside) -> LeftOver:
    """What an interrupted replay left.

    Raises:
        StateError: It cannot be read.
    """
    pending = Replays(letters).pending()
    return LeftOver(frozenset(part.target for part in pending), tuple(id_ for part in pending for id_ in part.letters))


class Stream(NamedTuple):
    """Parts of one partition and scope."""

    tp: TopicPartition
    scope: str
    parts: Iterator[ReplayPart]
    again: bool
    """Whether they are fixed already, and may have been sent."""


class Plan:
    """Cuts letters into parts.

    Args:
        letters: The state file.
        target: Where the parts go.
        limits: Bounds of a part.
        token: Distinguishes names of this replay from those of all others.
    """

    def __init__(self, letters: LettersBeside, target: Target, limits: Limits, token: str) -> None:
        self._letters = letters
        self._target = target
        self._limits = limits
        self._token = token

    def streams(self, chosen: Chosen) -> Iterator[Stream]:
        """What an interrupted replay left, in the order in which it was fixed, and then the chosen letters."""
        pending = Replays(self._letters).pending()
        done = {id_ for part in pending for id_ in part.letters}
        for (scope, tp), parts in groupby(pending, key=lambda part: (part.scope, part.tp)):
            yield Stream(tp, scope, iter(list(parts)), again=True)
        for each in self._letters.partitions(chosen):
            scope = derived_scope(each.scope, "replay", self._token)
            yield Stream(each.tp, scope, self._cut(chosen, each, scope, done), again=False)

    def _cut(self, chosen: Chosen, of: Lettered, scope: str, done: set[int]) -> Iterator[ReplayPart]:
        """The chosen letters of a partition in parts, by group, in the order of their offsets."""
        lanes: dict[str, list[Outline]] = {}
        sizes: Counter[str] = Counter()
        after = -1
        while page := self._letters.outlines(chosen, of, after, OUTLINES):
            after = page[-1].offset
            for letter in page:
                if letter.id in done:
                    continue
                lane, size = lanes.setdefault(letter.group, []), sizes[letter.group] + letter.size_bytes
                if lane and (len(lane) >= self._limits.max_messages or size > self._limits.max_bytes):
                    yield self._part(scope, of.tp, lane)
                    lane.clear()
                    sizes[letter.group] = 0
                lane.append(letter)
                sizes[letter.group] += letter.size_bytes + 1
        yield from (self._part(scope, of.tp, lane) for lane in lanes.values())

    def _part(self, scope: str, tp: TopicPartition, letters: Sequence[Outline]) -> ReplayPart:
        ids = tuple(letter.id for letter in letters)
        return ReplayPart(self._target, scope, tp, letters[0].group, letters[0].offset, letters[-1].offset, ids)
