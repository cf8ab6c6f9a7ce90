"""The main loop: one thread owns the source and the core, and does what the core asks. It decides nothing."""

from __future__ import annotations

import queue
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple, TypeAlias, assert_never

import structlog

from sidecar.core.effects import Claim, Commit, Effect, Flow, Reload, Report, Send, Store
from sidecar.core.parts import Batch
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Run, TopicPartition, group_label
from sidecar.daemon.committer import Committer, StepEnded
from sidecar.daemon.ids import MEMORY_BYTES, IdKeeper, IdsChanged, IdsSorted
from sidecar.daemon.record import Record
from sidecar.daemon.statewatch import StateWatch, tell_damages
from sidecar.errors import SidecarError
from sidecar.runtime.dead_letter_writer import DeadLetterWriter, LettersStored
from sidecar.runtime.ledger_worker import ClaimAnswered, LedgerWorker
from sidecar.runtime.senders import Answered, Senders
from sidecar.runtime.worker import Worker
from sidecar.sources.base import Assignment, ReadPast, Settled, Source
from sidecar.state.interface import PartitionSnapshot, State

REVOKE_DRAIN_S = 3.0
"""How long a rebalance waits for answers of what is being sent; the session lasts 9 s."""
SNAPSHOT_EVERY_S = 5.0
BUSY_POLL_S, OPEN_POLL_S = 0.005, 0.02

log = structlog.get_logger()


class _Snapped(NamedTuple):
    """A snapshot was written, or not."""

    reason: str
    """Why not; empty when it was."""


Told: TypeAlias = Answered | ClaimAnswered | LettersStored | StepEnded | IdsChanged | IdsSorted | _Snapped
"""What comes to the inbox."""


