"""Messages from the moment they are handed over until the state file has them as settled. No client, no core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sidecar.core.records import Run, TopicPartition
from sidecar.sources.rocketmq.leased.columns import Taken

_NUMBER = attrgetter("number")


@dataclass(slots=True)
class Room:
    """Number and bytes of held messages."""

    count: int = 0
    nbytes: int = 0


class Held:
    """Held messages: by identity until they are settled, by number, and the room that they use."""

    def __init__(self) -> None:
        self.unsettled: dict[bytes, Taken] = {}
        """By identity."""
        self.new, self.again = Room(), Room()
        """Room of new messages, and of those that were in flight at a crash."""
        self.largest_bytes = 0
        """Size of the largest held message; 0 after it has left."""
        self._by_number: defaultdict[TopicPartition, dict[int, Taken]] = defaultdict(dict)
        self._leaving: list[tuple[TopicPartition, list[Taken]]] = []
        """Settled messages, not yet durably."""
        self._late: list[Hashable] = []
        """Further handles of settled messages."""

    def add(self, message: Taken) -> None:
        """Hold a message that was handed over."""
        self.unsettled[message.identity] = message
        room, size_bytes = self.again if message.again else self.new, message.held_bytes
        room.count += 1
        room.nbytes += size_bytes
        if size_bytes > self.largest_bytes:
            self.largest_bytes = size_bytes

    def number(self, run: Run) -> None:
        """Note the numbers under which the core has these messages."""
        self._by_number[run.tp].update(zip(map(_NUMBER, run.messages), run.messages, strict=True))

    def at(self, tp: TopicPartition, number: int) -> Taken | None:
        """The message of a number; from any thread."""
        return self._by_number.get(tp, {}).get(number)

    def all(self) -> list[Taken]:
        """All held messages, settled or not."""
        return [*self.unsettled.values(), *(one for _, messages in self._leaving for one in messages)]

    def settle(self, tp: TopicPartition, messages: list[Taken]) -> None:
        """Let these messages leave, as soon as the state file has them as settled."""
        for message in messages:
            if self.unsettled.get(message.identity) is message:  # else the entry is of a twin from before a crash
                del self.unsettled[message.identity]
        self._leaving.append((tp, messages))

    def acknowledge_late(self, handle: Hashable) -> bool:
        """Keep a further handle of a settled message until settled messages are durable; False if they are."""
        if any(messages for _, messages in self._leaving):
            self._late.append(handle)
            return True
        return False

    def saved(self) -> list[Hashable]:
        """Drop settled messages, which are durable now; return their handles."""
        handles: list[Hashable] = []
        for tp, messages in self._leaving:
            self._drop(tp, messages)
            handles += handles_of(messages)
        handles += self._late
        self._leaving, self._late = [], []
        return handles

    def _drop(self, tp: TopicPartition, messages: Sequence[Taken]) -> None:
        numbers = self._by_number[tp]
        for message in messages:
            del numbers[message.number]
        self._free(self.again, [message.held_bytes for message in messages if message.again])
        self._free(self.new, [message.held_bytes for message in messages if not message.again])

    def _free(self, room: Room, sizes: list[int]) -> None:
        room.count -= len(sizes)
        room.nbytes -= sum(sizes)
        if max(sizes, default=0) >= self.largest_bytes:
            self.largest_bytes = 0


def handles_of(messages: Iterable[Taken]) -> list[Hashable]:
    """All handles of these messages."""
    return [handle for message in messages for handle in message.handles]
