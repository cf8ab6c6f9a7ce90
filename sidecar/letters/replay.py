"""Replays dead letters of the state folder to the receiver: fixes parts, sends them at a rate, and ends them."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from sidecar.config.model import Settings
from sidecar.core.batching import Limits
from sidecar.core.effects import Report, Send
from sidecar.core.parts import HISTORY_MAX
from sidecar.core.records import Answer, DeadLetter
from sidecar.core.replays import EndPart, HalvePart, ReplayedPart, ReplayPipeline
from sidecar.errors import ConfigError, UnavailableError
from sidecar.letters.columns import LETTER_COLUMNS, framed
from sidecar.letters.plan import LetterPlace, Replayed, Stream
from sidecar.runtime.build import delivery_rules, sink_of
from sidecar.runtime.worker import Call, Perform, PipelineLoop, Senders
from sidecar.state.beside import Chosen
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import ReplayPart

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
    """Delivers dead letters to the receiver, at most `rate` messages/s."""

    def __init__(
        self,
        settings: Settings,
        place: LetterPlace,
        rate: int,
        on_ended: Callable[[int], None],
        tell: Callable[[str], None],
        stack: ExitStack,
    ) -> None:
        sink = sink_of(settings, LETTER_COLUMNS)
        self._framer = sink.framer
        self._place = place
        self._rate = rate
        self._on_ended = on_ended
        self._tell = tell
        self._ahead = PARTS_AHEAD * settings.sink.chosen.batches_at_once
        self._pipeline = ReplayPipeline(
            replace(delivery_rules(settings, sink.framer.separator), park_after_ms=None), random.random
        )
        inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        senders = Senders(sink, settings.sink.chosen.batches_at_once, inbox)
        stack.callback(senders.close, SENDERS_PATIENCE_S)
        performers: dict[type, Perform] = {
            Send: lambda effect: senders.send(effect.batch, self._answered),
            HalvePart: self._halve,
            EndPart: self._end,
            Report: self._report,
        }
        self._loop = PipelineLoop(self._pipeline, inbox, performers)
        self._parts: dict[ReplayedPart, tuple[ReplayPart, dict[int, StoredLetter]]] = {}
        """The parts that have not ended, with their letters by offset."""
        self._delivered = self._refused = 0
        self._next_at_s = 0.0

    def run(self, chosen: Chosen, limits: Limits) -> Replayed:
        """Deliver the rest of an interrupted replay, under its names, and then the chosen letters.

        Raises:
            UnavailableError: The receiver refuses too much for a cause in the messages.
        """
        for stream in self._place.streams(chosen, "receiver", limits):
            self._deliver(stream)
        return Replayed(self._delivered, self._refused)

    # Loop

    def _deliver(self, stream: Stream) -> None:
        self._pipeline.begin_partition(stream.tp, stream.scope)
        for cut in stream.parts:
            fixed = cut if stream.again else self._place.fix(cut)
            letters = self._place.load(fixed)
            if not letters:
                self._place.end_part(fixed, (), ())
                continue
            self._wait_for_room(len(letters))
            part = ReplayedPart(fixed.tp, fixed.group, fixed.first, fixed.last)
            self._parts[part] = fixed, {letter.offset: letter for letter in letters}
            self._pipeline.add_part(part, framed(self._framer, letters), again=stream.again)
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
        self._loop.take(wait_s)
        while self._loop.step(time.monotonic() * 1000):
            pass
        if reason := self._pipeline.stalled:
            raise UnavailableError(
                f"{reason}; {self._delivered:,} letters were delivered, {self._refused:,} refused again",
                hint="correct the receiver and run this command again: it resumes where it stopped",
            )

    def _answered(self, batch_id: int, answer: Answer, now_ms: float) -> None:
        self._pipeline.answered(batch_id, answer, now_ms, int(time.time() * 1000))

    def _halve(self, effect: HalvePart) -> None:
        part, letters = self._parts.pop(effect.part)
        members = [
            {offset: letter for offset, letter in letters.items() if half.first <= offset <= half.last}
            for half in effect.halves
        ]
        halves = [
            replace(part, first=half.first, last=half.last, letters=tuple(each.id for each in found.values()), id=0)
            for half, found in zip(effect.halves, members, strict=True)
        ]
        stored = zip(self._place.halve(part, halves), members, strict=True)
        self._parts |= zip(effect.halves, stored, strict=True)
        self._pipeline.halved(effect)

    def _end(self, effect: EndPart) -> None:
        part, letters = self._parts.pop(effect.part)
        refused = [_refused(letters.pop(each.offset), each) for each in effect.refused]
        self._place.end_part(part, [letter.id for letter in letters.values()], refused)
        self._delivered += len(letters)
        self._refused += len(refused)
        self._on_ended(len(letters) + len(refused))

    def _report(self, report: Report) -> None:
        if report.event == "group.failed":
            self._tell(f"the receiver fails, and is tried again: {report.fields['reason']}")
        elif report.event == "group.recovered":
            self._tell("the receiver answers again")


def _refused(letter: StoredLetter, now: DeadLetter) -> StoredLetter:
    """The letter with the reason for which it was refused again."""
    attempts = (*letter.attempts, *now.attempts)[-HISTORY_MAX:]
    status = now.attempts[-1].status if now.attempts else None
    return replace(letter, reason=now.reason, status=status, attempts=attempts)
