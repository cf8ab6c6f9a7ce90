"""Answers what an operator asks about messages that are held, and changes them; only for the main thread.

A message can be changed as long as neither this owner nor an earlier one has read it out: what is in a part stays
there. The answer waits until the change is durable, and a commit that began later has proved that the partition was
still owned: each owner to come knows it then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import orjson

from sidecar.core.intents import Barrier
from sidecar.core.messages.instants import instant_text
from sidecar.core.partition.partition import Partition
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.questions import Answer, Listing, One, Question
from sidecar.delay.columns import original_of
from sidecar.delay.disk.blocks import DUE_MAX_MS, SEQUENCE_BITS
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.disk.hours import start_of
from sidecar.delay.disk.listing import Listed
from sidecar.delay.interface import LISTED_MAX, HeldStore
from sidecar.errors import StateError
from sidecar.sinks.formats import envelope_row

DONE = {"cancel": "cancelled", "release": "released"}


class _Change(NamedTuple):
    """A change that was made, until all owners to come know it."""

    question: Question
    asked: One
    number: int
    position: int
    source: Partition
    delayed: Partition


class Requests:
    """The questions that are not answered yet.

    Args:
        pipeline: The core.
        store: Holds the messages.
        numbers: The store's numbers of the owned partitions.
        is_loading: Whether a partition is being taken over.
        when_durable: Calls something once all changes so far are durable.
        wall_ms: The time of day.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        numbers: dict[TopicPartition, int],
        is_loading: Callable[[TopicPartition], bool],
        when_durable: Callable[[Callable[[], None]], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._numbers = numbers
        self._is_loading = is_loading
        self._when_durable = when_durable
        self._wall_ms = wall_ms
        self._waiting: list[Question] = []
        self._proving: list[tuple[_Change, Barrier]] = []
        self._now_ms = 0.0

    def ask(self, question: Question) -> None:
        """Take a question; `tend` answers it, at once or later."""
        self._waiting.append(question)

    def tend(self, now_ms: float) -> None:
        """Answer what can be answered."""
        if not self._waiting and not self._proving:
            return
        self._now_ms = now_ms
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            if not question.answer.cancelled():
                self._answer(question)
        proving, self._proving = self._proving, []
        for change, barrier in proving:
            self._prove(change, barrier)

    def _answer(self, question: Question) -> None:
        asked = question.asked
        try:
            answer = self._listed(asked) if isinstance(asked, Listing) else self._one(question, asked)
        except StateError as error:
            answer = {"outcome": "failed", "reason": str(error)}
        if answer is not None:
            _tell(question, answer)

    def _listed(self, asked: Listing) -> Answer:
        found: list[tuple[Listed, TopicPartition]] = []
        first, end = (min(ms, DUE_MAX_MS) << SEQUENCE_BITS for ms in (asked.first_ms, asked.end_ms))
        limit = min(asked.limit, LISTED_MAX)
        for tp, number in self._numbers.items():
            if asked.topic in (None, tp.topic) and asked.partition in (None, tp.partition):
                found += [(each, tp) for each in self._store.listed(number, first, end, limit + 1, None)]
        found.sort(key=itemgetter(0))
        messages = [
            {**tp.fields(), "offset": each.origin, "due": _time(each.position), "bytes": each.nbytes}
            for each, tp in found[:limit]
        ]
        return {"outcome": "listed", "messages": messages, "is_all": len(found) <= limit}

    def _one(self, question: Question, asked: One) -> Answer | None:
        """The answer; None if there is none yet."""
        tp, partitions, is_loading = asked.tp, self._pipeline.partitions, self._is_loading(asked.tp)
        if tp not in partitions and not is_loading:
            return {"outcome": "not_owned"}
        # Messages that are read again are in the store already, and the commit must settle them first.
        if is_loading or tp.store not in partitions or partitions[tp].holding.is_behind:
            self._waiting.append(question)
            return None
        number, hour = self._numbers[tp], min(asked.due_ms, DUE_MAX_MS) // HOUR_MS
        first = max(start_of(hour), partitions[tp.store].reach.seen)
        found = self._store.listed(number, first, start_of(hour + 1), LISTED_MAX, asked.offset)
        if len(found) > 1:  # of topics that were created again
            found = [each for each in found if each.position >> SEQUENCE_BITS == asked.due_ms] or found
        if len(found) != 1:
            return {"outcome": "several", "due": [_time(each.position) for each in found]} if found else _NOT_HELD
        position = found[0].position
        if asked.what == "show":
            return self._shown(tp, number, position)
        if not self._change(asked.what, tp, position):
            return _NOT_HELD
        change = _Change(question, asked, number, position, partitions[tp], partitions[tp.store])
        self._when_durable(partial(self._durable, change))
        return None

    def _change(self, what: str, tp: TopicPartition, position: int) -> bool:
        number = self._numbers[tp]
        if what == "cancel":
            return self._store.cancel(number, position)
        earlier = self._store.release(number, position, self._wall_ms())
        if earlier is not None:
            self._pipeline.partitions[tp].holding.moved(earlier)
        return earlier is not None

    def _shown(self, tp: TopicPartition, number: int, position: int) -> Answer:
        held = self._store.find(number, position)
        if held is None:
            return _NOT_HELD
        key, value, headers, timestamp_ms, details = original_of(held)
        row = envelope_row(tp, held.origin, timestamp_ms, key, (), headers, value, details)
        message = {name: value for name, value in orjson.loads(row).items() if name != "tag"}
        return {"outcome": "shown", "due": _time(position), "message": message}

    def _durable(self, change: _Change) -> None:
        """The change is durable, and so is the message, which counts as delayed since then."""
        tp, partitions = change.asked.tp, self._pipeline.partitions
        if change.asked.what == "cancel" and partitions.get(tp.store) is change.delayed:
            self._pipeline.books[tp.store].cancel()
        if partitions.get(tp) is change.source:
            self._proving.append((change, self._pipeline.prove(tp, self._now_ms)))
        else:
            _tell(change.question, _LOST)

    def _prove(self, change: _Change, barrier: Barrier) -> None:
        question, asked = change.question, change.asked
        if self._pipeline.partitions.get(asked.tp) is not change.source:
            _tell(question, _LOST)
        elif barrier.durable:
            if asked.what == "cancel":
                self._store.forget(change.number, change.position)
            _tell(question, {"outcome": DONE[asked.what], "due": _time(change.position)})
        else:
            self._proving.append((change, barrier))


_NOT_HELD = {"outcome": "not_held"}
_LOST = {"outcome": "lost"}


def _tell(question: Question, answer: Answer) -> None:
    if question.answer.set_running_or_notify_cancel():
        question.answer.set_result(answer)


def _time(position: int) -> str:
    return instant_text(position >> SEQUENCE_BITS)
