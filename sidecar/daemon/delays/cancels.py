"""Cancels held messages that later messages name, in steps too short to hold up the main thread.

Messages that an owner has read out stay in their part. A search ends before the core gets the report, so that the
commit of the messages that cancel waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from sidecar.core.delays import Turn, are_many, changeable_from, turn_of_search
from sidecar.core.effects import CancelHeld
from sidecar.core.pipeline.pipeline import SETTLE_DELAY_MS, Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.changes import HeldChanges
from sidecar.delay.interface import HeldStore
from sidecar.delay.rows import Held
from sidecar.errors import StateError

STEP_S = 0.01
"""Time after which the main thread does something else."""


@dataclass(slots=True)
class _Asked:
    """The cancellations requested in a partition."""

    names: dict[bytes, int]
    last: CancelHeld
    """The last request."""
    nbytes: int = 0
    """Size of the names; a name that came twice counts twice."""


@dataclass(slots=True)
class _Search:
    """A search under way."""

    asked: _Asked
    number: int
    steps: Iterator[Sequence[Held]]


class Cancels:
    """The cancellations that are not made yet.

    Args:
        numbers: The store's numbers of the owned partitions.
        changes: Get the cancellations that were made.
        when_durable: Calls something once all changes so far are durable.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        numbers: dict[TopicPartition, int],
        changes: HeldChanges,
        when_durable: Callable[[Callable[[], None]], None],
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._numbers = numbers
        self._changes = changes
        self._when_durable = when_durable
        self._coming: deque[tuple[int, _Asked]] = deque()
        """Requests, each with the number of changes before it that have not all entered."""
        self._asked: dict[TopicPartition, _Asked] = {}
        self._search: _Search | None = None
        self._none_at_s = inf
        """Time at which no name waited, or was sought, for the last time."""

    @property
    def busy(self) -> bool:
        return bool(self._asked or self._search)

    @property
    def is_full(self) -> bool:
        """Whether too many wait: partitions are not read then."""
        waiting = [*self._asked.values(), *(asked for _, asked in self._coming)]
        names, nbytes = sum(len(asked.names) for asked in waiting), sum(asked.nbytes for asked in waiting)
        return are_many(names, nbytes, (time.monotonic() - self._none_at_s) * 1000)

    def is_searching(self, tp: TopicPartition) -> bool:
        """Whether a search is under way: it would miss a message that is brought forward meanwhile."""
        return self._search is not None and self._search.asked.last.tp == tp

    def add_request(self, effect: CancelHeld) -> None:
        """Take a request; the search begins when the store has all messages to hold that came before it."""
        asked = _Asked(dict(effect.names), effect, sum(map(len, effect.names)))
        self._coming.append((self._store.writes.changes, asked))

    def _add(self, more: _Asked) -> None:
        asked = self._asked.get(more.last.tp)
        if asked is None or not self._pipeline.expects(asked.last):
            self._asked[more.last.tp] = more
            return
        asked.names |= more.names  # offsets rise
        asked.nbytes += more.nbytes
        asked.last = more.last

    def step(self, patience_s: float = STEP_S) -> bool:
        """Cancel for some time, what can be found; return whether nothing is left.

        Raises:
            StateError: A file cannot be read; a later call starts the search again.
        """
        begun_s = time.monotonic()
        while self._coming and self._coming[0][0] <= self._store.writes.entered:
            self._add(self._coming.popleft()[1])
        while self._search is not None or self._begin():
            if not self._go_on(begun_s + patience_s):
                return False
        if self._asked or self._coming:
            return False
        self._none_at_s = begun_s
        return True

    def _begin(self) -> bool:
        for tp, asked in list(self._asked.items()):
            turn = self._turn(asked.last)
            if turn is not Turn.WAIT:
                del self._asked[tp]
            if turn is Turn.GO_ON:
                lowest, number = changeable_from(self._pipeline.seen(tp.store)), self._numbers[tp]
                self._search = _Search(asked, number, self._store.cancel_named(number, lowest, asked.names))
                return True
        return False

    def _go_on(self, until_s: float) -> bool:
        """Continue the search; return whether it has ended."""
        search = self._search
        assert search is not None
        last = search.asked.last
        if self._turn(last) is not Turn.GO_ON:
            self._begin_anew(search)
            return True
        positions: list[int] = []
        try:
            for cancelled in search.steps:
                positions += [held.position for held in cancelled]
                if time.monotonic() >= until_s:
                    return False
        except StateError:
            self._begin_anew(search)
            raise
        finally:
            if positions:
                self._changes.made(last.tp, search.number, positions, patience_ms=SETTLE_DELAY_MS)
        self._search = None
        self._when_durable(partial(self._pipeline.cancelled, last.tp, last.token))
        return True

    def _turn(self, last: CancelHeld) -> Turn:
        has_store = last.tp.store in self._pipeline.owned
        number = self._numbers.get(last.tp)
        is_moving = number is not None and self._store.is_moving(number)
        is_expected = self._pipeline.expects(last)
        return turn_of_search(is_expected=is_expected, has_store=has_store, is_moving=is_moving)

    def _begin_anew(self, search: _Search) -> None:
        self._search, tp = None, search.asked.last.tp
        if self._turn(search.asked.last) is not Turn.DROP:
            later = self._asked.get(tp, search.asked)
            self._asked[tp] = _Asked(search.asked.names | later.names, later.last)
