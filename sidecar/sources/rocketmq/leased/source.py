"""RocketMQ through leased clients: numbers messages for the core, and acknowledges settled ones.

Leased messages have no lasting place, so they get Sidecar's own numbers and are recognized by their content. No message
is acknowledged before the state file has it as settled.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

from sidecar.core.effects import CommitItem
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Message, Run, TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import WAKING_POLL_S, Listener, Original, ReadPast
from sidecar.sources.rocketmq.leased.client import Handed, LeasedClient
from sidecar.sources.rocketmq.leased.columns import Keys, LeasedColumns, Taken, details_of, identity_of, key_of
from sidecar.sources.rocketmq.leased.exchange import Exchange
from sidecar.sources.rocketmq.leased.held import Held, handles_of
from sidecar.sources.rocketmq.leased.kept import Placement, keep, keep_placement, recover
from sidecar.sources.rocketmq.leased.settled import Settled
from sidecar.sources.rocketmq.leased.slot import Slot
from sidecar.sources.rocketmq.leased.start import start
from sidecar.sources.rocketmq.leased.topic import Commit, Topic
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import ProgressKey, State

HELD_MAX = 20_000
"""Limit of held messages: the lease of each must be extended."""
LEAST_SHARE = 8
"""Recovered messages must not starve new ones: 1/8 of the room is reserved for new messages."""
EXTEND_EVERY_S = 2.0
GONE_AFTER_S = 120.0
"""Messages in flight at a crash are given up if they do not return for this time although the broker answers."""

GroupsOf = Callable[[TopicPartition, Sequence[Message]], Iterable[str | None]]
"""The group of each message, None for an unwanted one."""


class LeasedSource:
    """A source over a client.

    Args:
        client: Hands messages over.
        topics: Their names.
        group: The consumer group.
        state: Keeps what must outlive a crash.
        rules: 4 bytes, a hash of what decides where a message goes.
        held_max_bytes: Limit of held bytes.
        groups_of: The groups of messages.
        in_order: Whether recovery must be complete before new messages are handed on: for order, and for message ids.
        keep_rows: Whether the state file keeps the messages of sent parts, so that parts are complete without the
            broker: a FIFO broker hands over the rest of a queue only after its first messages are acknowledged.
        exchange: Takes messages in flight at a crash from the members that received them.
        disk: Writes the state file; a separate thread by default.
        clock: Monotonic seconds.
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
        state: State,
        rules: bytes,
        held_max_bytes: int,
        groups_of: GroupsOf,
        *,
        in_order: bool = False,
        keep_rows: bool = False,
        exchange: Exchange | None = None,
        disk: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._client = client
        self._names = topics
        self._group = group
        self._state = state
        self._rules = rules
        self._held_max_bytes = held_max_bytes
        self._groups_of = groups_of
        self._in_order = in_order
        self._keeps_rows = keep_rows
        self._keep = partial(keep, client) if keep_rows else keep_placement if client.moves else None
        self._placements: dict[bytes, Placement] = {}
        """Placements of awaited messages when first sent, by identity."""
        self._exchange = exchange
        self._disk = disk or ThreadPoolExecutor(1, thread_name_prefix="progress")
        self._topics: dict[str, Topic] = {}
        self._slots: dict[TopicPartition, Slot] = {}
        self._held = Held()
        self._unsaved: dict[ProgressKey, str] = {}
        self._commit: Commit | None = None
        self._paused: frozenset[TopicPartition] = frozenset()
        self._is_full = self._is_held = self._closed = self._assigned = False
        self._extend_at_s = self._turned_s = self._clock()
        self._missed_s = 0.0
        self._uncopied: set[TopicPartition] = set()
        """Numberings whose ids could not be copied yet."""
        self._troubles = Troubles(lambda *told: self._listener.event(*told), "rocketmq.failed", "rocketmq.recovered")
        self._keys = Keys()
        self._adopted: list[Handed] = []
        """Messages recovered from the state file."""

    def open(self, listener: Listener) -> None:
        """Connect and subscribe.

        Raises:
            UnavailableError: Servers cannot be reached, or topic or group is unknown, for the whole start-up time.
            CredentialsError: The credentials are refused.
        """
        self._listener = listener
        if self._keeps_rows:
            self._is_held = True
            self._client.pause(full=True)
        self._client.open()
        self._state.bind("", self._group)
        rows = self._state.load_progress()
        self._settled = Settled(rows, self._clock())
        for name in self._names:
            found = start(name, rows, self._group, self._rules, time.time_ns() // 1_000, self._keep)
            waits = self._in_order and bool(found.earlier)
            self._topics[name] = Topic(found.current, found.earlier, found.inherits, not waits)
            self._slots |= {slot.tp: slot for slot in (found.current, *found.earlier)}
            self._unsaved |= dict.fromkeys(found.stale, "")
            for key in found.stale:
                if not key.label:
                    self._state.ids.drop_before(key.tp, _EVERY_GENERATION)
            if not waits:
                self._inherit_ids(self._topics[name])
            whole, placements = recover(self._client, found.kept, found.earlier)
            self._adopted += whole
            self._placements |= placements
            if found.other_rules:
                self._listener.event("partition.reset", "warning", {"topic": name, "reason": _OTHER_RULES})

    def _inherit_ids(self, topic: Topic) -> None:
        """Copy the message ids of the previous numbering to the new one."""
        if topic.inherits is not None:
            self._state.ids.copy(topic.inherits, topic.current.tp)

    def _begin(self, topic: Topic) -> None:
        """Recovery is complete and its ids are loaded; start new messages."""
        try:
            self._inherit_ids(topic)
        except StateError as error:  # tried again
            self._uncopied.add(topic.current.tp)
            self._listener.event("ids.not_stored", "error", {"reason": str(error)})
            return
        if topic.current.tp in self._uncopied:
            self._uncopied.discard(topic.current.tp)
            self._listener.event("ids.stored", "info", {})
        topic.has_begun = True
        self._listener.assigned([topic.current.assignment()])

    def _begun(self) -> list[Slot]:
        """The numberings that were assigned to the core."""
        late = {topic.current.tp for topic in self._topics.values() if not topic.has_begun}
        return [slot for tp, slot in self._slots.items() if tp not in late]

    # Reading

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """Messages that arrived; serves the listener meanwhile."""
        if not self._assigned:
            self._assigned = True
            self._listener.assigned([slot.assignment() for slot in self._begun()])
        self._go_on()
        self._hold_back()
        self._extend()
        adopted, self._adopted = self._adopted, []
        self._sort(adopted or self._client.receive(timeout_s))
        if self._exchange is not None:
            earlier = [slot for topic in self._topics.values() for slot in topic.earlier]
            self._sort(self._exchange.turn(earlier, self._held.unsettled, self._settled))
        self._watch_missing()
        self._troubles.replace(self._client.problems())
        return list(self._hand_on())

    def _sort(self, handed: Sequence[Handed]) -> None:
        held, new = self._held, defaultdict[str, list[Taken]](list)
        for one in handed:
            topic = self._topics.get(one.topic)
            if topic is None:
                continue
            message = Taken(one, identity_of(one))
            if topic.earlier and any(slot.awaited.collect(message) for slot in topic.earlier):
                if placement := self._placements.pop(message.identity, None):
                    message.handed = placement.restore(one)
                self._missed_s = 0.0
                held.add(message)
                new[one.topic].append(message)
            elif (twin := held.unsettled.get(message.identity)) is not None:
                twin.handles.append(one.handle)
                topic.repeats.append(message)
            elif message.identity in self._settled:
                if not held.acknowledge_late(one.handle):
                    self._client.ack([one.handle])
                topic.repeats.append(message)
            else:
                held.add(message)
                topic.line.append(message)
                new[one.topic].append(message)
        for name, messages in new.items():
            for message, group in zip(messages, self._groups_of(TopicPartition(name, 0), messages), strict=True):
                message.key = None if group is None else self._keys.of(group)

    def _hand_on(self) -> Iterable[Run | ReadPast]:
        for topic in self._topics.values():
            yield from self._repeats(topic)
            for slot in topic.earlier:
                if slot.tp not in self._paused:
                    yield from map(self._noted, slot.ready())
                if self._in_order and not slot.is_done and not self._is_full:  # full, they could not arrive
                    break
            else:
                if not topic.has_begun:
                    self._begin(topic)
                if topic.line and topic.has_begun and topic.current.tp not in self._paused:
                    yield from map(self._noted, topic.number())

    def _noted(self, run: Run | ReadPast) -> Run | ReadPast:
        if isinstance(run, Run):
            self._held.number(run)
        return run

    def _repeats(self, topic: Topic) -> Iterable[Run]:
        """Repeats for the core to count, under numbers below all others, which count as settled."""
        repeats, topic.repeats = topic.repeats, []
        for number, message in enumerate(repeats):
            message.number = number
        if repeats:
            slot = topic.current if topic.has_begun else topic.earlier[0]
            yield Run(slot.tp, repeats, 0, len(repeats) - 1)

    def _watch_missing(self) -> None:
        """Give missing messages up after a time, which counts only while they could arrive."""
        now_s = self._clock()
        elapsed_s, self._turned_s = now_s - self._turned_s, now_s
        topics = self._topics.values()
        waiting = [slot for topic in topics for slot in topic.earlier if slot.awaited.count]
        # Full, and new messages are paused but recovery is not: only awaited messages can make room.
        is_stuck = any(topic.current.tp in self._paused for topic in topics) and any(
            slot.tp not in self._paused for slot in waiting
        )
        is_cut_off = self._client.problems() or (self._exchange is not None and self._exchange.problem)
        if not waiting or (self._is_full and not is_stuck) or is_cut_off:
            return
        self._missed_s += min(elapsed_s, 1.0)
        if self._missed_s >= GONE_AFTER_S:
            for slot in waiting:
                self._listener.event("members.gone", "warning", {**slot.tp.fields(), "count": slot.awaited.count})
                slot.give_up(list(slot.awaited.missed))

    def _hold_back(self) -> None:
        """Decide whether to receive: awaited messages are received even while full, because only they make room."""
        new, again = self._held.new, self._held.again
        awaited = sum(slot.awaited.count for topic in self._topics.values() for slot in topic.earlier)
        idle = not awaited and all(topic.current.tp in self._paused for topic in self._topics.values())
        count_max = max(HELD_MAX - again.count - awaited, HELD_MAX // LEAST_SHARE)
        bytes_max = max(self._held_max_bytes - again.nbytes, self._held_max_bytes // LEAST_SHARE)
        # One more message like the largest may exceed the limit by at most 1/8.
        is_large = new.nbytes + self._held.largest_bytes > bytes_max * 9 // 8 and new.count > 0
        self._is_full = idle or is_large or new.count >= count_max or new.nbytes >= bytes_max
        # Parts recovered from the state file come first: until then, the broker gives no more of these queues.
        replays = self._keeps_rows and (bool(self._adopted) or not awaited) and self._has_earlier()
        if (self._is_full or replays) != self._is_held:
            self._is_held = self._is_full or replays
            self._client.pause(self._is_held)

    def _has_earlier(self) -> bool:
        return any(not slot.is_done for topic in self._topics.values() for slot in topic.earlier)

    def _extend(self) -> None:
        if self._clock() >= self._extend_at_s:
            self._extend_at_s = self._clock() + EXTEND_EVERY_S
            self._client.extend([message.handles[-1] for message in self._held.all() if message.handles])

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Pause these numberings, and read all others."""
        self._paused = frozenset(tps)

    def reload(self, tp: TopicPartition) -> None:
        """Never called: the numbers have no gaps."""
        raise AssertionError(f"{tp} has a hole")

    def end(self, tp: TopicPartition) -> int | None:  # noqa: ARG002
        """None: leased clients do not report a queue's end."""
        return None

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """A held message, None for any other; from one other thread."""
        message = self._held.at(tp, offset)
        if message is None:
            return None
        handed = message.handed
        return Original(key_of(message), handed.body, handed.properties, handed.born_ms, details_of(message))

    # Committing

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` reports the end."""
        results = self._prepare(items)
        saved = self._disk.submit(self._state.save_progress, dict(self._unsaved))
        self._commit = Commit(self._clock(), results, saved)

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable after any pending commit, whose end is not reported any more."""
        if self._commit is not None:
            self._is_saved(self._commit.saved)
            self._commit = None
        results = self._prepare(items)
        saved = self._disk.submit(self._state.save_progress, dict(self._unsaved))
        return self._end(results, saved)

    def _prepare(self, items: Sequence[CommitItem]) -> dict[TopicPartition, bool]:
        results, identities = {}, []
        for item in items:
            slot = self._slots.get(item.tp)
            results[item.tp] = slot is not None and slot.scope == item.scope
            if slot is not None and results[item.tp]:
                settled, rows = slot.commit(item.state)
                self._held.settle(item.tp, settled)
                identities += [message.identity for message in settled]
                self._unsaved |= rows
        self._unsaved |= self._settled.add(identities, self._clock())
        return results

    def _go_on(self) -> None:
        begun = self._commit
        if begun is not None and begun.saved.done():
            self._commit = None
            results = self._end(begun.results, begun.saved)
            self._listener.committed(results, self._clock() - begun.begun_s)

    def _end(self, results: Mapping[TopicPartition, bool], saved: Future[None]) -> Mapping[TopicPartition, bool]:
        if not self._is_saved(saved):
            return dict.fromkeys(results, False)
        self._unsaved.clear()
        handles = self._held.saved()
        if handles:
            self._client.ack(handles)
        return results

    def _is_saved(self, saved: Future[None]) -> bool:
        error = saved.exception()
        if isinstance(error, StateError):
            self._listener.event("commit.failed", "warning", {"reason": str(error)})
        elif error is not None:
            raise error
        return error is None

    # The end

    def problems(self) -> Mapping[str, str]:
        """Present problems of the cluster: a key, and a sentence for an operator."""
        return self._troubles.now

    def close(self) -> None:
        """Release unsettled messages and disconnect; may be repeated."""
        if self._closed:
            return
        self._closed = True
        if self._assigned:
            self._listener.revoking([slot.tp for slot in self._begun()])
        self._client.release(handles_of(self._held.unsettled.values()))
        self._client.close()
        self._disk.shutdown()


_OTHER_RULES = "tags, ids or format were changed: messages in flight count as new"
_EVERY_GENERATION = 1 << 62
