"""The main loop: one thread owns the source and the core, and performs its effects. It decides nothing."""

from __future__ import annotations

import queue
import time

import structlog

from sidecar.core.effects import (
    CancelHeld,
    Claim,
    Commit,
    Fetch,
    Flow,
    HoldUntilDue,
    Park,
    Reload,
    Report,
    Send,
    StoreDeadLetters,
    Unpark,
)
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, group_label
from sidecar.daemon.committer import Committer
from sidecar.daemon.delays.absent import NoDelays, NoTakeovers
from sidecar.daemon.feed import Feed
from sidecar.daemon.rebalances import RebalanceListener
from sidecar.daemon.record import LoopRecord
from sidecar.daemon.snapshots import Snapshots
from sidecar.daemon.statewatch import StateWatch
from sidecar.daemon.taken import MEMORY_BYTES, NoIdKeeper
from sidecar.runtime.dead_letters import DeadLetterWriter
from sidecar.runtime.no_ledger import NoLedger
from sidecar.runtime.worker import Call, Perform, PipelineLoop, Senders, Worker, write_report
from sidecar.sources.base import Source
from sidecar.state.interface import State

log = structlog.get_logger()


class Supervisor:
    """Runs the pipeline until `drain` is called and all is settled, or the drain time is over."""

    def __init__(
        self,
        pipeline: Pipeline,
        source: Source,
        senders: Senders,
        inbox: queue.SimpleQueue[Call],
        writer: Worker,
        state: State,
        dead_letter_writer: DeadLetterWriter,
        ledger: NoLedger | None = None,
        ids_memory_bytes: int = MEMORY_BYTES,
        delays: NoDelays | None = None,
    ) -> None:
        self.ledger = ledger = ledger or NoLedger()
        self.delays = delays = delays or NoDelays(NoTakeovers())
        self.pipeline = pipeline
        self.source = source
        self.senders = senders
        self.record = record = LoopRecord()
        self.ids = ids = NoIdKeeper(state.ids, writer)
        if pipeline.remembers_ids:
            from sidecar.daemon.ids import IdKeeper

            self.ids = ids = IdKeeper(pipeline, state.ids, writer, inbox, ids_memory_bytes)
        snapshots = Snapshots(pipeline, state, writer, inbox, record)
        self._feed = feed = Feed(pipeline, source, ids, snapshots, delays, has_ledger=ledger.is_there)
        watch = StateWatch(state, pipeline, record)
        committer = Committer(pipeline, source, writer, inbox, ids, ledger, watch, record, delays)

        def send(effect: Send) -> None:
            batch = effect.batch
            log.debug("batch.sent", group=group_label(batch.group), messages=batch.count, attempt=batch.attempt)
            senders.send(batch, answered)

        def answered(batch_id: int, answer: Answer, now_ms: float) -> None:
            record.send_seconds.observe(answer.elapsed_ms / 1000)
            pipeline.answered(batch_id, answer, now_ms, time.time_ns() // 1_000_000)

        def store(effect: StoreDeadLetters) -> None:
            letters = delays.owned.traced(effect.letters)

            def stored(reason: str, now_ms: float) -> None:
                record.letters_stored(effect.token, reason, len(letters), now_ms / 1000)
                pipeline.stored(effect.token, ok=not reason, now_ms=now_ms)

            dead_letter_writer.store(letters, stored)

        def reload(effect: Reload) -> None:
            tp = effect.tp
            log.warning("partition.reloaded", **tp.fields(), reason=effect.reason)
            if tp.delayed:
                committer.forget_partitions([tp])
                delays.owned.reload(tp)
            else:
                source.reload(tp)

        performers: dict[type, Perform] = {
            Send: send,
            Commit: lambda effect: committer.begin_commit(effect.items),
            Claim: lambda effect: ledger.claim(effect, pipeline.claimed),
            StoreDeadLetters: store,
            **dict.fromkeys((HoldUntilDue, CancelHeld, Park, Fetch, Unpark), delays.perform),
            Flow: lambda effect: feed.flow(effect.paused),
            Reload: reload,
            Report: write_report,
        }
        self._loop = loop = PipelineLoop(pipeline, inbox, performers)
        self.listener = RebalanceListener(pipeline, record, committer, ids, feed, snapshots, loop.take, delays)
        """The source's listener."""
        self._tended = watch, snapshots, ids, ledger
        self._drain_until_s: float | None = None

    @property
    def is_loading(self) -> bool:
        """Whether there are assigned partitions that the core does not have yet."""
        return self._feed.is_loading

    def drain(self, timeout_s: float) -> None:
        """Stop reading; `turn` returns False once all is settled, or this much time is over."""
        if self._drain_until_s is None:
            log.info("daemon.draining", timeout_seconds=timeout_s)
            self._drain_until_s = time.monotonic() + timeout_s
            self.pipeline.drain()

    def turn(self) -> bool:
        """Run one round: take answers, do what is due, read. Return False when a stop is complete."""
        now_s = self.record.progressed_s = time.monotonic()
        self.delays.take_ends()  # a commit may wait for them
        self._loop.take()
        self._loop.step(now_s * 1000)
        self.delays.tend(now_s * 1000)
        for component in self._tended:
            component.tend(now_s)
        if self._drain_until_s is not None and (
            self.pipeline.idle or self.pipeline.state_lost or now_s > self._drain_until_s
        ):
            return False
        self._feed.poll()
        if self.source.is_emptied:
            self.record.emptied_s = now_s
        return True
