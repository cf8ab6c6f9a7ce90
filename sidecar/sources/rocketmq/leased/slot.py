"""A numbering of a topic's messages: the unsettled ones, and those awaited after a crash. No broker.

The numbers are the offsets that the core sees. In the state file a slot has a row for the core's state, and rows for
the members of its intents.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter

from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import Assignment, ReadPast
from sidecar.sources.rocketmq.leased.columns import LeasedMessage
from sidecar.sources.rocketmq.leased.members import Awaited, IntentMember, IntentMembers
from sidecar.sources.rocketmq.leased.unsettled import divide, unsettled
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, encode


class Slot:
    """A numbering.

    Args:
        tp: The topic, and the slot's number for a partition.
        identity: The identity of its offsets.
        rules: 4 bytes, the hash of the rules.
        state: The state that it resumes.
        members: Members of its intents from before a crash, by row.
        resumed: Whether it was in the state file.
    """

    def __init__(
        self,
        tp: TopicPartition,
        identity: Identity,
        rules: bytes,
        state: PartitionState,
        members: Mapping[int, list[IntentMember]],
        *,
        resumed: bool,
        kept: Callable[[LeasedMessage], str] | None = None,
    ) -> None:
        self.tp = tp
        self.scope = identity.scope
        self._identity = identity
        self._rules = rules
        self._start = state
        self._resumed = resumed
        self._next = state.seen
        self._held: dict[int | None, list[LeasedMessage]] = {}
        """Unsettled messages that the core has, by group and number."""
        self.awaited = Awaited(members)
        self._members = IntentMembers(tp, members, kept)
        self._is_complete = False
        """Whether the core has all messages that were awaited."""

    def assignment(self) -> Assignment:
        """The assignment for the core."""
        state = self._start
        return Assignment(self.tp, self.scope, state, "", self._identity.incarnation, self._resumed, state.watermark)

    @property
    def is_done(self) -> bool:
        """Whether no message is unsettled."""
        return self.awaited.is_empty and not any(self._held.values())

    def number(self, messages: list[LeasedMessage]) -> Run:
        """Number these messages and hold them."""
        first = self._next
        for number, message in enumerate(messages, first):
            message.number = number
            self._held.setdefault(message.key, []).append(message)
        self._next += len(messages)
        return Run(self.tp, messages, first, self._next - 1)

    def give_up(self, identities: Collection[bytes]) -> None:
        """Give up these awaited messages: their parts are sent without them."""
        self._members.leave(self.awaited.give_up(identities))

    def ready(self) -> Iterable[Run | ReadPast]:
        """Awaited messages that may be handed to the core in order, because all earlier ones are there."""
        if self._is_complete:
            return
        messages = self.awaited.pass_on()
        for message in messages:
            insort(self._held.setdefault(message.key, []), message, key=attrgetter("number"))
        if messages:
            yield Run(self.tp, messages, messages[0].number, messages[-1].number)
        if self.awaited.is_empty:
            self._is_complete = True
            yield ReadPast(self.tp, self._start.seen)

    def commit(self, state: PartitionState) -> tuple[list[LeasedMessage], dict[ProgressKey, str]]:
        """The messages that a state settles, and the rows that make this durable."""
        rows = {ProgressKey.of(self.tp): self._row(state)} | self._members.record(state, self._held)
        settled: list[LeasedMessage] = []
        for key, messages in list(self._held.items()):
            left, done = divide(messages, unsettled(state, key))
            settled += done
            self._held[key] = left
            if not left:
                del self._held[key]
        self._members.leave(map(attrgetter("chunk"), settled))
        return settled, rows | self._members.drop_empty()

    def _row(self, state: PartitionState) -> str:
        text = encode(self._identity, self._rules, state)
        return QueueProgress(text, self._identity.incarnation, state.watermark, 0).dump()
