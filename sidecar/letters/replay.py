"""Replays dead letters of the state folder to the receiver: fixes parts, sends them at a rate, and ends them."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from sidecar.config.model import Settings
from sidecar.core.effects import Effect, Report, Send
from sidecar.errors import ConfigError, UnavailableError
from sidecar.letters.columns import LETTER_COLUMNS, framed
from sidecar.letters.pipeline import EndPart, HalvePart, ReplayPipeline
from sidecar.letters.plan import Replayed, ReplayPlan, Stream
from sidecar.runtime.build import delivery_rules, sink_of
from sidecar.runtime.worker import Answered, Senders
from sidecar.state.beside import Chosen

WAIT_S = 0.05
SENDERS_PATIENCE_S = 1.0
PARTS_AHEAD = 2
"""Parts in memory for each sender."""


def check_receiver(settings: Settings) -> None:
    """Refuse settings with which a replay to the receiver would not be exact.

    Raises:
        ConfigError: The sink is not HTTP, or a ledger decides what is delivered.
    """
    if settings.sink.name != "http":
        raise ConfigError(
            f"sink.{settings.sink.name} has no receiver for a replay",
            hint="--to topic produces the messages again instead",
        )
    if settings.dedup.ledger is not None:
        raise ConfigError(
            "dedup.ledger decides which messages are delivered, and the replay does not ask it: another message with "
            "the same id may have arrived since",
            hint="--to topic produces the messages again instead: then they are compared",
        )


class ReceiverReplay:
    """Delivers dead letters to the receiver.

    Args:
        rate: Limit in messages/s.
        on_ended: Called with the number of letters that have ended.
        tell: Called with a line for the operator.
    """

    def __init__(
        self,
        settings: Settings,
        plan: ReplayPlan,
        rate: int,
        on_ended: Callable[[int], None],
        tell: Callable[[str], None],
        stack: ExitStack,
    ) -> None:
        sink = sink_of(settings, LETTER_COLUMNS)
        self._framer = sink.framer
        self._plan = plan
        self._rate = rate
        self._on_ended = on_ended
        self._tell = tell
        self._ahead = PARTS_AHEAD * settings.sink.chosen.batches_at_once
        self._pipeline = ReplayPipeline(
            replace(delivery_rules(settings, sink.framer.separator), park_after_ms=None), random.random
        )
        self._inbox: queue.SimpleQueue[Answered] = queue.SimpleQueue()
        self._senders = Senders(sink, settings.sink.chosen.batches_at_once, self._inbox)
        stack.callback(self._senders.close, SENDERS_PATIENCE_S)
        self._delivered = self._refused = 0
        self._next_at_s = 0.0

    def run(self, chosen: Chosen) -> Replayed:
        """Deliver the rest of an interrupted replay, under its names, and then the chosen letters.

        Raises:
            UnavailableError: The receiver refuses too much for a cause in the messages.
            StateError: The state file cannot be used.
        """
        for stream in self._plan.streams(chosen):
            self._deliver(stream)
        return Replayed(self._delivered, self._refused)

    # Loop

    def _deliver(self, stream: Stream) -> None:
        self._pipeline.begin(stream.tp, stream.scope)
        for part in stream.parts:
            fixed = part if stream.again else self._plan.fix(part)
            letters = self._plan.load(fixed)
            if not letters:
                self._plan.end(fixed, (), ())
                continue
            self._wait_for_room(len(letters))
            self._pipeline.add(fixed, letters, framed(self._framer, letters), again=stream.again)
            self._turn()
        while self._pipeline.outstanding:
            self._turn(WAIT_S)

    def _wait_for_room(self, messages: int) -> None:
        while self._pipeline.outstanding >= self._ahead:
            self._turn(WAIT_S)
        while (left_s := self._next_at_s - time.monotonic()) > 0:
            self._turn(min(left_s, WAIT_S))
        self._next_at_s = time.monotonic() + messages / self._rate

    def _turn(self, wait_s: float = 0.0) -> None:
        self._take_answers(wait_s)
        while effects := self._pipeline.step(time.monotonic() * 1000):
            for effect in effects:
                self._perform(effect)
        if reason := self._pipeline.stalled:
            raise UnavailableError(
                f"{reason}; {self._delivered:,} letters were delivered, {self._refused:,} refused again",
                hint="correct the receiver and run this command again: it goes on where it stopped",
            )

    def _take_answers(self, wait_s: float) -> None:
        try:
            answered = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            while True:
                now_ms, wall_ms = time.monotonic() * 1000, int(time.time() * 1000)
                self._pipeline.answered(answered.batch_id, answered.answer, now_ms, wall_ms)
                answered = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _perform(self, effect: Effect | HalvePart | EndPart) -> None:
        match effect:
            case Send(batch):
                self._senders.send(batch)
            case HalvePart(part, halves):
                self._pipeline.halved(effect, self._plan.halve(part, halves))
            case EndPart(part, delivered, refused):
                self._plan.end(part, delivered, refused)
                self._delivered += len(delivered)
                self._refused += len(refused)
                self._on_ended(len(delivered) + len(refused))
            case Report("group.failed", _, fields):
                self._tell(f"the receiver fails, and is tried again: {fields['reason']}")
            case Report("group.recovered"):
                self._tell("the receiver answers again")
            case Report():
                pass  # each retry
            case _:
                raise AssertionError(effect)  # a replay has no commit, ledger, store or flow
