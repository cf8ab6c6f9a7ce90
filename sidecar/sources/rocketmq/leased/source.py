"""RocketMQ through leased clients: numbers messages for the core, and acknowledges settled ones.

Leased messages have no lasting place, so they get Sidecar's own numbers and are recognized by their content. No message
is acknowledged before the state file has it as settled.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from sidecar import threads
from sidecar.core.effects import CommitItem
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Original, Run, TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import WAKING_POLL_S, Listener, ReadPast, Source
from sidecar.sources.context import ExchangeTable, SourceContext
from sidecar.sources.rocketmq.leased.client import HandedMessage, LeasedClient
from sidecar.sources.rocketmq.leased.columns import (
    LeasedColumns,
    LeasedMessage,
    details_of,
    give_keys,
    identity_of,
    key_of,
)
from sidecar.sources.rocketmq.leased.commits import EndedCommit, LeasedCommits
from sidecar.sources.rocketmq.leased.held import HeldMessages, ReceiveGate, handles_of
from sidecar.sources.rocketmq.leased.recovery import LeasedRecovery, keep_message, keep_placement
from sidecar.sources.rocketmq.leased.slot import Slot, Topic, start_all
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import ProgressKey, State

LASTS_S = 300.0
"""Time after the last such message for which it is a problem."""
EVERY_S = 10.0
"""Interval at which the numbers change: each change is logged."""


class Returned:
    """Counts messages that came again: a broker silently accepts an extension or acknowledgement without a match."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._until_s = self._next_s = 0.0
        self._text = ""

    def add(self, when: str, now_s: float) -> None:
        """Count a message by when it came again: within its lease, or after this process had settled it."""
        self._counts[when] += 1
        self._until_s = now_s + LASTS_S

    def problems(self, now_s: float) -> Mapping[str, str]:
        """The problem, by the key ``returned``; empty if there is none."""
        if now_s >= self._until_s:
            self._counts.clear()
            self._text = ""
            return {}
        if now_s >= self._next_s or not self._text:
            kinds = " and ".join(f"{count} {when}" for when, count in sorted(self._counts.items(), reverse=True))
            self._next_s, self._text = now_s + EVERY_S, f"messages came again: {kinds}. {_RETURNED}"
        return {"returned": self._text}


_RETURNED = (
    "They were recognized here, but another member may deliver such a message again, unless there is a dedup.ledger. A "
    "restart of a broker or proxy explains it; without one, they accepted an extension or acknowledgement that matched "
    "nothing: compare the versions of both"
)


_EVERY_GENERATION = 1 << 62


