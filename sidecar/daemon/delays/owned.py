"""The delayed messages of the owned partitions: where each continues, and its kept progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog
from typing_extensions import override

from sidecar.core.delays import parked_that_count, takeover_of
from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Lineage
from sidecar.core.partition_state import Stores
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import DeadLetter, TopicPartition
from sidecar.daemon.delays.absent import NoOwnedStores
from sidecar.daemon.delays.parked import FoundPart, ParkedParts
from sidecar.delay.columns import original_of
from sidecar.delay.interface import HeldStore, StorePlace
from sidecar.delay.progress import HeldProgress, restored
from sidecar.delay.rows import ORIGIN_MAX
from sidecar.sources.base import Assignment
from sidecar.state.interface import Rules
from sidecar.state.offset_map import Identity

log = structlog.get_logger()


def name_of(group_id: str, tp: TopicPartition) -> bytes:
    """The store's name of a partition."""
    return "\0".join([group_id, tp.topic, tp.broker, str(tp.partition)]).encode("utf-8", "surrogateescape")


def tp_of(group_id: str, name: bytes) -> TopicPartition | None:
    """The partition of a store's name; None if it is another group's."""
    group, topic, broker, partition = name.decode("utf-8", "surrogateescape").split("\0")
    return TopicPartition(topic, int(partition), broker) if group == group_id else None


