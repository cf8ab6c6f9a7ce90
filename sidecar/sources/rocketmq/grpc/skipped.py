"""Queues whose first messages a broker skipped when their topic was recreated. No connection, no thread.

A broker that gives messages to a consumer while their topic is deleted may commit the old queue's offset after the
deletion, and then begins the new queue there. Over gRPC nothing can be read again, so this can only be reported: a
queue continued beyond its old end, while another queue of the topic at the same broker began anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.core.records import TopicPartition
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.leased.client import HandedMessage

SETTLES_S = 5.0
"""Answers to several requests may overtake each other: an earlier message of the queue may come for this long."""
RECENT_MAX = 64
"""Limit of remembered places of a queue: more than one answer brings."""
_NONE = 1 << 62


@dataclass(slots=True)
class _WatchedQueue:
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    """Commit-log position and offset of the last messages."""
    highest: tuple[int, int] = (-1, -1)
    """The highest of these and of earlier ones."""
    old_end: int | None = None
    """The offset after its last message before the topic was recreated, until the new queue's start is known."""
    first: int = _NONE
    """The first message since then, among those that arrived."""
    told_at_s: float = 0.0
    """Time at which both are compared, once there is a first message."""
    known_of: int = 0
    """The recreation of the topic whose effect on this queue is known."""


@dataclass(slots=True)
class _WatchedTopic:
    """A topic at one broker."""

    queues: dict[int, _WatchedQueue] = field(default_factory=dict)
    recreations: int = 1
    begins_at: int = _NONE
    """Position of the first message since the last recreation, as far as known."""


class Skipped:
    """Watches the messages that are handed over."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._topics: dict[tuple[str, str], _WatchedTopic] = {}

    def look(self, handed: HandedMessage, now_s: float) -> None:
        """Look at a message that was handed over."""
        name, broker, number, offset = handed.place
        if name != handed.topic or offset < 0 or not handed.offset_message_id:
            return
        where = name, broker
        topic = self._topics.get(where) or self._topics.setdefault(where, _WatchedTopic())
        queue = topic.queues.get(number) or topic.queues.setdefault(number, _WatchedQueue())
        position = int(handed.offset_message_id[-16:], 16)
        stored = position, offset
        if position > queue.highest[0] and offset <= queue.highest[1]:
            old_end_at = queue.highest[0]
            topic.queues[number] = queue = _WatchedQueue()
            _begin(topic, old_end_at, position, now_s)
            queue.known_of = topic.recreations
        queue.recent.append(stored)
        queue.highest = max(queue.highest, stored)
        if queue.old_end is not None:
            _note(queue, [stored], topic.begins_at, now_s)

    def turn(self, now_s: float) -> None:
        """Report the queues that are certain by now."""
        for (name, broker), topic in self._topics.items():
            for number, queue in topic.queues.items():
                if queue.old_end is not None and queue.first < _NONE and now_s >= queue.told_at_s:
                    if queue.first >= queue.old_end:
                        self._say(TopicPartition(name, number, broker), queue.first)
                    queue.old_end, queue.known_of = None, topic.recreations

    def _say(self, tp: TopicPartition, offset: int) -> None:
        action = "reset the group's offset to read them"
        self._tell("offset.skipped", "error", {**tp.fields(), "offset": offset, "skipped": offset, "action": action})


def _begin(topic: _WatchedTopic, old_end_at: int, first: int, now_s: float) -> None:
    """Handle a queue that began anew: so did the others, somewhere after their earlier messages.

    The queues of a topic may begin minutes apart. It is another recreation only if the queue had a message after the
    last one.
    """
    if old_end_at >= topic.begins_at:
        topic.recreations, topic.begins_at = topic.recreations + 1, first
    topic.begins_at = min(topic.begins_at, first)
    for queue in topic.queues.values():
        older = [offset for position, offset in queue.recent if position < topic.begins_at]
        if older and queue.known_of < topic.recreations:
            queue.old_end, queue.first = max(older) + 1, _NONE
            _note(queue, queue.recent, topic.begins_at, now_s)


def _note(queue: _WatchedQueue, places: Iterable[tuple[int, int]], begins_at: int, now_s: float) -> None:
    """Record the first of these since the topic was recreated, if it is earlier than the known one."""
    first = min((offset for position, offset in places if position >= begins_at), default=_NONE)
    if queue.first == _NONE > first:
        queue.told_at_s = now_s + SETTLES_S
    queue.first = min(queue.first, first)