class Supervisor:
    """Runs the pipeline until `drain` is asked for and all is settled, or the drain time is over.

    Args:
        pipeline: The core.
        source: Where messages come from.
        senders: Deliver batches.
        inbox: Where senders and writer put what they have to tell.
        writer: Does what waits for the disk.
        state: What outlives the process.
        dead_letter_writer: Has dead letters kept.
        drain_timeout_s: How long a stop waits for what is in flight.
        ledger: Where business keys are claimed, if anywhere.
        ids_memory_bytes: `dedup.memory`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: Source,
        senders: Senders,
        inbox: queue.SimpleQueue[Told],
        writer: Worker,
        state: State,
        dead_letter_writer: DeadLetterWriter,
        drain_timeout_s: float,
        ledger: LedgerWorker | None = None,
        ids_memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.pipeline = pipeline
        self.ids = IdKeeper(pipeline, state.ids, writer, inbox, ids_memory_bytes)
        self.source = source
        self.record = Record()
        self.progressed_s = inf
        """When the loop last came round; it has not begun at first."""
        self._senders = senders
        self._inbox = inbox
        self._writer = writer
        self.ledger = ledger
        self._state = state
        self._watch = StateWatch(state, pipeline, self.record)
        self._committer = Committer(pipeline, source, writer, inbox, self.ids, ledger, self._watch, self.record)
        self._dead_letter_writer = dead_letter_writer
        self._drain_timeout_s = drain_timeout_s
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._reloading: set[TopicPartition] = set()
        self._snapping = False
        self._snapshot_at_s = time.monotonic() + SNAPSHOT_EVERY_S
        self._drain_until_s: float | None = None

    # The loop

    def drain(self) -> None:
        """Take in nothing more; `turn` tells when all is settled."""
        if self._drain_until_s is None:
            log.info("daemon.draining", timeout_seconds=self._drain_timeout_s)
            self._drain_until_s = time.monotonic() + self._drain_timeout_s
            self.pipeline.orders.drain()

    def turn(self) -> bool:
        """One round: take in answers, do what is due, read on. False when a stop is complete."""
        now_s = self.progressed_s = time.monotonic()
        self._take_inbox()
        for effect in self.pipeline.step(now_s * 1000):
            self._perform(effect)
        self._watch.tend(now_s)
        if now_s >= self._snapshot_at_s:
            self._snapshot()
        self.ids.tend(now_s)
        if self.ledger is not None:
            self.ledger.tend(now_s)
        if self._drain_until_s is not None and (
            self.pipeline.idle or self.pipeline.orders.state_lost or now_s > self._drain_until_s
        ):
            return False
        for found in self.source.poll(self._patience_s()):
            self._read(found)
        return True

    def _read(self, found: Run | ReadPast) -> None:
        if found.tp in self.ids.loading:
            self.ids.loading[found.tp].come.append(found)
        elif isinstance(found, Run):
            self.pipeline.read(found, time.monotonic() * 1000)
        else:
            self.pipeline.read_past(found.tp, found.position, time.monotonic() * 1000)

    def _patience_s(self) -> float:
        if self.pipeline.delivery.outbox.groups or self.pipeline.commits.outstanding:
            return BUSY_POLL_S
        return self.source.idle_poll_s if self.pipeline.idle else OPEN_POLL_S

    def _take_inbox(self, timeout_s: float = 0.0) -> None:
        now_ms = time.monotonic() * 1000
        while True:
            try:
                told = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
            except queue.Empty:
                return
            timeout_s = 0.0
            self._take(told, now_ms)

    def _take(self, told: Told, now_ms: float) -> None:
        match told:
            case Answered(batch_id, answer):
                self.record.send_seconds.observe(answer.elapsed_ms / 1000)
                self.pipeline.answered(batch_id, answer, now_ms, time.time_ns() // 1_000_000)
            case ClaimAnswered(number, verdicts):
                self.pipeline.claimed(number, verdicts, now_ms)
            case LettersStored(token, reason, letters):
                self.record.letters_stored(token, reason, letters, now_ms / 1000)
                self.pipeline.stored(token, ok=not reason, now_ms=now_ms)
            case _Snapped(reason):
                self._snapping = False
                self.record.snapped(reason)
            case StepEnded():
                self._committer.ended(told)
            case IdsChanged():
                self.ids.changed(told)
            case IdsSorted():
                self._take_sorted(told)
            case _:
                assert_never(told)

    def _take_sorted(self, told: IdsSorted) -> None:
        if (taken := self.ids.sorted(told)) is not None:
            self._begin([(taken.one, taken.known)])
            self._pause()
            for found in taken.come:
                self._read(found)

    # Effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(batch):
                self._log_batch(batch)
                self._senders.send(batch)
            case Commit(items):
                self._committer.begin(items)
            case Claim():
                assert self.ledger is not None
                self.ledger.claim(effect)
            case Store(token, letters):
                self._dead_letter_writer.store(token, letters)
            case Flow():
                self._pause()
            case Reload(tp, reason):
                log.warning("partition.reloaded", **tp.fields(), reason=reason)
                self.source.reload(tp)
            case Report(event, level, fields):
                self.event(event, level, fields)

    def _pause(self) -> None:
        loading = self.ids.loading.keys()
        self.source.pause(self.pipeline.gate.paused | loading | self.pipeline.origins.copies_of(loading))

    def _log_batch(self, batch: Batch) -> None:
        log.debug("batch.sent", group=group_label(batch.group), messages=batch.count, attempt=batch.attempt)

    # The listener

    def assigned(self, found: Sequence[Assignment]) -> None:
        """These partitions are ours from here on."""
        self.record.assigned()
        here = {one.tp for one in found}
        if not here or here - self._reloading:
            self.record.rebalances["assigned"] += 1
        self._reloading -= here
        for one in found:
            if not one.resumed:
                self._committer.begin_anew(one.tp)
        known = self._writer.wait(self._state.load_partitions) if found else {}
        self._begin([(one, known.get(one.tp)) for one in found if self.ids.take(one, known.get(one.tp))])
        if self.ids.loading:
            self._pause()
        names = [f"{one.tp}@{one.state.watermark}" for one in found]
        log.info("partitions.assigned", partitions=names[:50], count=len(names))

    def _begin(self, found: Iterable[tuple[Assignment, PartitionSnapshot | None]]) -> None:
        is_stale = False
        for one, known in found:
            self._assignments[one.tp] = one
            self.pipeline.assign(one.tp, one.scope, one.state, one.lineage)
            is_stale |= self._load_positions(one, known)
        if is_stale:
            rows = self._rows()
            self.record.snapped(self._writer.wait(lambda: self._save(rows)))

    def _load_positions(self, one: Assignment, known: PartitionSnapshot | None) -> bool:
        """What was settled in an earlier life is seen already; above the watermark a ledger tells it.

        Returns:
            Whether the folder's window must be written anew before anything is committed: it is of an incarnation that
            ends here, or some of it is not to be trusted.
        """
        settled = Settled(one.incarnation, one.state.watermark)
        if one.settled is not None and self.ledger is None:
            settled = one.settled
        same = known is not None and (known.topic_id, known.incarnation) == (one.topic_id, settled.incarnation)
        is_distrusted = False
        if known is not None and same and one.resumed:
            partition = self.pipeline.partitions[one.tp]
            is_distrusted = self.pipeline.intake.positions.load(partition, known.bitmaps, settled.below)
        return is_distrusted or settled.incarnation != one.incarnation

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """These partitions, all of them, will be revoked soon: read no more of them, and settle what was read."""
        self.pipeline.orders.leave(tps)
        return self.pipeline.has_settled(tps)

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are taken away when this returns: settle and commit what can be."""
        self.record.rebalances["revoked"] += 1
        self._reloading.clear()
        self.pipeline.partitions.fence(tps)
        deadline_s = time.monotonic() + REVOKE_DRAIN_S
        while self.pipeline.delivery.outbox.sending(set(tps)) and time.monotonic() < deadline_s:
            self._take_inbox(timeout_s=0.05)
        self._committer.now(tps, self._take_inbox)
        self._forget(tps, "partitions.revoked")

    def lost(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are another member's already: forget, commit nothing."""
        self.record.rebalances["lost"] += 1
        self._reloading.clear()
        self._forget(tps, "partitions.lost")

    def reloading(self, tp: TopicPartition) -> None:
        """This partition is given up, to be taken again from what is committed: forget, commit nothing."""
        self.record.rebalances["reloaded"] += 1
        self._reloading.add(tp)
        self._forget([tp], "partitions.lost")

    def _forget(self, tps: Collection[TopicPartition], event: str) -> None:
        released = sum(self.pipeline.books[tp].in_flight for tp in tps if tp in self.pipeline.books)
        self.pipeline.forget(tps)
        self.ids.forget(tps)
        self._committer.forget(tps)
        for tp in tps:
            self._assignments.pop(tp, None)
        log.info(event, partitions=[str(tp) for tp in tps][:50], count=len(tps), released=released)

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """The commit begun by `commit` ended."""
        self._committer.committed(results, elapsed_s)

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Something for the log."""
        if name == "commit.failed":
            self.record.commits.failed(str(fields["reason"]), fields)
        else:
            getattr(log, level)(name, **fields)

    def waiting(self, what: str) -> None:
        """The start waits for this."""
        self.record.waits_for = what

    # Snapshots

    def _snapshot(self) -> None:
        self._snapshot_at_s = time.monotonic() + SNAPSHOT_EVERY_S
        rows = [] if self._snapping else self._rows()
        if rows:
            self._snapping = True
            self._writer.do(lambda: self._inbox.put(_Snapped(self._save(rows))))

    def _rows(self) -> list[PartitionSnapshot]:
        """Only what is settled: what is in flight is new again after a crash."""
        rows = []
        for tp, one in self._assignments.items():
            partition = self.pipeline.partitions[tp]
            bitmaps = self.pipeline.intake.positions.dump(partition)
            mark, floor = partition.reach.committed, one.state.watermark
            rows.append(PartitionSnapshot(tp, one.topic_id, one.incarnation, mark, floor, bitmaps))
        return rows

    def _save(self, rows: list[PartitionSnapshot]) -> str:
        """On the writer thread; returns why it could not be written, empty when it was."""
        try:
            self._state.save_partitions(rows)
        except SidecarError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Commit and snapshot what is settled, then leave the group."""
        self._dead_letter_writer.close()  # it reads from the source and writes into the state
        self._committer.now(list(self.pipeline.partitions), self._take_inbox)
        rows = self._rows()
        self.record.snapped(self._writer.wait(lambda: self._save(rows)))
        self.source.close()
        try:
            self._writer.wait(self._state.forget_member)
        except SidecarError as error:  # the next start asks the group to remove a member that is gone: harmless
            log.warning("member.not_saved", reason=str(error))
        tell_damages(self._state)
