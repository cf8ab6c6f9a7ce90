"""What must be durable before what: settled message ids in the journal, ended claims in the ledger, then the commit.

Events are methods, and each returns the step to do next; the shell does it and reports how it ended. One step is under
way at a time. An id or a mark whose step failed is kept, and goes with the next commit, which waits for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sidecar.core.claims import Mark
from sidecar.core.effects import CommitItem
from sidecar.core.records import TopicPartition

SEGMENT_BYTES = 200
"""What ids that wait for the journal take beside themselves."""


class SettledIds(NamedTuple):
    """Message ids that a commit settles."""

    tp: TopicPartition
    scope: str
    """Of the ownership that settled them."""
    generation: int
    ids: array[int]


@dataclass(frozen=True, slots=True)
class Journal:
    """Write these ids to the journal, all or none."""

    segments: tuple[SettledIds, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Write these ends of claims to the ledger, all or none."""

    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Commit these states: everything that they settle is durable. The order asks for no end of it."""

    items: list[CommitItem]


@dataclass(frozen=True, slots=True)
class Refuse:
    """These are not committed, and are to be committed again."""

    tps: list[TopicPartition]


Step: TypeAlias = Journal | Settle | Publish | Refuse


class OrderError(Exception):
    """An event that cannot be: a commit begun while a step is under way, or the end of a step when none is."""


class CommitOrder:
    """The steps of one commit after the other."""

    def __init__(self) -> None:
        self._ids: list[SettledIds] = []
        self._marks: list[Mark] = []
        self._items: list[CommitItem] | None = None
        """Of the commit that waits for the step under way; None when another one is to overtake it."""
        self._step: Journal | Settle | None = None
        self.unwritten_bytes = 0
        """Memory of the ids that are not durable yet."""

    @property
    def busy(self) -> bool:
        """Whether a step is under way: `begin` must wait for its end."""
        return self._step is not None

    def begin(self, items: list[CommitItem]) -> Step:
        """The first step of a commit.

        Raises:
            OrderError: A step is under way: whether what it writes is durable is not known yet.
        """
        if self._step is not None:
            raise OrderError(f"a commit begins while {self._step} is under way")
        for item in items:
            if item.ids is not None:
                self._ids.append(SettledIds(item.tp, item.scope, item.generation, item.ids))
                self.unwritten_bytes += _bytes_of(self._ids[-1])
            self._marks += item.marks
        self._items = items
        return self._next(items)

    def ended(self, *, ok: bool) -> Step | None:
        """The step under way ended; returns the next one, None if another commit is to begin in place of this one.

        Raises:
            OrderError: No step is under way.
        """
        step, self._step = self._step, None
        if step is None:
            raise OrderError("a step ended, and none was under way")
        if ok:
            self._written(step)
        if self._items is None:
            return None
        return self._next(self._items) if ok else self._refused(self._items)

    def _written(self, step: Journal | Settle) -> None:
        if isinstance(step, Settle):
            del self._marks[: len(step.marks)]  # only `begin` adds, and not while a step is under way
        else:
            self._drop(step.segments)

    def _drop(self, segments: Sequence[SettledIds]) -> None:
        dropped = set(map(id, segments))
        self.unwritten_bytes -= sum(_bytes_of(segment) for segment in self._ids if id(segment) in dropped)
        self._ids = [segment for segment in self._ids if id(segment) not in dropped]

    def _next(self, items: list[CommitItem]) -> Step:
        if self._ids:
            self._step = Journal(tuple(self._ids))
            return self._step
        if self._marks:
            self._step = Settle(tuple(self._marks))
            return self._step
        self._items = None
        return Publish(items) if items else Refuse([])

    def _refused(self, items: list[CommitItem]) -> Refuse:
        self._items = None
        return Refuse([item.tp for item in items])

    def overtake(self) -> None:
        """The commit under way is not to be made: its state would come after that of a newer one."""
        self._items = None

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are given up. They may come back with what another owner committed: never name them."""
        if self._items is not None:
            self._items = [item for item in self._items if item.tp not in tps]

    def forget_ids(self, tp: TopicPartition) -> None:
        """The partition begins anew: what was settled before tells no duplicate any more."""
        self._drop([segment for segment in self._ids if segment.tp == tp])


def _bytes_of(segment: SettledIds) -> int:
    return SEGMENT_BYTES + segment.ids.itemsize * len(segment.ids)
