"""The numberings of a leased source's topics: those that the core has, and the next messages. No broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.core.records import Run, TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import Listener, ReadPast, run_length
from sidecar.sources.rocketmq.leased.columns import LeasedMessage
from sidecar.sources.rocketmq.leased.held import HeldMessages
from sidecar.sources.rocketmq.leased.slot import Slot
from sidecar.sources.rocketmq.leased.start import LeasedStart
from sidecar.state.interface import State

_EVERY_GENERATION = 1 << 62


@dataclass(slots=True)
class Topic:
    """A topic's numberings."""

    current: Slot
    earlier: list[Slot]
    inherits: TopicPartition | None = None
    """The numbering whose message ids a new current one takes over."""
    has_begun: bool = True
    """Whether the current numbering is assigned to the core."""
    line: list[LeasedMessage] = field(default_factory=list)
    """New messages that have no number yet."""
    repeats: list[LeasedMessage] = field(default_factory=list)
    """Duplicates that the core has not counted yet."""

    def number(self) -> Iterable[Run]:
        """Number the messages in line and hold them."""
        while self.line:
            count = run_length(len(message.handed.body) for message in self.line)
            few, self.line = self.line[:count], self.line[count:]
            yield self.current.number(few)

    def counted(self) -> Iterable[Run]:
        """Repeats for the core to count, under numbers below all others, which count as settled."""
        repeats, self.repeats = self.repeats, []
        for number, message in enumerate(repeats):
            message.number = number
        if repeats:
            slot = self.current if self.has_begun else self.earlier[0]
            yield Run(slot.tp, repeats, 0, len(repeats) - 1)


class Numberings:
    """The numberings of all topics.

    Args:
        in_order: Whether a topic's recovery must be complete before its new messages are handed on.
    """

    def __init__(self, state: State, *, in_order: bool) -> None:
        self.topics: dict[str, Topic] = {}
        self.slots: dict[TopicPartition, Slot] = {}
        self.paused: frozenset[TopicPartition] = frozenset()
        self._state = state
        self._in_order = in_order
        self.are_assigned = False
        self._uncopied: set[TopicPartition] = set()
        """Numberings whose ids could not be copied yet."""

    def add(self, name: str, start: LeasedStart) -> None:
        """Take over the numberings that a topic resumes."""
        waits = self._in_order and bool(start.earlier)
        topic = Topic(start.current, start.earlier, start.inherits, not waits)
        self.topics[name] = topic
        self.slots |= {slot.tp: slot for slot in (start.current, *start.earlier)}
        for key in start.stale:
            if not key.label:
                self._state.ids.drop_before(key.tp, _EVERY_GENERATION)
        if not waits:
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
        """Whether new messages are paused, by topic."""
        return [topic.current.tp in self.paused for topic in self.topics.values()]

    def hand_on(self, listener: Listener, held: HeldMessages, *, is_full: bool) -> Iterable[Run | ReadPast]:
        """The messages that the core gets now.

        Args:
            listener: Is told which numberings begin.
            held: Notes the numbers of messages.
            is_full: Whether there is no room for messages that are awaited.
        """
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
