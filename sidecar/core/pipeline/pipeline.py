"""The daemon's decisions: takes (event, now), returns effects. No thread, socket, clock, random number, file or logger.

This is the only door to the core. Events are methods; `step` cuts, commits and sends what is due, and returns all
effects since the last step, which the caller performs in their order. Times are monotonic milliseconds.

| effect | answered by | otherwise an event |
|---|---|---|
| `Flow` | | `read`, `read_past`: messages, or offsets without messages, of a partition that is not paused |
| `Send` | `answered` | |
| `Commit` | `committed` | `begin_commit`: a commit of some partitions now, as at a revocation |
| `Claim` | `claimed` | |
| `StoreDeadLetters` | `stored` | |
| `HoldUntilDue` | `held` | `know_held`: what the store has of a partition that was just taken; `moved` |
| `CancelHeld` | `cancelled` | |
| `Park`, `Unpark` | `parked` | `restore_parked`: the parts that the store has of a partition that was just taken |
| `Fetch` | `fetched`, `not_fetched` | |
| `Reload` | `forget_partitions`, `assign` | `assign`, then `load_settled`; then `fence`, `forget_partitions` |
| `Report` | | |

An answer to an earlier ownership of a partition is ignored. The shell may also ask for a state: `drain`, `leave`,
`rest`, `lose_state`, `fill_store`. What it reads are values: `status`, `open_messages`, `held_up`, `patience_ms`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import inf
from typing import TYPE_CHECKING, get_args

from pyroaring import BitMap64

from sidecar.core.books import Accounts, OpenMessages
from sidecar.core.cutting import BatchRules, Cutter
from sidecar.core.delivery.delivery import A_COMMIT, AN_ANSWER, DeliveryPipeline
from sidecar.core.delivery.outbox import Stage
from sidecar.core.delivery.output import Fetched, GivenUp, Outcome, Output, Settled
from sidecar.core.delivery.pace import A_SENDER
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import CancelHeld, CommitItem, Effect, Fetch, HoldUntilDue, Park
from sidecar.core.intake.intake import Intake, ShowRun
from sidecar.core.intake.known import HoleError
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.lineage import Fingerprint, Lineage
from sidecar.core.partition.partition import Partition
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import PartitionState, Stores
from sidecar.core.parts import Barrier, Batch
from sidecar.core.pipeline.commit_order import SettledIds
from sidecar.core.pipeline.commits import COMMIT_SPACING_MS, Commits
from sidecar.core.pipeline.gate import Gate, Orders
from sidecar.core.pipeline.puts import Puts
from sidecar.core.pipeline.status import PipelineStatus, open_messages, status_of
from sidecar.core.records import Parked, Run, TopicPartition
from sidecar.core.windows.bitmap import IdCounts

if TYPE_CHECKING:
    from sidecar.core.messages.tag_index import TagIndex
    from sidecar.core.windows.idruns import SortedRun

BUSY_MS, OPEN_MS = 5.0, 20.0
"""Longest waits of the shell for the source while batches are outstanding, or messages are open."""
SETTLE_DELAY_MS = 200
"""Time that a commit waits for more messages to settle."""


class Pipeline(DeliveryPipeline):
    """Conducts reading, cutting, commits and delivery; each knows only lower modules, and none knows this class.

    Args:
        jitter: Uniform in [0, 1); the only source of chance.
    """

    EFFECTS = get_args(Effect)

    def __init__(
        self, reading: ReadingRules, batching: BatchRules, rules: DeliveryRules, jitter: Callable[[], float]
    ) -> None:
        super().__init__(rules, jitter)
        self._batching, self._rules = batching, rules
        self._digest = reading.digest
        self._output = Output()
        self.books = Accounts()
        self.intake = Intake(reading)
        groups, has_ids = self.delivery.outbox.groups, reading.ids is not None
        lingers_ms = self.delivery.parker.lingers_ms
        self.cutter = Cutter(batching, self.partitions, groups, self.memory, lingers_ms, ids=has_ids)
        self.commits = Commits(self.partitions, self.intake.identities)
        self.puts = Puts(self.partitions, self.intake)
        self._is_starved = False
        """Whether a sender was free while the commit was under way."""
        self.orders = orders = Orders()
        self.gate = Gate(batching, orders, self.partitions, self.intake.identities, self.delivery, self.memory)

    # Ownership

    def assign(self, tp: TopicPartition, scope: str, state: PartitionState, lineage: Lineage = Lineage()) -> None:  # noqa: B008
        """Take a partition, starting from the predecessor's state."""
        self.forget_partitions([tp])
        self.partitions.take_partition(tp, scope, state, lineage)
        self.gate.assigned(tp)
        self.books.open(tp)
        self.commits.touch(tp, 0.0)  # commit a new group's start now: `latest` must not move while no message arrives
        if state.lanes or state.shared or state.seen > state.watermark:
            pending = sum(len(lane.intents) for lane in state.lanes.values()) + len(state.shared)
            self._output.report(
                "partition.resumed", **tp.fields(), watermark=state.watermark, seen=state.seen, intents=pending
            )

    def forget_partitions(self, tps: Iterable[TopicPartition]) -> None:
        """Drop partitions that are no longer owned: unsettled messages are released, late answers are ignored."""
        for tp in tps:
            self.commits.forget_partition(tp)
            self.orders.leaving -= {tp}
            self.puts.forget_partition(tp)
            partition = self.partitions.close(tp)
            if partition is not None:
                self.delivery.forget_partition(partition)
                self.cutter.units.forget_partition(tp)
                self.books.release(tp)
                self.intake.forget_partition(tp)

    def fence(self, tps: Iterable[TopicPartition]) -> None:
        """Cut, send and commit nothing more of partitions that are about to be revoked."""
        self.partitions.fence(tps)

    def limit(self, budget: StateBudget) -> None:
        """Bound the state of partitions that are taken from now on."""
        self.partitions.limit(budget)

    @property
    def owned(self) -> Collection[TopicPartition]:
        """The owned partitions, a view."""
        return self.partitions.keys()

    def epoch(self, tp: TopicPartition) -> int | None:
        """The number of the partition's present ownership; None if it is not owned."""
        partition = self.partitions.get(tp)
        return None if partition is None else partition.epoch

    def is_sending(self, tps: Collection[TopicPartition]) -> bool:
        """Whether a batch with parts of these partitions is being sent."""
        return self.delivery.outbox.sending(set(tps))

    def in_flight(self, tps: Iterable[TopicPartition]) -> int:
        """Number of messages of these partitions that are read and not settled."""
        return sum(self.books[tp].in_flight for tp in tps if tp in self.books)

    def has_settled(self, tps: Iterable[TopicPartition]) -> bool:
        """Whether all messages read of these partitions, by this owner or an earlier one, are settled."""
        ours = self.partitions.keys() & set(tps)
        return not any(self.books[tp].in_flight or self.partitions[tp].reach.replaying for tp in ours)

    # Reading

    def read(self, run: Run, now_ms: float) -> None:
        """Take a run from the broker and decide, once, about each of its messages."""
        partition = self.partitions.get(run.tp)
        if partition is None:
            return
        if run.tp in self.gate.awaiting():  # it arrived before the partition could be paused
            self._apply(GivenUp(run.tp, "what its messages may be copies of is read again first"), now_ms)
            return
        reach = partition.reach
        try:
            # Below `seen` recovered intents decide; from there on nothing was ever cut. So the run is divided there.
            if reach.replaying and run.last >= reach.seen:
                again, run = self.intake.divide(run, reach.seen)
                if again is not None:
                    self._read(partition, again, now_ms)
                self._read_past(run.tp, reach.seen, now_ms)
            self._read(partition, run, now_ms)
        except HoleError as hole:
            self._apply(GivenUp(run.tp, f"{hole} was skipped before"), now_ms)

    def _read(self, partition: Partition, run: Run, now_ms: float) -> None:
        sorted_run, before_bytes = self.intake.sort(partition, run, now_ms), self.memory.held_bytes
        books = self.books[run.tp]
        count = books.read_out if run.tp.delayed else books.read
        messages = len(run.messages) + len(run.unwanted)
        count(messages, sorted_run.duplicate, sorted_run.filtered)
        self.memory.held_bytes += sorted_run.collected_bytes
        if sorted_run.delayed:
            self._output.effects.append(self.puts.hold(partition, sorted_run))
        if sorted_run.cancels:
            self._output.effects.append(self.puts.cancel(partition, sorted_run.cancels))
        if self._digest is not None and not run.tp.delayed:
            partition.dues.read(Fingerprint(run.last, self._digest(run.messages[-1])))
        if sorted_run.opened:
            cut = self.cutter.open(partition, sorted_run.opened, now_ms)
            if cut is not None:
                for part in cut:
                    self.delivery.cut([part])
                self.commits.touch(run.tp, now_ms)
                self._output.report("partition.joint", **run.tp.fields())
        self.gate.has_read(self.memory.held_bytes - before_bytes)
        self._read_past(run.tp, run.last + 1, now_ms, messages)
        if sorted_run.is_all_unwanted:
            self._tell_unwanted()

    def _tell_unwanted(self) -> None:
        count, tags = self.intake.unwanted.count, self.intake.unwanted_tags
        self._output.report("messages.all_filtered", "warning", count=count, tags=tags)

    def know_held(self, tp: TopicPartition, offsets: BitMap64, stores: Stores) -> int:
        """Take, right after `assign`, what the store of delayed messages has.

        Args:
            offsets: The offsets of its messages, at or above `seen`.
            stores: This store and those of earlier owners.

        Returns:
            The token with which `held` is to be called once that is durable.
        """
        return self.puts.know(tp, offsets, stores)

    def seen(self, tp: TopicPartition) -> int | None:
        """The next offset that no owner ever read; None if the partition is not owned."""
        partition = self.partitions.get(tp)
        return None if partition is None else partition.reach.seen

    def committed_watermark(self, tp: TopicPartition) -> int | None:
        """The durable watermark; None if the partition is not owned."""
        partition = self.partitions.get(tp)
        return None if partition is None else partition.reach.committed

    def is_replaying(self, tp: TopicPartition) -> bool:
        """Whether messages of an owned partition that an earlier owner had read are being read again."""
        return self.partitions[tp].reach.replaying

    def unproven_from(self, tp: TopicPartition) -> int | None:
        """The position from which on nothing may be read out of the store yet; None if there is none."""
        return self.partitions[tp].holding.deliverable_below

    @property
    def tag_index(self) -> TagIndex | None:
        """Decides which held messages cannot be wanted; None if all may be."""
        return self.intake.reading.tag_index

    @property
    def is_tapped(self) -> bool:
        """Whether a tap sees each run, and so must see all messages."""
        return self.intake.tap is not None

    def is_behind(self, tp: TopicPartition) -> bool:
        """Whether the next messages to read are in the store already: until they are read, it delivers nothing."""
        return self.partitions[tp].holding.is_behind

    def moved(self, tp: TopicPartition, position: int) -> None:
        """Record the new position of a held message of an owned partition, which may be unproven."""
        self.partitions[tp].holding.moved(position)

    def count_held(self, tp: TopicPartition, messages: int) -> None:
        """Count messages that a store has held since before its partition, `tp`, was taken."""
        self.books[tp].restore(messages)

    def count_cancelled(self, tp: TopicPartition, messages: int) -> None:
        """Count held messages as cancelled."""
        self.books[tp].cancel(messages)

    def expects(self, asked: HoldUntilDue | CancelHeld | Park) -> bool:
        """Whether the ownership that made this request continues, and still waits for its end."""
        if isinstance(asked, Park):
            partition = self.partitions.get(asked.tp)
            return partition is not None and partition.parking.expects(asked.record)
        return self.puts.expects(asked)

    def held(self, tp: TopicPartition, token: int, position: int, now_ms: float) -> None:
        """Record that the messages of each `HoldUntilDue` up to a token are durable in the store.

        Args:
            token: The token of the last `HoldUntilDue`.
            position: The lowest position that the store gave to one of these messages.
            now_ms: Monotonic time.
        """
        count = self.puts.end_puts(tp, token, position)
        if count:
            self._apply(Settled(tp, "delayed", count), now_ms)

    def cancelled(self, tp: TopicPartition, token: int) -> None:
        """Record that each `CancelHeld` up to a token is durable in the store."""
        self.puts.cancelled(tp, token)

    def prove(self, tp: TopicPartition, now_ms: float) -> Barrier:
        """A barrier that is durable once a commit that begins later has proved that the partition is owned."""
        self.commits.touch(tp, now_ms)
        return self.partitions[tp].dues.barrier()

    def read_past(self, tp: TopicPartition, position: int, now_ms: float) -> None:
        """Record that nothing below `position` is left to read, neither messages nor gaps."""
        partition = self.partitions.get(tp)
        if partition is not None and self.intake.passed(max(0, position - partition.reach.position)):
            self._tell_unwanted()
        self._read_past(tp, position, now_ms)

    def _read_past(self, tp: TopicPartition, position: int, now_ms: float, messages: int = 0) -> None:
        partition = self.partitions.get(tp)
        if partition is None or position <= partition.reach.position:
            return
        for part in partition.read_past(position, messages):
            if part.group in part.intent.fresh:
                self.delivery.cut([part])
            else:
                self.delivery.known(part)
        self.commits.touch(tp, now_ms + SETTLE_DELAY_MS)
        self._apply_outcomes(now_ms)

    # Results

    def _apply(self, outcome: Outcome, now_ms: float) -> None:
        if isinstance(outcome, Settled):
            self.books[outcome.tp].settle(outcome.outcome, outcome.messages)
            self.commits.touch(outcome.tp, now_ms + SETTLE_DELAY_MS)
        elif isinstance(outcome, Fetched):
            self.books[outcome.tp].fetch(outcome.messages)
        elif isinstance(outcome, GivenUp):
            self.forget_partitions([outcome.tp])  # at once: a commit in this very step would settle skipped messages
            self.commits.reload(outcome.tp, outcome.reason)
        else:
            self.commits.touch(outcome.tp, now_ms)

    def committed(self, results: Mapping[TopicPartition, bool], now_ms: float) -> None:
        """Handle the end of the outstanding commit; partitions missing in `results` failed and are retried."""
        self.commits.ended(results, now_ms)
        self.delivery.outbox.release_durable()
        if any(results.values()):
            self.cutter.committed(starved=self._is_starved)
        self._is_starved = False

    # Offsets and ids of earlier processes

    def load_settled(self, tp: TopicPartition, dumped: tuple[bytes, bytes], below: int) -> bool:
        """Take, right after `assign`, the offsets that an earlier process settled, see `Positions.load`.

        Raises:
            ValueError: They are of another form.
        """
        return self.intake.positions.load(self.partitions[tp], dumped, below)

    def settled_offsets(self, tp: TopicPartition) -> tuple[tuple[bytes, bytes], int]:
        """The settled offsets of an owned partition, for `load_settled`, and the durable watermark."""
        partition = self.partitions[tp]
        return self.intake.positions.dump(partition), partition.reach.committed

    @property
    def remembers_ids(self) -> bool:
        """Whether messages have ids that are compared here."""
        return self.intake.identities.remembered

    def limit_ids(self, newest: int) -> None:
        """Set how many of the newest ids of all partitions are kept outside of sorted runs."""
        self.intake.identities.resize(newest)

    def restore_ids(
        self,
        tp: TopicPartition,
        runs: Mapping[int, Sequence[SortedRun]],
        begun_ms: Mapping[int, float],
        now_ms: float,
        decided: int,
    ) -> int:
        """Take the ids that an earlier process stored, before `assign`; return their number.

        Args:
            runs: The ids by generation.
            begun_ms: Start of each generation, in monotonic time; now, if unknown.
            decided: The highest offset of messages that these ids may have decided.
        """
        return self.intake.identities.restore(tp, runs, begun_ms, now_ms, decided)

    def install_ids(self, tp: TopicPartition, runs: Mapping[int, Sequence[SortedRun]]) -> None:
        """Use all runs of ids that the shell stored of a partition, by generation."""
        self.intake.identities.install(tp, runs)

    # Parked parts

    def restore_parked(self, tp: TopicPartition, found: Sequence[Parked], counted: int, now_ms: float) -> None:
        """Take over, right after `assign`, the parts that the store has.

        Args:
            counted: The number of the last part that counts.
            now_ms: Monotonic time.
        """
        if not self.intake.identities.remembered or tp.delayed:
            found = [record._replace(ids=b"") for record in found]
        messages = self.delivery.parker.restore(tp, found, counted, now_ms)
        self.books[tp].restore(0, messages)
        for record in found:
            if record.ids and record.number <= counted:
                self.intake.identities.know(self.partitions[tp], array("q", record.ids), now_ms)
        if tp.delayed and messages:
            parked = (record.parked.offsets for record in self.partitions[tp].parking.stored.values())
            self.intake.positions.leave_out(tp, parked)

    def parked(self, tp: TopicPartition, number: int, now_ms: float) -> None:
        """Record that the parts of each `Park` up to a number are durable in the store."""
        self.delivery.parker.stored(tp, number)
        self._apply_outcomes(now_ms)

    def parked_part(self, tp: TopicPartition, number: int) -> Parked:
        """The parked part of an owned partition with this number."""
        return self.partitions[tp].parking.stored[number].parked

    def parked_with(self, tp: TopicPartition, offset: int) -> Parked | None:
        """The parked part that has the message at this offset; None if there is none."""
        partition = self.partitions.get(tp)
        records = () if partition is None else partition.parking.stored.values()
        return next((record.parked for record in records if offset in record.parked.offsets), None)

    def not_fetched(self, fetch: Fetch) -> None:
        """Record that the rows of a parked part could not be read: they are asked for again."""
        self.delivery.parker.not_fetched(fetch)

    def fetched(self, tp: TopicPartition, number: int, rows: bytes, now_ms: float) -> None:
        """Take the rows of a parked part, which the store has."""
        self.delivery.parker.fetched(tp, number, rows)
        self._apply_outcomes(now_ms)

    # Requests of the shell

    def drain(self) -> None:
        """Stop reading and cut all that is open, until everything is settled or the process ends."""
        self.orders.draining = True

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self.orders.draining

    def leave(self, tps: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions and cut them at once: their next owner will know only the watermark."""
        self.orders.leaving = frozenset(tps)

    def lose_state(self, reason: str) -> None:
        """Stop reading while stored state would be lost, for this reason; an empty text ends it."""
        self.orders.state_lost = reason

    @property
    def state_lost(self) -> str:
        """The last reason of `lose_state`; empty if there is none."""
        return self.orders.state_lost

    def fill_store(self, reason: str) -> None:
        """Read no partition but delayed messages while their store is full, for this reason; an empty text ends it."""
        self.orders.store_full = reason

    @property
    def store_full(self) -> str:
        """The last reason of `fill_store`; empty if there is none."""
        return self.orders.store_full

    def count_unwritten(self, nbytes: int) -> None:
        """Set the bytes of settled ids that are not written yet."""
        self.orders.unwritten_bytes = nbytes

    def tap(
        self,
        runs: ShowRun | None,
        batches: Callable[[Batch], None] | None,
    ) -> None:
        """Set the taps: for each run with its outcome, and for each batch accepted as a whole; None for no tap."""
        self.intake.tap, self.delivery.delivered.tap = runs, batches

    # Changed rules

    def rest(self, *, resting: bool = True) -> None:
        """Stop reading and cut at once, until nothing is open: then the rules of reading can change."""
        self.orders.resting = resting

    @property
    def resting(self) -> bool:
        """Whether `rest` was asked for."""
        return self.orders.resting

    @property
    def failing_groups(self) -> list[str]:
        """The groups whose last send failed, or else those with parked parts."""
        groups = self.delivery.outbox.groups
        return [group.name for group in groups.all_failing()] or list(groups.parked)

    def change(self, batching: BatchRules, rules: DeliveryRules) -> None:
        """Continue with other limits, waits and bounds; the rules that decide where a message goes stay."""
        for mine, other in ((self._batching, batching), (self._rules, rules)):
            for field in fields(mine):
                setattr(mine, field.name, getattr(other, field.name))
        self.cutter.change()
        self.delivery.pace.restart()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is open, outstanding or parked, and all is committed."""
        return self.idle and not self.delivery.outbox.groups.parked

    def change_reading(
        self, reading: ReadingRules, batching: BatchRules, rules: DeliveryRules, now_ms: float
    ) -> dict[TopicPartition, Barrier]:
        """Change filter, groups and framing from now on, while all is quiet.

        A part is a group's messages in a range of offsets, so a part cut before would have other members.

        Returns:
            By partition, a barrier that is durable once a commit under the new rules was made.
        """
        assert self.is_quiet
        self.intake.change(reading)
        self.partitions.separate(rules.separator)
        self.change(batching, rules)
        return {tp: self.prove(tp, now_ms) for tp in self.partitions}

    # The clock

    def step(self, now_ms: float) -> list[Effect]:
        """Cut, commit and send what is due; return all effects since the last step."""
        half = self._batching.span_max // 2
        wide = [] if self.idle else [each for each in self.partitions.values() if each.reach.span > half]
        self.cutter.fit(self.delivery.pace.body_max_bytes(now_ms), self.delivery.pace.concurrency)
        if self.commits.may_begin(now_ms):  # until then, open messages wait for no less than their part would
            leaving = self.partitions.keys() if self.orders.resting else self.orders.leaving
            for parts in self.cutter.step(now_ms, COMMIT_SPACING_MS, self.gate.pressure(), wide, leaving):
                self.delivery.cut(parts)
                for part in parts:
                    self.commits.touch(part.tp, now_ms)
        self._output.effects += self.commits.due(now_ms, hurry=self.orders.draining or self.orders.resting)
        self.delivery.step(now_ms, fetches=not self.orders.draining)
        self._is_starved |= bool(self.commits.outstanding) and not self.delivery.waits_for(now_ms)
        self._apply_outcomes(now_ms)
        flow = self.gate.flow(wide)
        if flow is not None:
            self._output.effects.append(flow)
        return self._output.take_effects() + self.delivery.output.take_effects()

    # Committing

    def begin_commit(self, tps: Iterable[TopicPartition]) -> list[CommitItem]:
        """Begin a commit of these partitions now; `committed` must follow. Empty if nothing changed."""
        return self.commits.begin_commit(tps)

    def take_held_ids(self) -> list[SettledIds]:
        """Remove and return the ids of held messages; the commit under way settles them."""
        return list(self.commits.held_ids())

    # Reading, from the source's side

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are not read."""
        return self.gate.paused

    def copies_of(self, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        """Partitions with copies of messages of these: they wait until the ids of these are known."""
        return self.gate.copies_of(tps)

    def patience_ms(self, now_ms: float) -> float:
        """How long nothing need be read or done; infinite if nothing is under way."""
        if self.commits.outstanding:  # batches wait for its end, which may be far away
            return min(BUSY_MS, (now_ms - self.commits.begun_ms) / 4)
        if self.delivery.outbox.groups:
            return BUSY_MS
        return inf if self.idle else min(OPEN_MS, self.cutter.patience_ms(now_ms))

    # Status

    def status(self) -> PipelineStatus:
        """All counts, and what is wrong at present."""
        parts = self.partitions, self.books, self.gate, self.delivery, self.intake, self.cutter
        return status_of(*parts)

    def open_messages(self) -> OpenMessages:
        """The unsettled messages of each partition and group."""
        return open_messages(self.partitions)

    def remembered_ids(self) -> IdCounts:
        return self.intake.identities.count()

    def close_books(self, now_ms: float) -> None:
        """Keep only the sum of the books of partitions that have not been owned for some seconds."""
        self.books.close(self.partitions.keys(), now_ms)

    def held_up(self, now_ms: float) -> Iterator[tuple[str, str | None, float]]:
        """Messages that wait for something other than a retry: the reason, the group, since when the oldest is open.

        The group is None if all groups of a partition wait together.
        """
        waits_for = self.delivery.waits_for(now_ms)
        for (_, group), since_ms in self.cutter.held_up(now_ms):
            yield waits_for or A_COMMIT, group, since_ms
        outbox = self.delivery.outbox
        # An answer is last: it is the reason for messages of which only some are being sent.
        stages = {A_COMMIT: Stage.HELD_BACK, waits_for or A_SENDER: Stage.READY, AN_ANSWER: Stage.SENDING}
        for what, stage in stages.items():
            for batch in outbox.batches(stage):
                if not outbox.groups.failing(batch.group):
                    yield what, batch.group, batch.since_ms

    @property
    def idle(self) -> bool:
        """Whether all messages read, by this owner or an earlier one, are settled and committed."""
        idle = self.delivery.idle and not self.cutter.units and self.commits.idle and self.puts.idle
        return idle and not self.partitions.replaying
