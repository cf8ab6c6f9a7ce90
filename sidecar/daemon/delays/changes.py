"""Changes of held messages, until all later owners know them; only for the main thread.

A change is final once it is durable, and a commit that began later has proved that the partition was still owned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from sidecar.core.delays import Turn, turn_of_change
from sidecar.core.parts import Barrier
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.delay.interface import HeldStore


class _Change(NamedTuple):
    tp: TopicPartition
    number: int
    cancelled: Sequence[int]
    """Positions of cancelled messages; there is nothing to forget of others."""
    source: int | None
    """The ownership, like that of its delayed messages below."""
    delayed: int | None
    patience_ms: float
    tell: Callable[[bool], None]


class HeldChanges:
    """The changes that are not final yet.

    Args:
        when_durable: Calls something once all changes so far are durable.
    """

    def __init__(
        self, pipeline: Pipeline, store: HeldStore, when_durable: Callable[[Callable[[], None]], None]
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._when_durable = when_durable
        self._proving: dict[Barrier, list[_Change]] = {}
        """Durable changes by the commit that they wait for; those of one barrier are of one ownership."""
        self._now_ms = 0.0

    def made(
        self,
        tp: TopicPartition,
        number: int,
        cancelled: Sequence[int],
        tell: Callable[[bool], None] = lambda _: None,
        patience_ms: float = 0.0,
    ) -> None:
        """Record a change of an owned partition.

        Args:
            number: The store's number of the partition.
            cancelled: Positions of the messages that were cancelled.
            tell: Called once the change is final; with False if the ownership ended before.
            patience_ms: Time that the commit may wait for more.
        """
        epoch = self._pipeline.epoch
        change = _Change(tp, number, cancelled, epoch(tp), epoch(tp.store), patience_ms, tell)
        self._when_durable(partial(self._durable, change))

    def tend(self, now_ms: float) -> None:
        self._now_ms = now_ms
        for barrier, changes in list(self._proving.items()):
            is_owned = self._pipeline.epoch(changes[0].tp) == changes[0].source
            turn = turn_of_change(is_owned=is_owned, is_proved=barrier.durable)
            if turn is not Turn.WAIT:
                del self._proving[barrier]
                for change in changes:
                    self._end(change, is_final=turn is Turn.GO_ON)

    def _durable(self, change: _Change) -> None:
        """Handle a durable change; its messages are durable too, and count as delayed since then."""
        if change.cancelled and self._pipeline.epoch(change.tp.store) == change.delayed:
            self._pipeline.count_cancelled(change.tp.store, len(change.cancelled))
        if self._pipeline.epoch(change.tp) == change.source:
            barrier = self._pipeline.prove(change.tp, self._now_ms + change.patience_ms)
            self._proving.setdefault(barrier, []).append(change)
        else:
            change.tell(False)  # noqa: FBT003

    def _end(self, change: _Change, *, is_final: bool) -> None:
        if is_final:
            self._store.forget_cancelled(change.number, change.cancelled)
        change.tell(is_final)