class Numberings:
    """The numberings of all topics; with `in_order`, new messages of a topic wait for its complete recovery."""

    def __init__(
        self, state: State, start: Callable[[Mapping[ProgressKey, str]], dict[str, Topic]], *, in_order: bool
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.slots: dict[TopicPartition, Slot] = {}
        self.paused: frozenset[TopicPartition] = frozenset()
        self._state = state
        self._start = start
        self._in_order = in_order
        self.are_assigned = False
        self._uncopied: set[TopicPartition] = set()
        """Numberings whose ids could not be copied yet."""

    def resume(self, rows: Mapping[ProgressKey, str]) -> None:
        """Take over the numberings that the topics resume from these rows."""
        self.topics = self._start(rows)
        for topic in self.topics.values():
            topic.has_begun = not (self._in_order and topic.earlier)
            self.slots |= {slot.tp: slot for slot in (topic.current, *topic.earlier)}
            for key in topic.stale:
                if not key.label:
                    self._state.ids.drop_before(key.tp, _EVERY_GENERATION)
            if topic.has_begun:
                self._inherit_ids(topic)

    def _inherit_ids(self, topic: Topic) -> None:
        """Copy the message ids of the previous numbering to the new one."""
        if topic.inherits is not None:
            self._state.ids.copy(topic.inherits, topic.current.tp)

    def assign(self, listener: Listener) -> None:
        """Assign the numberings that need not wait; once."""
        if not self.are_assigned:
            self.are_assigned = True
            listener.assigned([slot.assignment() for slot in self.begun()])

    def begun(self) -> list[Slot]:
        """All numberings that were assigned, or will be at once."""
        late = {topic.current.tp for topic in self.topics.values() if not topic.has_begun}
        return [slot for tp, slot in self.slots.items() if tp not in late]

    def are_paused(self) -> list[bool]:
        return [topic.current.tp in self.paused for topic in self.topics.values()]

    def hand_on(self, listener: Listener, held: HeldMessages, *, is_full: bool) -> Iterable[Run | ReadPast]:
        """The messages to hand to the core now; `is_full` if there is no room for messages that are awaited."""
        for topic in self.topics.values():
            yield from topic.counted()
            for slot in topic.earlier:
                if slot.tp not in self.paused:
                    yield from map(held.noted, slot.ready())
                if self._in_order and not slot.is_done and not is_full:  # while full, they could not arrive
                    break
            else:
                if not topic.has_begun:
                    self._begin(topic, listener)
                if topic.line and topic.has_begun and topic.current.tp not in self.paused:
                    yield from map(held.noted, topic.number())

    def _begin(self, topic: Topic, listener: Listener) -> None:
        """Recovery is complete and its ids are loaded; start new messages."""
        try:
            self._inherit_ids(topic)
        except StateError as error:  # retried
            self._uncopied.add(topic.current.tp)
            listener.event("ids.not_stored", "error", {"reason": str(error)})
            return
        if topic.current.tp in self._uncopied:
            self._uncopied.discard(topic.current.tp)
            listener.event("ids.stored", "info", {})
        topic.has_begun = True
        listener.assigned([topic.current.assignment()])


class LeasedSource(Source):
    """Messages that a client hands over one by one.

    Args:
        context: If it keeps order or remembers ids, recovery must be complete before new messages are handed on.
        keep_rows: Whether the state file keeps the messages of sent parts, so that parts are complete without the
            broker: a FIFO broker hands over the rest of a queue only after its first messages are acknowledged.
        exchange: Takes messages in flight at a crash from the members that received them.
        disk: Writes the state file; a separate thread by default.
    """

    name = "RocketMQ"
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = WAKING_POLL_S
    columns: Columns = LeasedColumns()

    def __init__(
        self,
        client: LeasedClient,
        topics: Sequence[str],
        group: str,
        context: SourceContext,
        *,
        keep_rows: bool = False,
        exchange: ExchangeTable | None = None,
        disk: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        keep = partial(keep_message, client) if keep_rows else keep_placement if client.moves else None
        resume = partial(start_all, topics, group, context.rules.digest, keep)
        self._numberings = Numberings(context.state, resume, in_order=context.keeps_order or context.remembers_ids)
        self._recovery = LeasedRecovery(client, exchange, group, clock)
        self._held = HeldMessages()
        self._gate = ReceiveGate(client, self._held, context.held_max_bytes, clock, replays_first=keep_rows)
        self._groups_of = context.groups_of(self.columns)
        self._commits = LeasedCommits(context.state, group, disk or threads.Pool("progress"), clock)
        self._troubles = Troubles(lambda *event: self._listener.event(*event), "rocketmq.failed", "rocketmq.recovered")
        self._clock = clock
        self._returned = Returned()
        self._closed = False

    def open(self, listener: Listener) -> None:
        self._listener = listener
        self._gate.open()
        self._client.open()
        self._numberings.resume(self._commits.load())
        for name, topic in self._numberings.topics.items():
            self._commits.change(dict.fromkeys(topic.stale, ""))
            self._recovery.add_slots(topic.earlier, topic.kept)
            topic.kept = []
            if topic.other_rules:
                listener.event("partition.reset", "warning", {"topic": name, "reason": _OTHER_RULES})

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        numberings = self._numberings
        numberings.assign(self._listener)
        if (ended := self._commits.ended()) is not None:
            self._listener.committed(self._end(ended), ended[2])
        self._gate.turn(self._recovery, is_idle=all(numberings.are_paused()))
        self._sort(self._recovery.stored() or self._client.receive(timeout_s))
        self._sort(self._recovery.exchanged(self._held.unsettled, self._commits.settled))
        self._give_up()
        self._troubles.replace({**self._client.problems(), **self._returned.problems(self._clock())})
        return list(numberings.hand_on(self._listener, self._held, is_full=self._gate.is_full))

    def _sort(self, messages: Sequence[HandedMessage]) -> None:
        topics, held, settled = self._numberings.topics, self._held, self._commits.settled
        new = defaultdict[str, list[LeasedMessage]](list)
        for handed in messages:
            topic = topics.get(handed.topic)
            if topic is None:
                continue
            message = LeasedMessage(handed, identity_of(handed))
            if topic.earlier and self._recovery.collect(topic.earlier, message):
                held.add_message(message)
                new[handed.topic].append(message)
            elif (twin := held.unsettled.get(message.identity)) is not None:
                if handed.reconsume_times and any(map(self._client.is_leased, twin.handles)):
                    self._returned.add("within the lease", self._clock())
                twin.handles.append(handed.handle)
                topic.repeats.append(message)
            elif message.identity in settled:
                if handed.reconsume_times and self._client.moves and settled.is_younger(message.identity):
                    self._returned.add("after the acknowledgement", self._clock())
                if not held.acknowledge_late(handed.handle):
                    self._client.ack([handed.handle])
                topic.repeats.append(message)
            else:
                held.add_message(message)
                topic.line.append(message)
                new[handed.topic].append(message)
        for name, arrived in new.items():
            give_keys(name, arrived, self._groups_of)

    def _give_up(self) -> None:
        paused, are_new_paused = self._numberings.paused, any(self._numberings.are_paused())
        for slot in self._recovery.overdue(paused, is_full=self._gate.is_full, are_new_paused=are_new_paused):
            fields = {**slot.tp.fields(), "count": slot.awaited.count}
            self._listener.event("members.gone", "warning", fields)
            slot.give_up(list(slot.awaited.missed))

    def pause(self, tps: Collection[TopicPartition]) -> None:
        self._numberings.paused = frozenset(tps)

    def reload(self, tp: TopicPartition) -> None:
        """Never called: the numbers have no gaps."""
        raise AssertionError(f"{tp} has a hole")

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """A held message, None for any other; from one other thread."""
        message = self._held.numbered(tp, offset)
        if message is None:
            return None
        handed = message.handed
        return Original(key_of(message), handed.body, handed.properties, handed.born_ms, details_of(message))

    def commit(self, items: Sequence[CommitItem]) -> None:
        self._commits.begin_commit(self._prepare(items))

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        self._end(self._commits.ended(wait=True))
        self.commit(items)
        return self._end(self._commits.ended(wait=True))

    def _prepare(self, items: Sequence[CommitItem]) -> dict[TopicPartition, bool]:
        results, identities = {}, []
        for item in items:
            slot = self._numberings.slots.get(item.tp)
            results[item.tp] = slot is not None and slot.scope == item.scope
            if slot is not None and results[item.tp]:
                settled, rows = slot.commit(item.state)
                self._held.settle(item.tp, settled)
                identities += [message.identity for message in settled]
                self._commits.change(rows)
        self._commits.settle(identities)
        return results

    def _end(self, ended: EndedCommit | None) -> Mapping[TopicPartition, bool]:
        """Acknowledge the messages that a commit settled; return its results."""
        results, error, _ = ended or ({}, None, 0.0)
        if error is not None:
            self._listener.event("commit.failed", "warning", {"reason": str(error), "at": "state"})
            return dict.fromkeys(results, False)
        if ended is not None and (handles := self._held.saved()):
            self._client.ack(handles)
        return results

    def problems(self) -> Mapping[str, str]:
        return self._troubles.now

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._numberings.are_assigned:
            self._listener.revoking([slot.tp for slot in self._numberings.begun()])
        self._client.release(handles_of(self._held.unsettled.values()))
        self._client.close()
        self._commits.close()


_OTHER_RULES = "tags, ids or format were changed: messages in flight count as new"
