"""The daemon's decisions: takes (event, now), returns effects. No thread, socket, clock, random number, file or logger.

Events are methods: `assign`, `read`, `read_past`, `held`, `cancelled`, `committed`, `claimed`, `answered`, `stored` and
`forget`. `step` cuts, commits and sends what is due and returns all effects since the last step. Times are monotonic
milliseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields

from sidecar.core.books import Accounts
from sidecar.core.cutting.cutting import BatchRules, Cutter
from sidecar.core.cutting.memory import Memory
from sidecar.core.delivery.delivery import A_COMMIT, Delivery
from sidecar.core.delivery.output import Fetched, GivenUp, Outcome, Output, Settled
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Effect
from sidecar.core.intake.intake import Intake
from sidecar.core.intake.positions import HoleError
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.intents import Barrier
from sidecar.core.lineage import Fingerprint, Lineage
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.partition.partition import Partition
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.commits import COMMIT_SPACING_MS, Commits
from sidecar.core.pipeline.gate import Gate, Orders
from sidecar.core.pipeline.origins import Origins
from sidecar.core.pipeline.puts import Puts
from sidecar.core.records import Answer, Parked, Run, TopicPartition

SETTLE_DELAY_MS = 200
"""Time that a commit waits for more messages to settle."""


class Pipeline:
    """Conducts reading, cutting, commits and delivery; each knows only lower modules, and none knows this class.

    Args:
        jitter: Uniform in [0, 1); the only source of chance.
    """

    def __init__(
        self, reading: ReadingRules, batching: BatchRules, rules: DeliveryRules, jitter: Callable[[], float]
    ) -> None:
        separator = reading.framer.separator
        self._batching, self._rules = batching, rules
        self._digest = reading.digest
        self._output = Output()
        self.partitions = Ownerships(separator)
        self.books = Accounts()
        self.memory = Memory()
        self.intake = Intake(reading)
        self.delivery = Delivery(rules, self.partitions, self.memory, jitter)
        groups, has_ids = self.delivery.outbox.groups, reading.ids is not None
        self.cutter = Cutter(
            batching, rules.concurrency, self.partitions, groups, self.memory,
            self.delivery.parker.lingers_ms, ids=has_ids,
        )  # fmt: skip
        self.commits = Commits(self.partitions, self.intake.identities)
        self.origins = Origins(self.partitions, self.intake.identities, any_copies=reading.copies is not None)
        self.puts = Puts(self.partitions, self.intake)
        self._is_starved = False
        """Whether a sender was free while the commit was under way."""
        self.orders = Orders()
        self.gate = Gate(batching, self.orders, self.partitions, self.origins, self.delivery, self.memory)

    # Ownership

    def assign(self, tp: TopicPartition, scope: str, state: PartitionState, lineage: Lineage = Lineage()) -> None:  # noqa: B008
        """Take a partition, starting from the predecessor's state."""
        self.forget([tp])
        self.partitions.take(tp, scope, state, lineage)
        self.gate.assigned(tp)
        self.books.open(tp)
        self.commits.touch(tp, 0.0)  # commit a new group's start now: `latest` must not move while no message arrives
        if state.lanes or state.shared or state.seen > state.watermark:
            pending = sum(len(lane.intents) for lane in state.lanes.values()) + len(state.shared)
            self._output.report(
                "partition.resumed", **tp.fields(), watermark=state.watermark, seen=state.seen, intents=pending
            )

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Drop partitions that are no longer owned: unsettled messages are released, late answers are ignored."""
        for tp in tps:
            self.commits.forget(tp)
            self.orders.forget(tp)
            self.puts.forget(tp)
            partition = self.partitions.close(tp)
            if partition is not None:
                self.delivery.forget(partition)
                self.cutter.forget(tp)
                self.books.release(tp)
                self.intake.forget(tp)

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
        if run.tp in self.origins.awaited():  # it arrived before the partition could be paused
            self._apply([GivenUp(run.tp, "what its messages may be copies of is read again first")], now_ms)
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
            self._apply([GivenUp(run.tp, f"{hole} was skipped before")], now_ms)

    def _read(self, partition: Partition, run: Run, now_ms: float) -> None:
        sorted_run, before_bytes = self.intake.sort(partition, run, now_ms), self.memory.held_bytes
        books = self.books[run.tp]
        count = books.read_out if partition.is_delayed else books.read
        messages = len(run.messages) + len(run.unwanted)
        count(messages, sorted_run.duplicate, sorted_run.filtered)
        partition.reach.took(run.last, messages)
        self.memory.hold(sorted_run.collected_bytes)
        if sorted_run.delayed:
            self._output.ask(self.puts.hold(partition, sorted_run))
        if sorted_run.cancels:
            self._output.ask(self.puts.cancel(partition, sorted_run.cancels))
        if self._digest is not None and not partition.is_delayed:
            partition.stamps.read(Fingerprint(run.last, self._digest(run.messages[-1])))
        if sorted_run.opened:
            cut = self.cutter.open(partition, sorted_run.opened, now_ms)
            if cut is not None:
                for part in cut:
                    self.delivery.cut([part])
                self.commits.touch(run.tp, now_ms)
                self._output.report("partition.joint", **run.tp.fields())
        self.gate.has_read(self.memory.held_bytes - before_bytes)
        self._read_past(run.tp, run.last + 1, now_ms)
        if sorted_run.is_all_unwanted:
            self._tell_unwanted()

    def _tell_unwanted(self) -> None:
        count, tags = self.intake.unwanted.count, self.intake.unwanted_tags
        self._output.report("messages.all_filtered", "warning", count=count, tags=tags)

    def held(self, tp: TopicPartition, token: int, position: int, now_ms: float) -> None:
        """Record that the store has the messages of each `HoldUntilDue` up to a token, and that this is durable.

        Args:
            token: The token of the last `HoldUntilDue`.
            position: The lowest position that the store gave to a message of these.
            now_ms: Monotonic time.
        """
        count = self.puts.end(tp, token, position)
        self._apply([Settled(tp, "delayed", count)] if count else (), now_ms)

    def cancelled(self, tp: TopicPartition, token: int) -> None:
        """Record that the store has done each `CancelHeld` up to a token, and that this is durable."""
        self.puts.cancelled(tp, token)

    def prove(self, tp: TopicPartition, now_ms: float) -> Barrier:
        """A barrier that is durable once a commit that begins from now on has proved that the partition is owned."""
        self.commits.touch(tp, now_ms)
        return self.partitions[tp].dues.barrier()

    def read_past(self, tp: TopicPartition, position: int, now_ms: float) -> None:
        """Record that nothing below `position` is left to read, neither messages nor gaps."""
        partition = self.partitions.get(tp)
        if partition is not None and self.intake.passed(max(0, position - partition.reach.position)):
            self._tell_unwanted()
        self._read_past(tp, position, now_ms)

    def _read_past(self, tp: TopicPartition, position: int, now_ms: float) -> None:
        partition = self.partitions.get(tp)
        if partition is None or position <= partition.reach.position:
            return
        for part in partition.read_past(position):
            if part.group in part.intent.fresh:
                self.delivery.cut([part])
            else:
                self.delivery.known(part)
        self.commits.touch(tp, now_ms + SETTLE_DELAY_MS)
        self._apply(self.delivery.output.take_outcomes(), now_ms)

    # Results

    def _apply(self, outcomes: Iterable[Outcome], now_ms: float) -> None:
        """Apply the outcomes of an event before anything else happens."""
        for outcome in outcomes:
            if isinstance(outcome, Settled):
                self.books[outcome.tp].settle(outcome.outcome, outcome.messages)
                self.commits.touch(outcome.tp, now_ms + SETTLE_DELAY_MS)
            elif isinstance(outcome, Fetched):
                self.books[outcome.tp].fetch(outcome.messages)
            elif isinstance(outcome, GivenUp):
                self.forget([outcome.tp])  # at once: a commit in this very step would settle skipped messages
                self.commits.reload(outcome.tp, outcome.reason)
            else:
                self.commits.touch(outcome.tp, now_ms)

    def committed(self, results: Mapping[TopicPartition, bool], now_ms: float) -> None:
        """Handle the end of the outstanding commit; partitions missing in `results` failed and are retried."""
        self.commits.ended(results, now_ms)
        self.delivery.release_durable()
        if any(results.values()):
            self.cutter.committed(starved=self._is_starved)
        self._is_starved = False

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """Handle the ledger's verdicts on one `Claim`, for each want and row; None if it could not be asked."""
        self.delivery.claimed(number, verdicts, now_ms)
        self._apply(self.delivery.output.take_outcomes(), now_ms)

    def answered(self, batch_id: int, answer: Answer, now_ms: float, wall_ms: int) -> None:
        """Handle the sink's answer to one send."""
        self.delivery.answered(batch_id, answer, now_ms, wall_ms)
        self._apply(self.delivery.output.take_outcomes(), now_ms)

    def stored(self, token: int, *, ok: bool, now_ms: float) -> None:
        """Record that the dead letters of one `StoreDeadLetters` are durable, or could not be stored."""
        self.delivery.stored(token, ok=ok, now_ms=now_ms)
        self._apply(self.delivery.output.take_outcomes(), now_ms)

    # Parked parts

    def restore_parked(self, tp: TopicPartition, found: Sequence[Parked], counted: int, now_ms: float) -> None:
        """Take over, right after `assign`, the parts that the store has.

        Args:
            counted: The number of the last one that counts.
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
            parked = (record.offsets for record in self.partitions[tp].parking.records())
            self.intake.positions.leave_out(tp, parked)

    def parked(self, tp: TopicPartition, number: int, now_ms: float) -> None:
        """Record that the store has the parts of each `Park` up to a number, and that this is durable."""
        self.delivery.parker.stored(tp, number)
        self._apply(self.delivery.output.take_outcomes(), now_ms)

    def fetched(self, tp: TopicPartition, number: int, rows: bytes, now_ms: float) -> None:
        """Take the rows of a parked part, which the store has."""
        self.delivery.parker.fetched(tp, number, rows)
        self._apply(self.delivery.output.take_outcomes(), now_ms)

    # Changed rules

    def change(self, batching: BatchRules, rules: DeliveryRules) -> None:
        """Go on with other limits, waits and bounds; what decides where a message goes stays."""
        for mine, other in ((self._batching, batching), (self._rules, rules)):
            for field in fields(mine):
                setattr(mine, field.name, getattr(other, field.name))
        self.cutter.change(rules.concurrency)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is open, outstanding or parked, and all is committed."""
        return self.idle and not self.delivery.outbox.groups.parked

    def change_reading(
        self, reading: ReadingRules, batching: BatchRules, rules: DeliveryRules, now_ms: float
    ) -> dict[TopicPartition, Barrier]:
        """Filter, group and frame otherwise from now on, while all is quiet.

        A part is a group's messages in a range of offsets, so one that was cut before would have other members.

        Returns:
            By partition, the barrier that is durable once a commit under the new rules was made.
        """
        assert self.is_quiet
        self.intake.change(reading)
        self.partitions.separate(rules.separator)
        self.change(batching, rules)
        return {tp: self.prove(tp, now_ms) for tp in self.partitions}

    # The clock

    def step(self, now_ms: float) -> list[Effect]:
        """Cut, commit and send what is due; return all effects since the last step."""
        wide = [] if self.idle else self.gate.wide()
        if self.commits.may_begin(now_ms):  # until then, open messages wait for no less than their part would
            leaving = self.partitions.keys() if self.orders.resting else self.orders.leaving
            for parts in self.cutter.step(now_ms, COMMIT_SPACING_MS, self.gate.pressure(), wide, leaving):
                self.delivery.cut(parts)
                for part in parts:
                    self.commits.touch(part.tp, now_ms)
        # Reloads come before the next commit: otherwise they would have to wait for its end as well.
        for reload in self.commits.take_reloads():
            self._output.ask(reload)
        commit = self.commits.due(now_ms, hurry=self.orders.draining or self.orders.resting)
        if commit is not None:
            self._output.ask(commit)
        self.delivery.step(now_ms, fetches=not self.orders.draining)
        self._is_starved |= self.commits.outstanding and self.delivery.has_free_sender
        self._apply(self.delivery.output.take_outcomes(), now_ms)
        flow = self.gate.flow(wide)
        if flow is not None:
            self._output.ask(flow)
        return self._output.take_effects() + self.delivery.output.take_effects()

    # Status

    def held_up(self, now_ms: float) -> Iterator[tuple[str, str | None, float]]:
        """Messages that wait for something other than a retry: what for, the group, since when the oldest is open.

        The group is None if all groups of a partition wait together.
        """
        for (_, group), since_ms in self.cutter.held_up(now_ms):
            yield A_COMMIT if self.delivery.has_free_sender else "a free sender", group, since_ms
        for what, batch in self.delivery.held_up():
            yield what, batch.group, batch.since_ms

    @property
    def idle(self) -> bool:
        """Whether everything that was read, by this owner or an earlier one, is settled and committed."""
        idle = self.delivery.idle and self.cutter.idle and self.commits.idle and self.puts.idle
        return idle and not self.partitions.replaying
