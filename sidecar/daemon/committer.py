"""Performs the steps of a commit on threads, ledger and broker, as decided by `core.pipeline.commit_order`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from sidecar.core.effects import CommitItem
from sidecar.core.pipeline.commit_order import CommitOrder, Journal, Keep, Publish, Refuse, Settle, SettledIds, Step
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.absent import NoDelays
from sidecar.daemon.record import COMMIT, IDS, LEDGER, LoopRecord
from sidecar.daemon.statewatch import StateWatch
from sidecar.daemon.taken import NoIdKeeper
from sidecar.runtime.no_ledger import NoLedger
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sources.base import Source

WAIT_S = 0.05
"""How long to wait for reports of the threads before checking again whether the awaited step has ended."""

SOUGHT = "cancelled messages are being sought"


class Committer:
    """Makes settled state durable when the pipeline requests it. Main thread only."""

    def __init__(
        self,
        pipeline: Pipeline,
        source: Source,
        writer: Worker,
        inbox: Inbox,
        ids: NoIdKeeper,
        ledger: NoLedger,
        watch: StateWatch,
        record: LoopRecord,
        delays: NoDelays,
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._writer = writer
        self._inbox = inbox
        self._ids = ids
        self._ledger = ledger
        self._watch = watch
        self._record = record
        self._order = CommitOrder()
        self._delays = delays
        self._published = Publish([])
        """The last step of the commit, while it is under way."""

    def begin_commit(self, items: list[CommitItem]) -> None:
        self._record.commits.begun([item.tp for item in items], time.monotonic())
        self._do(self._begin(items))

    def _begin(self, items: list[CommitItem]) -> Step:
        self._ids.count(items)
        step = self._order.begin_commit(items)
        self._pipeline.count_unwritten(self._order.unwritten_bytes)
        return step

    def _tell(self, ok: bool) -> None:
        """Have the next step performed: the step under way ended, and all that it writes is durable or not."""
        self._inbox.put(partial(self._ended, ok))

    def _ended(self, ok: bool, _: float) -> None:
        step = self._end(ok=ok)
        if step is not None:
            self._do(step)

    def _end(self, *, ok: bool) -> Step | None:
        step = self._order.ended(ok=ok, held=self._ids_of_held())
        self._pipeline.count_unwritten(self._order.unwritten_bytes)
        return step

    def _ids_of_held(self) -> list[SettledIds]:
        held = self._pipeline.take_held_ids()
        self._ids.count(held)
        return held

    def _do(self, step: Step) -> None:
        match step:
            case Journal():
                self._record.commits.began(IDS)
                self._writer.do(lambda: self._tell(self._write(step)))
            case Settle(marks):
                self._record.commits.began(LEDGER)
                self._ledger.settle(marks, lambda ok: self._tell(self._noted(LEDGER, "", ok=ok)))
            case Keep(items):
                store = self._delays.takeovers.step

                def kept(ok: bool) -> None:
                    problem = self._delays.problem
                    reason = f"delayed messages cannot be stored: {problem}" if problem else SOUGHT
                    self._tell(self._noted(store, reason, ok=ok))

                self._record.commits.began(store)
                self._delays.keep(items, kept)
            case Publish(items):
                self._published = step
                self._record.commits.began(COMMIT)
                if items and self._watch.in_place():
                    self._source.commit(self._delays.owned.stamped(items))
                else:
                    self.committed(dict.fromkeys((item.tp for item in items), False), 0.0)
            case Refuse(tps):
                self.committed(dict.fromkeys(tps, False), 0.0)

    def _noted(self, step: str, reason: str, *, ok: bool) -> bool:
        """Whether a step succeeded, after its failure was noted."""
        if not ok:
            self._record.commits.blocked(step, reason)
        return ok

    def _write(self, step: Journal) -> bool:
        """Write the journal, on the writer's thread."""
        reason = self._ids.write(step.segments)
        if reason:
            self._record.commits.ids_failed(reason)
        return not reason

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """Record the end of the source's commit, or that none was made."""
        results = self._published.ended(results)
        self._published = Publish([])
        self._record.commits.ended(results, elapsed_s)
        self._pipeline.committed(results, time.monotonic() * 1000)
        self._delays.owned.committed(results)

    def now(self, tps: Iterable[TopicPartition], take_inbox: Callable[[float], None]) -> None:
        """Commit the settled state of these partitions, and wait for it; a commit under way is overtaken.

        Args:
            tps: Partitions; those that the core no longer owns are left out.
            take_inbox: Handles inbox messages, waiting up to this many seconds for the first.
        """
        self._order.overtake()
        while self._order.busy:  # its entries must be known to be durable, or join this commit
            self._delays.take_ends()
            take_inbox(WAIT_S)
        self._pipeline.committed({}, time.monotonic() * 1000)  # its result is not awaited
        step: Step | None = self._begin(self._pipeline.begin_commit(tps))
        while isinstance(step, Journal | Settle | Keep):
            step = self._end(ok=self._done_now(step))
        items = step.items if isinstance(step, Publish) and self._watch.in_place() else []
        self._published = step if isinstance(step, Publish) else Publish([])
        begun_s = time.monotonic()
        results = self._source.commit_now(self._delays.owned.stamped(items))
        self.committed(results, time.monotonic() - begun_s)

    def _done_now(self, step: Journal | Settle | Keep) -> bool:
        if isinstance(step, Journal):
            return self._writer.wait(lambda: self._write(step))
        if isinstance(step, Keep):
            return self._delays.keep_now(step.items)
        return self._ledger.settle_now(step.marks)

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that are given up: no later commit names them."""
        self._order.forget_partitions(tps)
        self._record.commits.forget_partitions(tps)

    def start_over(self, tp: TopicPartition) -> None:
        """Drop a partition's unwritten ids: under its new incarnation, earlier ids do not identify duplicates."""
        self._order.forget_ids(tp)
        self._pipeline.count_unwritten(self._order.unwritten_bytes)
