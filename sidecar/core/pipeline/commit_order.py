"""Order in which a commit becomes durable: settled ids to the journal, ended claims to the ledger, then the commit.

The store of delayed messages comes before the commit: an owner elsewhere puts no message again that it settles. The ids
of these messages are settled once the store has them: they go to the journal between the two.

Events are methods, and each returns the next step; the shell performs it and reports how it ended. One step is under
way at a time. Ids and marks of a failed step are kept for the next commit, which waits until they are durable.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sidecar.core.claims import ClaimEnd
from sidecar.core.effects import CommitItem
from sidecar.core.records import TopicPartition

SEGMENT_BYTES = 200
"""Memory of a segment that waits for the journal, without its ids."""


class SettledIds(NamedTuple):
    """Message ids that a commit settles."""

    tp: TopicPartition
    scope: str
    """Scope of the ownership that settled them."""
    generation: int
    ids: array[int]


@dataclass(frozen=True, slots=True)
class Journal:
    """Write these ids to the journal, all or none."""

    segments: tuple[SettledIds, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Write these ends of claims to the ledger, all or none."""

    marks: tuple[ClaimEnd, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Write these states of delayed messages to their store, all or none, with all puts so far."""

    items: list[CommitItem]
    """May be empty."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Commit these states: everything that they settle is durable. The order expects no report of its end."""

    items: list[CommitItem]
    kept: tuple[TopicPartition, ...] = ()
    """Delayed messages whose states are durable already; there may be no others."""
    bound: tuple[TopicPartition, ...] = ()
    """Entries of `kept` whose store owners share: their states count only if the source's state is committed."""

    def ended(self, results: Mapping[TopicPartition, bool]) -> Mapping[TopicPartition, bool]:
        """The results of all states, given those of `items`."""
        kept = {tp: tp not in self.bound or results.get(tp.source, False) for tp in self.kept}
        return {**results, **kept}


@dataclass(frozen=True, slots=True)
class Refuse:
    """Treat the commit of these partitions as failed: they must be committed again."""

    tps: list[TopicPartition]


Step: TypeAlias = Journal | Settle | Keep | Publish | Refuse


class OrderError(Exception):
    """An impossible event: a commit begun while a step is under way, or the end of a step while none is."""


class CommitOrder:
    """Steps of consecutive commits."""

    def __init__(self) -> None:
        self._ids: list[SettledIds] = []
        self._marks: list[ClaimEnd] = []
        self._items: list[CommitItem] | None = None
        """Items of the commit that waits for the step under way; None if another commit is to overtake it."""
        self._step: Journal | Settle | Keep | None = None
        self._is_kept = False
        """Whether the store has all that the waiting commit needs."""
        self.unwritten_bytes = 0
        """Memory of the ids that are not durable yet."""

    @property
    def busy(self) -> bool:
        """Whether a step is under way: `begin_commit` must wait for its end."""
        return self._step is not None

    def begin_commit(self, items: list[CommitItem]) -> Step:
        """Begin a commit; return its first step.

        Raises:
            OrderError: A step is under way: it is not known yet whether its entries are durable.
        """
        if self._step is not None:
            raise OrderError(f"a commit begins while {self._step} is under way")
        for item in items:
            if item.ids is not None:
                self._settle(SettledIds(item.tp, item.scope, item.generation, item.ids))
            self._marks += item.marks
        self._items, self._is_kept = items, False
        return self._next(items)

    def _settle(self, ids: SettledIds) -> None:
        self._ids.append(ids)
        self.unwritten_bytes += _bytes_of(ids)

    def ended(self, *, ok: bool, held: Iterable[SettledIds] = ()) -> Step | None:
        """Handle the end of the step under way; return the next step, None if another commit is to begin instead.

        Args:
            ok: Whether all that the step writes is durable.
            held: Ids of messages that the store of delayed messages has by now.

        Raises:
            OrderError: No step is under way.
        """
        step, self._step = self._step, None
        if step is None:
            raise OrderError("a step ended, and none was under way")
        if ok:
            self._written(step)
        for ids in held:
            self._settle(ids)
        if self._items is None:
            return None
        if not ok:
            return self._refused(self._items)
        self._is_kept |= isinstance(step, Keep)
        return self._next(self._items)

    def _written(self, step: Journal | Settle | Keep) -> None:
        if isinstance(step, Settle):
            del self._marks[: len(step.marks)]  # only `begin_commit` adds, and not while a step is under way
        elif isinstance(step, Journal):
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
        delayed = [item for item in items if item.tp.delayed]
        if not self._is_kept and (delayed or any(item.puts for item in items)):
            self._step = Keep(delayed)
            return self._step
        return self._publish(items)

    def _publish(self, items: list[CommitItem]) -> Step:
        self._items = None
        if not items:
            return Refuse([])
        kept = tuple(item.tp for item in items if item.tp.delayed)
        shared = {item.tp for item in items if item.state.stores.epoch}
        bound = tuple(tp for tp in kept if tp.source in shared)
        return Publish([item for item in items if not item.tp.delayed], kept, bound)

    def _refused(self, items: list[CommitItem]) -> Refuse:
        self._items = None
        return Refuse([item.tp for item in items])

    def overtake(self) -> None:
        """The commit under way is not to be made: its state would come after that of a newer one."""
        self._items = None

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are given up. They may come back with what another owner committed: never name them."""
        if self._items is not None:
            self._items = [item for item in self._items if item.tp not in tps]

    def forget_ids(self, tp: TopicPartition) -> None:
        """Drop the ids of a partition that starts over: they no longer identify duplicates."""
        self._drop([segment for segment in self._ids if segment.tp == tp])


def _bytes_of(segment: SettledIds) -> int:
    return SEGMENT_BYTES + segment.ids.itemsize * len(segment.ids)
