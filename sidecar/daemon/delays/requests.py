"""Answers an operator's requests about held messages, and changes them; only for the main thread.

A message can be changed as long as neither this owner nor an earlier one has read it out: what is in a part stays
there. The answer waits until the change is durable, and a commit that began later has proved that the partition was
still owned: each owner to come knows it then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sidecar.core.delays import Turn, changeable_from, turn_of_request
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.answers import NOT_HELD, locate, parked, position_of, shown, time_of
from sidecar.daemon.delays.changes import HeldChanges
from sidecar.daemon.delays.questions import Answer, One, Peek, Peeked, Question
from sidecar.delay.interface import HeldStore
from sidecar.errors import StateError

DONE = {"cancel": "cancelled", "release": "released"}


class Requests:
    """Questions that are not answered yet.

    Args:
        numbers: The store's numbers of the owned partitions.
        is_loading: Whether a partition is being taken over, or what it holds is being searched.
        changes: Get the changes that are made.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        numbers: dict[TopicPartition, int],
        is_loading: Callable[[TopicPartition], bool],
        changes: HeldChanges,
        wall_ms: Callable[[], int],
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._numbers = numbers
        self._is_loading = is_loading
        self._changes = changes
        self._wall_ms = wall_ms
        self._waiting: list[tuple[int, Question]] = []
        """Each with the number of changes that must have entered."""

    def ask(self, question: Question) -> None:
        """Take a question; `tend` answers it, at once or later: changes once the store has what came before."""
        is_change = isinstance(question.asked, One) and question.asked.what in DONE
        self._waiting.append((self._store.writes.changes if is_change else 0, question))

    def tend(self) -> None:
        waiting, self._waiting = self._waiting, []
        for behind, question in waiting:
            if behind > self._store.writes.entered:
                self._waiting.append((behind, question))
            elif not question.answer.cancelled():
                self._answer(question)

    def _answer(self, question: Question) -> None:
        asked = question.asked
        if isinstance(asked, Peek):
            self._peek(question, asked)
            return
        try:
            answer = self._one(question, asked)
        except StateError as error:
            answer = {"outcome": "failed", "reason": str(error)}
        if answer is not None:
            _tell(question, answer)

    def _peek(self, question: Question, asked: Peek) -> None:
        tps = {number: tp for tp, number in self._numbers.items() if asked.listing.takes(tp)}
        lowest = {number: max(asked.first, self._lowest(tp)) for number, tp in tps.items()}
        _tell(question, Peeked(self._store.rows.view(lowest, position_of(asked.listing.end_ms)), tps))

    def _one(self, question: Question, asked: One) -> Answer | None:
        """The answer; None if there is none yet."""
        tp, owned = asked.tp, self._pipeline.owned
        turn = turn_of_request(
            is_owned=tp in owned,
            is_loading=self._is_loading(tp),
            has_store=tp.store in owned,
            is_behind=tp in owned and self._pipeline.is_behind(tp),
            is_moving=tp in self._numbers and self._store.is_moving(self._numbers[tp]),
        )
        if turn is Turn.DROP:
            return {"outcome": "not_owned"}
        if turn is Turn.WAIT:
            self._waiting.append((0, question))
            return None
        number = self._numbers[tp]
        if asked.what == "parked":
            return parked(self._store, number, asked.offset)
        position = locate(self._store, number, self._lowest(tp), asked)
        if not isinstance(position, int):
            return position
        if asked.what == "show":
            return shown(self._store, tp, number, position)
        if not self._change(asked.what, tp, position):
            return NOT_HELD
        cancelled = [position] if asked.what == "cancel" else []
        self._changes.made(tp, number, cancelled, partial(self._final, question, asked, position))
        return None

    def _change(self, what: str, tp: TopicPartition, position: int) -> bool:
        number = self._numbers[tp]
        if what == "cancel":
            return self._store.cancel(number, position)
        earlier = self._store.release(number, position, self._wall_ms())
        if earlier is not None:
            self._pipeline.moved(tp, earlier)
        return earlier is not None

    def _lowest(self, tp: TopicPartition) -> int:
        return changeable_from(self._pipeline.seen(tp.store))

    def _final(self, question: Question, asked: One, position: int, is_final: bool) -> None:
        _tell(question, {"outcome": DONE[asked.what], "due": time_of(position)} if is_final else _LOST)


_LOST = {"outcome": "lost"}


def _tell(question: Question, answer: Answer | Peeked) -> None:
    """Answer, if that is still wanted."""
    if question.answer.set_running_or_notify_cancel():
        question.answer.set_result(answer)
