"""Settles messages whose keys twins held in their task: duplicates, unless the twin became a dead letter. No Spark.

It works on a thread of the driver, once Spark has committed the micro-batch. From then on none of its tasks runs again:
so its dead letters may be reported to the ledger, and other messages may take their keys.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import structlog

from sidecar import threads
from sidecar.config.ledger import Remembering
from sidecar.core.batching import pick_keys
from sidecar.core.books import Books
from sidecar.core.claims import DUPLICATE, HELD, ClaimEnd, ClaimState, Want, place_of
from sidecar.core.delivery.output import Carried
from sidecar.core.intake.intake import fragment_of
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.records import Fragment, TopicPartition
from sidecar.errors import SidecarError
from sidecar.ledger.interface import Ledger, LedgerError
from sidecar.ops.health import Problem, problem
from sidecar.runtime.ledger_worker import PRUNE_EVERY_S, PRUNE_STEP, open_ledger
from sidecar.spark.ranges.broker import SingleMessages
from sidecar.spark.run.deliver import DeliveryStoppedError, RangeDelivery, Task
from sidecar.spark.run.outcome import Outcome, TwinFiles
from sidecar.spark.run.plan import RunPlan

ROUND_S = 0.5
"""Interval of requests to the ledger, in seconds."""
ROWS_AT_ONCE = 1_000
"""Limit of rows that are claimed at once, unless a part has more."""
CLOSE_S = 5.0
GONE = "it was gone from the broker before it could be delivered; another message with its id was a dead letter"

log = structlog.get_logger()


class Resolved(NamedTuple):
    """Settled rows of one partition, as a change of its books."""

    tp: TopicPartition
    books: Books
    outcome: Outcome | None = None
    """The outcome of the rows that were sent."""


class Resolver:
    """Works through the files of committed micro-batches, and forgets old keys.

    Args:
        plan: With a ledger.
        begun_after: The last micro-batch that an earlier process committed: its rows are in no books here.
    """

    def __init__(self, plan: RunPlan, begun_after: int) -> None:
        dedup = plan.reading.dedup
        assert dedup.ledger is not None
        self.waiting = 0
        """Number of messages whose twins were claimed at the last check."""
        self.problem: Problem | None = None
        """The reason why nothing is settled at present."""
        self._plan = plan
        self.files = TwinFiles(plan.folder)
        self._ledger: Ledger = open_ledger(dedup.ledger, plan.reading.group_id, plan.reading.state_dir)
        self._committed = begun_after
        self._uncounted = {batch for batch in self.files.batches() if batch <= begun_after}
        self._results: queue.SimpleQueue[Resolved] = queue.SimpleQueue()
        self._prune_at_s = 0.0
        self._working = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        self._thread = threads.start(self._work, "twins")

    def close(self) -> None:
        """End the thread; the next process sends rows in flight again, under the same names."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def committed(self, batch: int) -> None:
        """Set the last micro-batch that is committed and in the books."""
        self._committed = max(batch, self._committed)

    def results(self) -> Iterator[Resolved]:
        """Remove and return the results since the last call."""
        while not self._results.empty():
            yield self._results.get()

    @property
    def _remembering(self) -> Remembering:
        ledger = self._plan.reading.dedup.ledger
        assert ledger is not None
        return ledger.remembering

    @property
    def at_rest(self) -> bool:
        """Whether all is settled, reported and in the state, provided that all micro-batches are committed."""
        waiting = self.files.batches() or self.files.letter_files()
        return not waiting and not self._working and self._results.empty()

    # Thread

    def _work(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._ledger.close)
            single: SingleMessages | None = None
            while not self._stop.wait(ROUND_S):
                self._working = True
                try:
                    single = single or self._plan.broker.single(stack)
                    self._round(single)
                except DeliveryStoppedError:
                    return
                except Exception as error:  # noqa: BLE001  # a mistake must not end the thread: it is tried again
                    self._failed(error)
                else:
                    self.problem = None
                self._working = False

    def _failed(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, SidecarError) else f"{type(error).__name__}: {error}"
        if self.problem is None:
            log.error("twins.not_settled", reason=reason)
        if isinstance(error, LedgerError):
            self.problem = problem("ledger", reason=reason)
        else:
            self.problem = problem("group", "twins", reason=reason)

    def _round(self, single: SingleMessages) -> None:
        waiting = 0
        for batch in self.files.batches():
            if batch > self._committed:  # its tasks may run again
                break
            waiting += self._settle(batch, single)
        self.waiting = waiting
        if time.monotonic() >= self._prune_at_s:
            self._prune_at_s = time.monotonic() + PRUNE_EVERY_S
            keys_max = self._plan.reading.dedup.capacity
            while (
                self._ledger.prune(self._remembering.keep_ms, keys_max, PRUNE_STEP) == PRUNE_STEP
                and not self._stop.is_set()
            ):
                pass

    def _settle(self, batch: int, single: SingleMessages) -> int:
        """Settle as much of a micro-batch as possible; return the number of rows that wait."""
        kept = self.files.of(batch)
        if batch in self._uncounted:
            for one in kept:
                self._results.put(Resolved(one.tp, Books(consumed=one.waiting, in_flight=one.waiting)))
            self._uncounted.remove(batch)
        if errors := [mark for one in kept for mark in one.errors]:
            self._ledger.settle(errors)
            for one in kept:
                one.errors = []
            self.files.put(batch, kept)
        for one in kept:
            portions = list(_portions(one.carried))
            for number, portion in enumerate(portions):
                resolved, carried, errors = self._settle_some(batch, one, portion, single)
                if not resolved.books.in_flight:
                    continue
                portions[number] = carried
                one.carried = [rows for some in portions for rows in some]
                one.errors += errors
                self.files.put(batch, kept)
                self._tell(batch, resolved)
        return sum(one.waiting for one in kept)

    def _tell(self, batch: int, resolved: Resolved) -> None:
        books = resolved.books
        self._results.put(resolved)
        log.info(
            "twins.settled", batch=batch, **resolved.tp.fields(), delivered=books.delivered, duplicate=books.duplicate,
            dead_lettered=books.dead_lettered,
        )  # fmt: skip

    def _settle_some(
        self, batch: int, one: Outcome, portion: Sequence[Carried], single: SingleMessages
    ) -> tuple[Resolved, list[Carried], list[ClaimEnd]]:
        """Returns the settled rows, those that are still unsettled, and the claims of dead letters."""
        place = place_of(one.tp)
        wants = [Want(place, rows.offsets, rows.keys, 1 + secrets.randbits(53)) for rows in portion]
        ours, carried, errors = list[Carried](), list[Carried](), list[ClaimEnd]()
        outcome, books = None, Books()
        for rows, verdict in zip(portion, self._ledger.claim(wants, self._remembering.claim_timeout_ms), strict=True):
            indices: defaultdict[int, list[int]] = defaultdict(list)
            for i, token in enumerate(verdict):
                indices[min(token, 0)].append(i)
            books.duplicate += len(indices.get(DUPLICATE, ()))
            for chosen, into in ((indices.get(HELD), carried), (indices.get(0), ours)):
                if chosen:
                    into.append(_picked(rows, chosen))
        if ours:
            outcome, gone = self._deliver(batch, one, ours, single)
            carried += outcome.carried
            errors = [*outcome.errors, *gone]
            books.delivered, books.dead_lettered = outcome.books.delivered, outcome.books.dead_lettered
            books.duplicate += outcome.books.duplicate
        books.in_flight = -(books.delivered + books.duplicate + books.dead_lettered)
        return Resolved(one.tp, books, outcome), carried, errors

    def _deliver(
        self, batch: int, one: Outcome, ours: Sequence[Carried], single: SingleMessages
    ) -> tuple[Outcome, list[ClaimEnd]]:
        gone: list[ClaimEnd] = []
        columns, message_at = single

        def parts(reading: ReadingRules) -> Iterator[tuple[str, int, int, Fragment]]:
            for rows in ours:
                found = [message_at(one.tp, offset) for offset in rows.offsets]
                if messages := [message for message in found if message is not None]:
                    yield rows.group, rows.first, rows.last, _framed(reading, rows, messages)
                missing = [i for i, message in enumerate(found) if message is None]
                if missing:
                    lost = _picked(rows, missing)
                    gone.append(ClaimEnd(place_of(one.tp), ClaimState.ERROR, lost.offsets, lost.keys))
                    without = Fragment((), b"", None, dict.fromkeys(lost.offsets, GONE), time.monotonic() * 1000)
                    yield rows.group, rows.first, rows.last, without

        attempt = f"{batch}-{secrets.token_hex(4)}"
        task = Task(one.tp, one.scope, "", batch, attempt, again=True, letters=self.files.letters)
        with ExitStack() as stack:
            delivery = RangeDelivery(self._plan, task, columns, stack, self._stop.is_set)
            for part in parts(delivery.reading):
                delivery.take_up(*part)
            return delivery.finish(), gone


def _framed(reading: ReadingRules, rows: Carried, messages: list[Any]) -> Fragment:
    """The rows under the keys with which they were claimed, even if the settings have changed."""
    fragment = fragment_of(reading, rows.tp, messages, time.monotonic() * 1000, {})
    index = {offset: i for i, offset in enumerate(rows.offsets)}
    fragment.keys = pick_keys(rows.keys, [index[offset] for offset in fragment.offsets])
    return fragment


def _picked(rows: Carried, chosen: Sequence[int]) -> Carried:
    return rows._replace(offsets=array("q", [rows.offsets[i] for i in chosen]), keys=pick_keys(rows.keys, chosen))


def _portions(carried: Sequence[Carried]) -> Iterator[list[Carried]]:
    portion, count = list[Carried](), 0
    for rows in carried:
        portion.append(rows)
        count += len(rows.offsets)
        if count >= ROWS_AT_ONCE:
            yield portion
            portion, count = [], 0
    if portion:
        yield portion
