"""Delivers one offset range on an executor: performs the core's effects, with the daemon's own sink. Knows no Spark.

In the same way, the driver delivers rows that twins elsewhere held back (see `twins`).
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from sidecar.core.claims import ClaimEnd, ClaimState
from sidecar.core.effects import Claim, Report, Send, StoreDeadLetters
from sidecar.core.ranges import Halve, RangePipeline
from sidecar.core.records import Answer, Columns, DeadLetter, Fragment, Run, TopicPartition, group_label
from sidecar.errors import SidecarError
from sidecar.runtime.build import ReadingPlan
from sidecar.runtime.dead_letters import DeadLetterStore
from sidecar.runtime.ledger_worker import open_ledger_worker
from sidecar.runtime.no_ledger import NoLedger
from sidecar.runtime.worker import Call, Inbox, PipelineLoop, Senders, write_report
from sidecar.spark.ranges.broker import BrokerRanges
from sidecar.spark.ranges.windows import Windows
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import LetterFiles, Outcome
from sidecar.spark.run.plan import RunPlan

AGAIN_S = 0.5


class Claims:
    """Claims rows of a range, and reports deliveries to the ledger until it has recorded them.

    Dead letters are not reported here: another attempt at the range may claim them again, and a twin may take a key
    only once no attempt can send the message's part again. The driver reports `errors`.
    """

    def __init__(self, reading: ReadingPlan, inbox: Inbox, stack: ExitStack) -> None:
        self.errors: list[ClaimEnd] = []
        """The ends of claims of dead letters."""
        self._inbox = inbox
        self._due: list[ClaimEnd] = []
        self._asked: list[ClaimEnd] = []
        self._again_at_s = 0.0
        dedup = reading.dedup
        self.worker = NoLedger()
        if dedup.ledger is not None:
            self.worker = open_ledger_worker(dedup.ledger, reading.group_id, dedup.capacity, reading.state_dir, inbox)
        stack.callback(self.worker.close)

    @property
    def at_rest(self) -> bool:
        """Whether the ledger has recorded all deliveries."""
        return not (self._due or self._asked)

    def tend(self, marks: Sequence[ClaimEnd], now_s: float) -> None:
        """Take the ends of claims, and report those that are due, one call after the other."""
        for mark in marks:
            (self.errors if mark.state is ClaimState.ERROR else self._due).append(mark)
        if self._due and not self._asked and now_s >= self._again_at_s:
            self._asked, self._due = self._due, []
            self.worker.settle(self._asked, lambda ok: self._inbox.put(partial(self._answered, ok)))

    def _answered(self, ok: bool, now_ms: float) -> None:
        if not ok:
            self._due[:0] = self._asked
            self._again_at_s = now_ms / 1000 + AGAIN_S
        self._asked = []


WAIT_S = 0.05
NOTE_EVERY_S = 5.0
SENDERS_PATIENCE_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Task:
    """A range to deliver.

    Args:
        scope: Identity of the partition in the names of parts.
        ids_scope: Identity of the partition for its message ids.
        attempt: Distinguishes this attempt's files from those of others.
        again: Whether an earlier attempt may have sent anything.
        letters: Folder of the dead letters' files; None for the micro-batch's.
    """

    tp: TopicPartition
    scope: str
    ids_scope: str
    batch: int
    attempt: str
    again: bool
    letters: Path | None = None

    @property
    def stem(self) -> str:
        """The prefix of the names of this attempt's files."""
        return f"{self.tp.topic}-{self.tp.queue}-{self.attempt}"

    @property
    def note(self) -> str:
        """The name of the task's note; the driver's delivery of twins may run beside a task of the partition."""
        return f"{self.tp.topic}-{self.tp.queue}" + ("" if self.letters is None else "-twins")


class DeliveryStoppedError(Exception):
    """A delivery was ended by `stopped`; the rest is delivered another time, under the same names."""


class _Letters:
    """The task's dead letters, kept in files if no topic is configured."""

    def __init__(self, broker: BrokerRanges, files: LetterFiles, stack: ExitStack) -> None:
        self.files = files
        self.refused = 0
        self._broker, self._stack = broker, stack
        self._store: DeadLetterStore | None = None
        self._unstored = False

    def keep(self, letters: list[DeadLetter]) -> bool:
        """Make these durable; return whether they are."""
        try:
            self._opened_store().store(letters)
        except SidecarError as error:  # retried; the messages stay unsettled meanwhile
            log.error("dead_letters.not_stored", count=len(letters), reason=str(error))
            self._unstored = True
            return False
        if self._unstored:
            self._unstored = False
            log.info("dead_letters.stored")
        self.refused += sum(bool(letter.attempts) for letter in letters)
        for letter in letters[:10]:
            log.warning(
                "message.dead_lettered", **letter.tp.fields(), offset=letter.offset, group=group_label(letter.group),
                reason=letter.reason,
            )  # fmt: skip
        return True

    def _opened_store(self) -> DeadLetterStore:
        """The store, opened at first use: most tasks have no dead letter, and a producer connects at once."""
        if self._store is None:
            self._store = self._broker.open_letters(self.files, self._stack)
            self._stack.callback(self._store.close)
        return self._store