class OwnedStores(NoOwnedStores):
    """The owned partitions, with the numbers that the store knows them by; only for the main thread.

    Args:
        tell_held: Tells the core, once all changes so far are durable, that messages are held: with the partition, the
            token and their lowest position.
        numbers: Gets the store's numbers of the owned partitions.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        group_id: str,
        rules: Rules,
        tell_held: Callable[[TopicPartition, int, int], None],
        numbers: dict[TopicPartition, int],
        parked: ParkedParts,
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._group_id = group_id
        self._rules = rules
        self._tell_held = tell_held
        self.numbers = numbers
        """The store's numbers of the owned partitions."""
        self._progress: dict[TopicPartition, HeldProgress] = {}
        self._parked = parked
        self.missing: dict[TopicPartition, str] = {}
        self._compared: set[TopicPartition] = set()
        """Partitions whose commits are compared with the store, as it was opened, no more."""

    def number(self, tp: TopicPartition) -> int:
        return self._store.number(name_of(self._group_id, tp))

    @override
    def take_partition(self, assignment: Assignment) -> None:
        tp, seen = assignment.tp, assignment.state.seen
        number = self.numbers[tp] = self.number(tp)
        before = self._store.place(number)
        stores = self._compare(tp, assignment.state.stores, before)
        progress = self._progress[tp] = self._continued(self._restored(before, number), assignment, before.store)
        known = self._store.rows.known(number)
        known.remove_range(0, seen)
        taken = stores.taken_by(before.store, assignment.state, before.epoch)
        stores = taken._replace(put=stores.put, held=stores.held) if stores.own == before.store else taken
        self._tell_held(tp, self._pipeline.know_held(tp, known, stores), 0)
        counted = max(progress.parked, assignment.state.parked_in(before.store))
        found = self._parked.find(tp)
        self._parked.take_parts(tp, found, counted)
        self._assign(tp, found, before)

    def _compare(self, tp: TopicPartition, stores: Stores, place: StorePlace) -> Stores:
        """Report what the store lacks of what the last commit says; return what the next commit may say."""
        if stores.epoch or place.found < 0:
            return stores
        if stores.own == place.store:
            if tp in self._compared or stores.put <= place.found:
                return stores
            why, offset = "its store lacks the changes that were made last", place.put_below
            log.error("delay.missing", **tp.fields(), reason=why, offset=offset, committed=stores.held, held=place.held)
            figures = f"it holds {place.held:,}, and held {stores.held:,} at the last commit"
            self.missing[tp] = f"{tp}: its store lacks the changes that were made last: {figures}"
            return stores._replace(put=place.found, held=place.held)
        if stores.own and stores.held:
            why = "they are in another store: that of another host, or a folder that was removed here"
            log.warning("delay.missing", **tp.fields(), reason=why, committed=stores.held)
            whose = "another member's, or of a folder that was removed or replaced here"
            self.missing[tp] = f"{tp}: {stores.held:,} are in another store: {whose}"
        return stores

    @override
    def stamped(self, items: list[CommitItem]) -> list[CommitItem]:
        return [self._stamped(item) if item.tp in self.numbers else item for item in items]

    def _stamped(self, item: CommitItem) -> CommitItem:
        place, stores = self._store.place(self.numbers[item.tp]), item.state.stores
        if place.found < 0 or stores.own != place.store:
            return item
        self._compared.add(item.tp)
        now = stores._replace(put=place.put or stores.put, held=place.held)
        return item if now == stores else replace(item, state=replace(item.state, stores=now))

    def _restored(self, place: StorePlace, number: int) -> HeldProgress:
        identity = Identity("", self._group_id, place.scope, 0)
        return restored(self._store.rows.state(number), identity, self._rules.digest)

    def _continued(self, progress: HeldProgress, assignment: Assignment, store: int) -> HeldProgress:
        """The progress from which the partition continues, once the store has dropped messages that do not count."""
        tp, state = assignment.tp, assignment.state
        topic_id, incarnation = assignment.topic_id, assignment.incarnation
        number = self.numbers[tp]
        takeover = takeover_of(
            state,
            store,
            is_same_incarnation=progress.incarnation == incarnation,
            is_same_topic=progress.topic_id == topic_id,
            held_below=assignment.held_below,
        )
        if takeover.restarts:
            first = ORIGIN_MAX if takeover.keeps_below is None else takeover.keeps_below
            self._store.void(number, first, ORIGIN_MAX, restarts=True)
        if takeover.void_from is not None:
            self._store.void(number, takeover.void_from, state.seen)
        found = self._parked.find(tp) if takeover.counts_all_parked else []
        if takeover.is_unlisted:
            self._report_unlisted(tp, len(found))
        last = max((each.record.number for each in found if not each.is_delayed), default=0)
        parked = parked_that_count(takeover, progress.parked, last)
        now = replace(progress, topic_id=topic_id, incarnation=incarnation, parked=parked)
        if now != progress:
            self._store.keep(number, now.encoded(self._rules.digest), now.state.watermark, now.state.seen)
        return now

    def _report_unlisted(self, tp: TopicPartition, parked: int) -> None:
        held = self._store.rows.held(self.numbers[tp])
        if held or parked:
            action = "delivering all that this store holds; what was not committed of it may be delivered twice"
            log.warning("delay.store_unlisted", **tp.fields(), held=held, parked=parked, action=action)

    def _assign(self, tp: TopicPartition, found: Sequence[FoundPart], place: StorePlace) -> None:
        progress, number = self._progress[tp], self.numbers[tp]
        # In a shared store a state may come from a process whose ownership was not proved.
        is_durable = self._store.writes.synced == self._store.writes.changes and not place.epoch
        self._pipeline.assign(tp.store, progress.identity.scope, progress.state, Lineage(durable=is_durable))
        self._parked.take_parts(tp.store, found, progress.state.parked)
        self._store.rewind(number)
        self._pipeline.count_held(tp.store, self._store.rows.held(number))

    @override
    def reload(self, tp: TopicPartition) -> None:
        if (number := self.numbers.get(tp.source)) is not None:
            place = self._store.place(number)
            self._progress[tp.source] = self._restored(place, number)
            self._assign(tp.source, self._parked.find(tp.source), place)

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned; their delayed messages stay in the store."""
        for tp in tps:
            if (number := self.numbers.pop(tp, None)) is not None:
                self._store.leave(number)
            self._progress.pop(tp, None)
            self.missing.pop(tp, None)
        self._parked.forget_partitions(tps)

    @override
    def with_stores(self, tps: Collection[TopicPartition]) -> list[TopicPartition]:
        return [each for tp in tps for each in ((tp, tp.store) if tp in self.numbers else (tp,))]

    def keep(self, items: Iterable[CommitItem]) -> None:
        """Keep states of delayed messages, durably with the next write.

        Raises:
            StateError: A file of the store cannot be read.
        """
        for item in items:
            tp, state = item.tp.source, item.state
            if tp in self.numbers:
                progress = self._progress[tp] = replace(self._progress[tp], state=state)
                self._store.keep(self.numbers[tp], progress.encoded(self._rules.digest), state.watermark, state.seen)

    @override
    def committed(self, results: Mapping[TopicPartition, bool]) -> None:
        for tp, is_committed in results.items():
            watermark, number = self._pipeline.committed_watermark(tp), self.numbers.get(tp.source)
            if is_committed and watermark is not None and number is not None:
                forget = self._store.committed if tp.delayed else self._store.floor
                forget(number, watermark)

    @override
    def traced(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        # Dead letters of an earlier ownership are left out if their messages have ended since.
        found = [self._traced(letter) if letter.tp.delayed else letter for letter in letters]
        return [letter for letter in found if letter is not None]

    @override
    def origin(self, tp: TopicPartition, position: int) -> int | None:
        held = self._store.rows.find(self.number(tp.source), position)
        return self._parked.origin(tp, position) if held is None else held.origin

    def _traced(self, letter: DeadLetter) -> DeadLetter | None:
        tp = letter.tp.source
        held = self._store.rows.find(self.number(tp), letter.offset)
        if held is None:
            origin = self._parked.origin(letter.tp, letter.offset)
            return None if origin is None else replace(letter, tp=tp, offset=origin)
        return replace(letter, tp=tp, offset=held.origin, original=original_of(held))
