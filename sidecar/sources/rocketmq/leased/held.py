"""Messages from the moment they are handed over until the state file has them as settled, and the room for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
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


class HeldMessages:
    """Held messages: by identity until they are settled, by number, and the room that they use."""

    def __init__(self) -> None:
        self.unsettled: dict[bytes, LeasedMessage] = {}
        """Unsettled messages by identity."""
        self.counts: Counter[bool] = Counter()
        self.nbytes: Counter[bool] = Counter()
        """Number and bytes of held messages, by whether they were in flight at a crash."""
        self.largest_bytes = 0
        """Size of the largest held message; 0 after it has left."""
        self._by_number: defaultdict[TopicPartition, dict[int, LeasedMessage]] = defaultdict(dict)
        self._leaving: list[tuple[TopicPartition, list[LeasedMessage]]] = []
        """Settled messages whose settlement is not durable yet."""
        self._late: list[Hashable] = []
        """Further handles of settled messages."""

    def add_message(self, message: LeasedMessage) -> None:
        self.unsettled[message.identity] = message
        self.counts[message.again] += 1
        self.nbytes[message.again] += message.held_bytes
        if message.held_bytes > self.largest_bytes:
            self.largest_bytes = message.held_bytes

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
            for message in messages:
                del self._by_number[tp][message.number]
                self.counts[message.again] -= 1
                self.nbytes[message.again] -= message.held_bytes
                if message.held_bytes >= self.largest_bytes:
                    self.largest_bytes = 0
            handles += handles_of(messages)
        handles += self._late
        self._leaving, self._late = [], []
        return handles


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
        counts, nbytes, awaited = self._held.counts, self._held.nbytes, recovery.awaits
        count_max = max(HELD_MAX - counts[True] - awaited, HELD_MAX // LEAST_SHARE)
        bytes_max = max(self._held_max_bytes - nbytes[True], self._held_max_bytes // LEAST_SHARE)
        # One more message like the largest may exceed the limit by at most 1/8.
        is_large = nbytes[False] + self._held.largest_bytes > bytes_max * 9 // 8 and counts[False] > 0
        is_full = is_large or counts[False] >= count_max or nbytes[False] >= bytes_max
        self.is_full = is_full or (is_idle and not awaited)
        self._close(full=self.is_full or (self._replays_first and recovery.replays()))
        if self._clock() >= self._extend_at_s:
            self._extend_at_s = self._clock() + EXTEND_EVERY_S
            self._client.extend([message.handles[-1] for message in self._held.all() if message.handles])


def handles_of(messages: Iterable[LeasedMessage]) -> list[Hashable]:
    """All handles of these messages."""
    return [handle for message in messages for handle in message.handles]