class RangeDelivery:
    """The delivery of one range, or of rows that were carried out of its parts.

    Args:
        plan: With rules of delivery; for carried rows, also with a ledger.
    """

    def __init__(
        self,
        plan: RunPlan,
        task: Task,
        columns: Columns,
        stack: ExitStack,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder = RunFolder(plan.folder / plan.query)
        self._task = task
        self._stopped = stopped
        assert plan.rules is not None, "a table is not delivered to"
        reading, sink = plan.reading.open(columns)
        self.reading = reading = replace(reading, bitmap_ids=False)  # only sorted runs can be kept as increments
        inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._claims = Claims(plan.reading, inbox, stack)
        self._senders = Senders(sink, plan.rules.concurrency, inbox)
        stack.callback(self._senders.close, SENDERS_PATIENCE_S)
        self._pipeline = RangePipeline(
            reading,
            plan.limits,
            plan.held_max_bytes,
            plan.rules,
            random.random,
            task.tp,
            task.scope,
            halved=folder.halves.of(task.batch, task.tp),
            again=task.again,
        )
        for taken, refused in folder.answers():  # a receiver that refuses everything must be known to the next task too
            self._pipeline.recall(taken, refused)
        files = LetterFiles(task.letters or folder.path / "letters" / str(task.batch), task.stem)
        self._letters = _Letters(plan.broker, files, stack)
        self._note_at_s = time.monotonic() + NOTE_EVERY_S
        stack.callback(folder.notes.put, task.note, "")
        self._loop = PipelineLoop(
            self._pipeline,
            inbox,
            performers={
                Send: lambda effect: self._senders.send(effect.batch, self._answered),
                Halve: self._halve,
                StoreDeadLetters: self._store,
                Report: write_report,
                Claim: lambda effect: self._claims.worker.claim(effect, self._pipeline.claimed),
            },
        )
        self._windows: Windows | None = None
        if reading.ids is not None:
            self._windows = Windows(folder.path / "ids" / f"{task.ids_scope}-{task.tp.queue}")
            self._windows.load(self._pipeline.ids, task.batch - 1)
        self._last = -1

    def feed(self, run: Run) -> None:
        """Take a run, once there is room for more."""
        self._pipeline.read(run, time.monotonic() * 1000)
        self._last = run.last
        self._make_room()

    def take_up(self, group: str, first: int, last: int, fragment: Fragment) -> None:
        """Take rows that were carried out of a part, once there is room for more."""
        self._pipeline.take_up(group, first, last, fragment)
        self._make_room()

    def finish(self) -> Outcome:
        """Wait until all is settled, and make the state for the next micro-batch durable.

        Raises:
            DeliveryStoppedError: `stopped` ended it; so do `feed` and `take_up`.
        """
        pipeline, task = self._pipeline, self._task
        pipeline.end_range()
        self._turn()
        self._await(lambda: pipeline.idle and self._claims.at_rest)
        if self._windows is not None:
            self._windows.save(self._pipeline.ids, task.batch)
        letters = self._letters
        return Outcome(
            task.tp,
            self._last,
            pipeline.books,
            dict(pipeline.cuts),
            dict(pipeline.sends),
            dict(pipeline.ended),
            letters.files.names,
            letters.refused,
            carried=pipeline.carried,
            errors=self._claims.errors,
            scope=task.scope,
            odd_ids=self.reading.odd_ids.count if self.reading.odd_ids is not None else 0,
            tags_refused=dict(pipeline.tags_refused),
            unwanted=list(self.reading.unwanted),
        )

    # Loop

    def _make_room(self) -> None:
        self._turn()
        self._await(lambda: not self._pipeline.full)

    def _await(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._stopped():
                raise DeliveryStoppedError
            self._turn(WAIT_S)

    def _turn(self, wait_s: float = 0.0) -> None:
        self._loop.take(wait_s)
        now_s = time.monotonic()
        while self._loop.step(now_s * 1000):
            pass
        self._claims.tend(self._pipeline.take_marks(), now_s)
        if now_s >= self._note_at_s:
            self._note_at_s = now_s + NOTE_EVERY_S
            self._folder.notes.put(self._task.note, self._trouble(now_s))

    def _trouble(self, now_s: float) -> str:
        """The reason for which the task does not progress; empty if it does."""
        if self._pipeline.stalled:
            return self._pipeline.stalled
        if problem := self._claims.worker.problem:
            return f"nothing is sent: the ledger is unavailable: {problem}"
        if not self._pipeline.failing:
            return ""
        longest = min(self._pipeline.failing, key=lambda group: group.since_ms)
        since_s = now_s - longest.since_ms / 1000
        return f"group {group_label(longest.name)} fails for {since_s:.0f} s: {longest.reason}"

    def _answered(self, batch_id: int, answer: Answer, now_ms: float) -> None:
        self._pipeline.answered(batch_id, answer, now_ms, int(time.time() * 1000))

    def _halve(self, effect: Halve) -> None:
        self._folder.halves.add_parts(self._task.batch, self._task.tp, effect.parts)
        self._pipeline.halved()

    def _store(self, effect: StoreDeadLetters) -> None:
        self._pipeline.stored(effect.token, ok=self._letters.keep(effect.letters), now_ms=time.monotonic() * 1000)
