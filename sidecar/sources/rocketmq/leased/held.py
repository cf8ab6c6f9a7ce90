"""Messages from the moment they are handed over until the state file has them as settled, and the room for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import ReadPast
from sidecar.sources.rocketmq.leased.client import LeasedClient
from sidecar.sources.rocketmq.leased.columns import LeasedMessage
from sidecar.sources.rocketmq.leased.recovery import LeasedRecovery

HELD_MAX = 20_000
"""Limit of held messages: the lease of each must be extended."""
LEAST_SHARE = 8
"""Recovered messages must not starve new ones: 1/8 of the room is reserved for new messages."""
EXTEND_EVERY_S = 2.0
_NUMBER = attrgetter("number")


@dataclass(slots=True)
class HeldRoom:
    """Number and bytes of held messages."""

    count: int = 0
    nbytes: int = 0


class HeldMessages:
    """Held messages: by identity until they are settled, by number, and the room that they use."""

    def __init__(self) -> None:
        self.unsettled: dict[bytes, LeasedMessage] = {}
        """Unsettled messages by identity."""
        self.new, self.again = HeldRoom(), HeldRoom()
        """Room of new messages, and of those that were in flight at a crash."""
        self.largest_bytes = 0
        """Size of the largest held message; 0 after it has left."""
        self._by_number: defaultdict[TopicPartition, dict[int, LeasedMessage]] = defaultdict(dict)
        self._leaving: list[tuple[TopicPartition, list[LeasedMessage]]] = []
        """Settled messages whose settlement is not durable yet."""
        self._late: list[Hashable] = []
        """Further handles of settled messages."""

    def add_message(self, message: LeasedMessage) -> None:
        self.unsettled[message.identity] = message
        room, size_bytes = self.again if message.again else self.new, message.held_bytes
        room.count += 1
        room.nbytes += size_bytes
        if size_bytes > self.largest_bytes:
            self.largest_bytes = size_bytes

    def noted(self, run: Run | ReadPast) -> Run | ReadPast:
        """Note the numbers under which the core has these messages."""
        if isinstance(run, Run):
            self._by_number[run.tp].update(zip(map(_NUMBER, run.messages), run.messages, strict=True))
        return run

    def numbered(self, tp: TopicPartition, number: int) -> LeasedMessage | None:
        """The message of a number; from any thread."""
        return self._by_number.get(tp, {}).get(number)

    def all(self) -> list[LeasedMessage]:
        return [*self.unsettled.values(), *(message for _, messages in self._leaving for message in messages)]

    def settle(self, tp: TopicPartition, messages: list[LeasedMessage]) -> None:
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

    def _drop(self, tp: TopicPartition, messages: Sequence[LeasedMessage]) -> None:
        numbers = self._by_number[tp]
        for message in messages:
            del numbers[message.number]
        self._free(self.again, [message.held_bytes for message in messages if message.again])
        self._free(self.new, [message.held_bytes for message in messages if not message.again])

    def _free(self, room: HeldRoom, sizes: list[int]) -> None:
        room.count -= len(sizes)
        room.nbytes -= sum(sizes)
        if max(sizes, default=0) >= self.largest_bytes:
            self.largest_bytes = 0


class ReceiveGate:
    """Lets the client receive while there is room, and extends the leases of held messages.

    Args:
        replays_first: Whether parts recovered from the state file come first: until then, the broker gives no more of
            these queues.
    """

    def __init__(
        self,
        client: LeasedClient,
        held: HeldMessages,
        held_max_bytes: int,
        clock: Callable[[], float],
        *,
        replays_first: bool,
    ) -> None:
        self._client = client
        self._held = held
        self._held_max_bytes = held_max_bytes
        self._clock = clock
        self._replays_first = replays_first
        self.is_full = False
        """Whether there is no room, or nothing to receive for."""
        self._is_closed = False
        self._extend_at_s = clock()

    def open(self) -> None:
        """Keep the client from receiving before recovery is known."""
        if self._replays_first:
            self._close(full=True)

    def _close(self, *, full: bool) -> None:
        if full != self._is_closed:
            self._is_closed = full
            self._client.pause(full)

    def turn(self, recovery: LeasedRecovery, *, is_idle: bool) -> None:
        """Decide whether to receive: awaited messages are received even while full, because only they make room."""
        new, again, awaited = self._held.new, self._held.again, recovery.awaits
        count_max = max(HELD_MAX - again.count - awaited, HELD_MAX // LEAST_SHARE)
        bytes_max = max(self._held_max_bytes - again.nbytes, self._held_max_bytes // LEAST_SHARE)
        # One more message like the largest may exceed the limit by at most 1/8.
        is_large = new.nbytes + self._held.largest_bytes > bytes_max * 9 // 8 and new.count > 0
        is_full = is_large or new.count >= count_max or new.nbytes >= bytes_max
        self.is_full = is_full or (is_idle and not awaited)
        self._close(full=self.is_full or (self._replays_first and recovery.replays()))
        if self._clock() >= self._extend_at_s:
            self._extend_at_s = self._clock() + EXTEND_EVERY_S
            self._client.extend([message.handles[-1] for message in self._held.all() if message.handles])


def handles_of(messages: Iterable[LeasedMessage]) -> list[Hashable]:
    """All handles of these messages."""
    return [handle for message in messages for handle in message.handles]
