"""Parks parts of long-failing groups in the store, and fetches them for a try. Sends nothing.

A parked part is in no batch. So a failing group takes neither memory nor room in the state, and holds no watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sidecar.core.delivery.outbox import Outbox, Stage
from sidecar.core.delivery.output import Changed, Fetched, Output, Settled
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Fetch, Park, Unpark
from sidecar.core.partition.partition import Ownerships, Partition
from sidecar.core.parts import Batch, Memory, Part, held_by
from sidecar.core.records import Fragment, Parked, TopicPartition, group_label
from sidecar.core.states import Event


class Parker:
    """Parks the parts of a group that waits, and brings them back: one of a failing group, some of any other."""

    def __init__(self, rules: DeliveryRules, owned: Ownerships, outbox: Outbox, memory: Memory, output: Output) -> None:
        self._rules = rules
        self._owned = owned
        self._outbox = outbox
        self._groups = outbox.groups
        self._memory = memory
        self._output = output
        self._fetching: set[tuple[TopicPartition, int]] = set()
        self.busy: set[TopicPartition] = set()
        """Partitions with parts on the way to the store."""
        self._turn = 0
        self._has_found = False
        """Whether an earlier process has parked parts."""

    def lingers_ms(self, group: str, now_ms: float) -> float | None:
        """How long messages of the group stay open before they are cut and parked; None if they are sent.

        New parts are parked at once if the group fails for long, or others must go before them.
        """
        if self._rules.park_after_ms is None:
            return None
        since_ms = self._groups.failing_since_ms(group)
        is_failing = since_ms is not None and now_ms - since_ms >= self._rules.park_after_ms
        waits = is_failing or (self._rules.ordered and self._groups.parked[group] > 0)
        return self._rules.park_after_ms if waits else None

    def step(self, now_ms: float, *, fetches: bool) -> None:
        """Park parts that are due, and fetch some if `fetches`."""
        if self._rules.park_after_ms is None and not self._has_found:
            return
        for tp, partition in self._owned.items():  # first: the next parked part makes the numbers of others count
            numbers, groups = partition.parking.take_ended()
            if numbers:
                self._output.effects.append(Unpark(tp, numbers))
            for group in groups:
                self._groups.park(group, -1)
                if not self._groups.parked[group]:
                    self._output.report("group.unparked", group=group_label(group))
        for stage in (Stage.READY, Stage.WAITING):
            for batch in self._outbox.batches(stage):
                if self.lingers_ms(batch.group, now_ms) is not None and all(map(self._may_be_parked, batch.parts)):
                    self._park(batch)
        if self._groups.parked:
            self._unload()
            if fetches:
                self._fetch(now_ms)

    # To the store

    def _may_be_parked(self, part: Part) -> bool:
        if part.intent.record is not None or part.hold is not None or not (part.alive and part.primary):
            return False
        if not part.ready or part.nbytes > self._rules.park_max_bytes:
            return False
        return part.tp not in self._owned.fenced and self._owned[part.tp].parking.is_proved

    def _park(self, batch: Batch) -> None:
        for part in batch.parts:
            self._ask(part.tp, self._owned[part.tp].parking.park(part), part.fragments)
        self._outbox.end_batch(batch, "parked")

    def _ask(self, tp: TopicPartition, record: Parked, fragments: Sequence[Fragment]) -> None:
        if not self._groups.parked[record.group]:
            self._output.report("group.parked", "warning", group=group_label(record.group))
        self._groups.park(record.group, 1)
        self.busy.add(tp)
        rows = self._rules.separator.join(bytes(each.data) for each in fragments if each.offsets)
        self._output.effects.append(Park(tp, record, rows))

    def stored(self, tp: TopicPartition, number: int) -> None:
        """Record that the store has all parts of a partition up to a number, durably."""
        partition = self._owned[tp]
        for part in partition.parking.store(number):
            self._let_go(part)
            partition.outstanding.leave(part, Event.STORED)
        if not partition.parking.putting:
            self.busy.discard(tp)
        self._output.outcomes.append(Changed(tp))

    def halve(self, part: Part, pieces: Sequence[list[Fragment]]) -> None:
        """Replace a parked part, which was refused, by its halves: they are parked, and then fetched."""
        partition = self._owned[part.tp]
        for record, fragments in zip(partition.outstanding.halve(part, pieces), pieces, strict=True):
            self._ask(part.tp, record, fragments)
        self._let_go(part)

    def _let_go(self, part: Part) -> None:
        """Free the rows of a part that is in the store."""
        self._memory.held_bytes -= held_by(part)
        self._output.outcomes.append(Settled(part.tp, "parked", part.count))

    # From the store

    def restore(self, tp: TopicPartition, found: Iterable[Parked], counted: int, now_ms: float) -> int:
        """Take over the parts that an earlier owner parked; return the number of their messages.

        Args:
            tp: The partition, which was just assigned.
            counted: The last number that counts.
            now_ms: Monotonic time.
        """
        partition, found = self._owned[tp], list(found)
        self._has_found |= bool(found)
        partition.parking.restore(found, counted)
        records = [each.parked for each in partition.parking.stored.values()]
        partition.promises.leave_out(records)
        for record in records:
            self._groups.park(record.group, 1, now_ms)
        return sum(len(record.offsets) for record in records)

    def forget_partition(self, partition: Partition) -> None:
        """Drop a partition that is no longer owned; its parked parts stay in the store."""
        for group, count in partition.parking.groups.items():
            if count:
                self._groups.park(group, -count)
        self.busy.discard(partition.tp)
        self._fetching = {each for each in self._fetching if each[0] != partition.tp}

    def _unload(self) -> None:
        """Drop fetched parts that failed or are no longer the first: the next part is chosen again."""
        fetched = [*self._outbox.batches(Stage.WAITING)]
        if self._rules.ordered:
            ready = ((batch, batch.parts[0]) for batch in self._outbox.batches(Stage.READY))
            fetched += [
                batch for batch, part in ready if part.alive and not self._owned[part.tp].parking.is_first(part)
            ]
        for batch in fetched:
            part = batch.parts[0]
            if part.intent.record is not None and part.primary and part.alive:
                self._let_go(part)
                self._owned[part.tp].outstanding.unload(part)
                self._outbox.end_batch(batch, "parked")

    def _fetch(self, now_ms: float) -> None:
        """Ask for rows: those of one part of a group that fails, and of more of any other."""
        loaded = [each.parked.group for owned in self._owned.values() for each in owned.parking.loaded.values()]
        room = 2 * self._rules.concurrency - len(loaded)
        groups = list(self._groups.parked)
        self._turn = (self._turn + 1) % len(groups)  # no group keeps the others waiting
        for group in groups[self._turn :] + groups[: self._turn]:
            failing = self._groups.failing(group)
            state = self._groups.get(group) or self._groups.resting.get(group)
            if state is not None and failing and (now_ms < state.next_try_ms or group in loaded):
                continue
            for tp, partition in self._owned.items():
                record = partition.parking.following(group)
                if room < 1:
                    return
                if record is not None and not partition.reach.replaying and tp not in self._owned.fenced:
                    room -= 1
                    if (tp, record.number) not in self._fetching:
                        self._fetching.add((tp, record.number))
                        self._output.effects.append(Fetch(tp, record.number))
                    if failing:
                        break

    def not_fetched(self, effect: Fetch) -> None:
        """Request the rows of a part again, since they could not be read."""
        self._fetching.discard((effect.tp, effect.number))

    def fetched(self, tp: TopicPartition, number: int, rows: bytes) -> None:
        """Take the rows of a parked part, which goes to the senders."""
        if (tp, number) not in self._fetching:  # an earlier ownership asked for them
            return
        self._fetching.discard((tp, number))
        partition = self._owned[tp]
        part = partition.outstanding.load(partition.parking.stored[number].parked, rows)
        self._memory.held_bytes += held_by(part)
        self._output.outcomes.append(Fetched(tp, part.count))
        batch = self._outbox.begin_batch([part])
        self._outbox.move(batch, Event.DURABLE)
