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
from sidecar.delay.columns import HeldColumns
from sidecar.delay.disk.blocks import DUE_MAX_MS, SEQUENCE_BITS
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.disk.hours import start_of
from sidecar.delay.disk.listing import Listed
from sidecar.delay.interface import LISTED_MAX, HeldStore
from sidecar.errors import StateError
from sidecar.sinks.formats import envelope_row

_HELD = HeldColumns(origins=True)
DONE = {"cancel": "cancelled", "release": "released"}


class _Proving(NamedTuple):
    """A change that was made, until all owners to come know it."""

    barrier: Barrier
    partition: Partition
    question: Question
    then: Callable[[], None]
    answer: Answer


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
        self._proving: list[_Proving] = []
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
        for each in proving:
            self._prove(each)

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
        tp, store_tp = asked.tp, asked.tp.store
        if tp not in self._pipeline.partitions and not self._is_loading(tp):
            return {"outcome": "not_owned"}
        # Messages that are read again are in the store already, and the commit must settle them first.
        if (
            self._is_loading(tp)
            or store_tp not in self._pipeline.partitions
            or self._pipeline.partitions[tp].holding.is_behind
        ):
            self._waiting.append(question)
            return None
        number, hour = self._numbers[tp], min(asked.due_ms, DUE_MAX_MS) // HOUR_MS
        first = max(start_of(hour), self._pipeline.partitions[store_tp].reach.seen)
        found = self._store.listed(number, first, start_of(hour + 1), LISTED_MAX, asked.offset)
        if len(found) > 1:  # of topics that were created again
            found = [each for each in found if each.position >> SEQUENCE_BITS == asked.due_ms] or found
        if len(found) != 1:
            return {"outcome": "several", "due": [_time(each.position) for each in found]} if found else _NOT_HELD
        position = found[0].position
        if asked.what == "show":
            return self._shown(tp, number, position)
        done = self._store.cancel(number, position) if asked.what == "cancel" else self._released(number, position)
        if not done:
            return _NOT_HELD
        self._changed(question, asked, number, position)
        return None

    def _released(self, number: int, position: int) -> bool:
        return self._store.release(number, position, self._wall_ms()) is not None

    def _shown(self, tp: TopicPartition, number: int, position: int) -> Answer:
        held = self._store.find(number, position)
        if held is None:
            return _NOT_HELD
        (headers,), (details,) = _HELD.headers([held]), _HELD.details([held])
        row = envelope_row(tp, held.origin, held.timestamp_ms, held.key, (), headers, held.value, details)
        message = {name: value for name, value in orjson.loads(row).items() if name != "tag"}
        return {"outcome": "shown", "due": _time(position), "message": message}

    def _changed(self, question: Question, asked: One, number: int, position: int) -> None:
        tp, answer = asked.tp, {"outcome": DONE[asked.what], "due": _time(position)}
        partitions = self._pipeline.partitions
        partition, delayed, then = partitions[tp], partitions[tp.store], _nothing
        if asked.what == "cancel":
            then = partial(self._store.forget, number, position)

        def durable() -> None:  # the message is durable, too, and counts as delayed
            if asked.what == "cancel" and partitions.get(tp.store) is delayed:
                self._pipeline.books[tp.store].cancel()
            if partitions.get(tp) is partition:
                barrier = self._pipeline.prove(tp, self._now_ms)
                self._proving.append(_Proving(barrier, partition, question, then, answer))
            else:
                _tell(question, _LOST)

        self._when_durable(durable)

    def _prove(self, each: _Proving) -> None:
        if self._pipeline.partitions.get(each.partition.tp) is not each.partition:
            _tell(each.question, _LOST)
        elif each.barrier.durable:
            each.then()
            _tell(each.question, each.answer)
        else:
            self._proving.append(each)


_NOT_HELD = {"outcome": "not_held"}
_LOST = {"outcome": "lost"}


def _nothing() -> None:
    pass


def _tell(question: Question, answer: Answer) -> None:
    if question.answer.set_running_or_notify_cancel():
        question.answer.set_result(answer)


def _time(position: int) -> str:
    return instant_text(position >> SEQUENCE_BITS)
