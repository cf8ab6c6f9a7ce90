"""The main loop: one thread owns the source and the core, and performs the core's effects. It decides nothing."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, assert_never

import structlog

from sidecar.core.effects import (
    CancelHeld,
    Claim,
    Commit,
    Effect,
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
from sidecar.core.parts import Batch
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import DeadLetter, TopicPartition, group_label
from sidecar.daemon.committer import Committer
from sidecar.daemon.delays.absent import NoDelays, NoTakeovers
from sidecar.daemon.feed import Feed
from sidecar.daemon.ids import MEMORY_BYTES, IdKeeper
from sidecar.daemon.mail import Mail
from sidecar.daemon.rebalances import RebalanceListener
from sidecar.daemon.record import LoopRecord
from sidecar.daemon.snapshots import Snapshots
from sidecar.daemon.statewatch import StateWatch
from sidecar.runtime.dead_letters import DeadLetterWriter
from sidecar.runtime.ledger_worker import NoLedger
from sidecar.runtime.worker import Senders, Worker
from sidecar.sources.base import Source
from sidecar.state.interface import State

log = structlog.get_logger()


class Effects:
    """Performs the core's effects."""

    def __init__(
        self,
        source: Source,
        senders: Senders,
        committer: Committer,
        ledger: NoLedger,
        dead_letter_writer: DeadLetterWriter,
        feed: Feed,
        listener: RebalanceListener,
        delays: NoDelays,
    ) -> None:
        self._delays = delays
        self._source = source
        self._senders = senders
        self._committer = committer
        self._ledger = ledger
        self._dead_letter_writer = dead_letter_writer
        self._feed = feed
        self._listener = listener
        self.letters_tap: Callable[[Sequence[DeadLetter]], None] | None = None
        """Called with dead letters while a tap is open."""

    def perform(self, effect: Effect) -> None:
        """Perform an effect, or begin to: its end goes to the inbox."""
        match effect:
            case Send(batch):
                self._log_batch(batch)
                self._senders.send(batch)
            case Commit(items):
                self._committer.begin(items)
            case Claim():
                self._ledger.claim(effect)
            case StoreDeadLetters(token, letters):
                traced = self._delays.traced(letters)
                if self.letters_tap is not None:
                    self.letters_tap(traced)
                self._dead_letter_writer.store(token, traced)
            case HoldUntilDue() | CancelHeld() | Park() | Fetch() | Unpark():
                self._delays.perform(effect)
            case Flow(paused):
                self._feed.flow(paused)
            case Reload(tp, reason):
                log.warning("partition.reloaded", **tp.fields(), reason=reason)
                self._reload(tp)
            case Report(event, level, fields):
                self._listener.event(event, level, fields)
            case _:
                assert_never(effect)

    def _reload(self, tp: TopicPartition) -> None:
        if not tp.delayed:
            self._source.reload(tp)
            return
        self._committer.forget([tp])
        self._delays.reload(tp)

    def _log_batch(self, batch: Batch) -> None:
        log.debug("batch.sent", group=group_label(batch.group), messages=batch.count, attempt=batch.attempt)


class Supervisor:
    """Runs the pipeline until `drain` is called and all is settled, or the drain time is over.

    Args:
        inbox: Takes the results of senders and writer.
        state: The state that outlives the process.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: Source,
        senders: Senders,
        inbox: queue.SimpleQueue[Any],
        writer: Worker,
        state: State,
        dead_letter_writer: DeadLetterWriter,
        ledger: NoLedger | None = None,
        ids_memory_bytes: int = MEMORY_BYTES,
        delays: NoDelays | None = None,
    ) -> None:
        ledger = ledger or NoLedger()
        self.delays = delays = delays or NoDelays(NoTakeovers())
        self.pipeline = pipeline
        self.source = source
        self.senders = senders
        self.record = record = LoopRecord()
        self.progressed_s = inf
        """Time of the loop's last round; infinite before the first."""
        self.emptied_s = 0.0
        """Time of the last round that left no arrived message unread."""
        self.ids = ids = IdKeeper(pipeline, state.ids, writer, inbox, ids_memory_bytes)
        snapshots = Snapshots(pipeline, state, writer, inbox, record)
        self._feed = feed = Feed(pipeline, source, ids, snapshots, delays, has_ledger=ledger.is_there)
        watch = StateWatch(state, pipeline, record)
        committer = Committer(pipeline, source, writer, inbox, ids, ledger, watch, record, delays)
        self._mail = Mail(inbox, pipeline, record, committer, ids, feed, snapshots, delays.receivers(feed.give))
        self.listener = RebalanceListener(pipeline, record, committer, ids, feed, snapshots, self._mail, delays)
        """The source's listener."""
        self.effects = Effects(source, senders, committer, ledger, dead_letter_writer, feed, self.listener, delays)
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
        now_s = self.progressed_s = time.monotonic()
        self.delays.take_ends()  # a commit may wait for them
        self._mail.take()
        for effect in self.pipeline.step(now_s * 1000):
            self.effects.perform(effect)
        self.delays.tend(now_s * 1000)
        for component in self._tended:
            component.tend(now_s)
        if self._drain_until_s is not None and (
            self.pipeline.idle or self.pipeline.state_lost or now_s > self._drain_until_s
        ):
            return False
        self._feed.poll()
        if self.source.is_emptied:
            self.emptied_s = now_s
        return True
