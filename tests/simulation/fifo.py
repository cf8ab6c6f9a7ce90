"""Core and leased source on a FIFO broker under seeded schedules: the order of each queue through crashes.

A broker gives nothing more of a queue before what it gave is acknowledged or its time is over, but to a request with
the attempt id that received it. The client is a model of `GrpcClient`, with its attempt ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.core.records import Place
from sidecar.sources.rocketmq.grpc.leases import EXTENDED_S, INVISIBLE_S, RELEASED_S, Attempts, Use
from sidecar.sources.rocketmq.leased.client import HandedMessage
from tests.simulation.leased import LeasedWorld, Process
from tests.simulation.leased_broker import TAGS, TOPIC, Chance
from tests.simulation.shell import GROUPS

WHERE = "orders on b"
SOON_S = 10.0
"""What a killed process had is given to the next one within this time: sooner than its own time is over."""


@dataclass(slots=True)
class _Queue:
    messages: list[int]
    """Numbers."""
    done: int = 0
    """The group's offset: how many from the first on are acknowledged."""
    flushed: int = 0
    attempt: str = ""
    pop: int = 0
    """Which hand-over is the newest; receipts of an older one are worthless."""
    until_s: dict[int, float] = field(default_factory=dict)
    """By offset, when what is out and not acknowledged comes again."""
    acked: set[int] = field(default_factory=set)
    """Offsets that are acknowledged, though not all before them."""
    times: dict[int, int] = field(default_factory=dict)

    def is_locked(self, attempt: str, now_s: float) -> bool:
        """Whether it gives nothing to a request."""
        return attempt != self.attempt and any(until_s > now_s for until_s in self.until_s.values())


class FifoBroker:
    """Queues whose messages are handed over in order.

    Args:
        chance: What goes wrong.
        count: How many messages there are.
    """

    def __init__(self, chance: Chance, count: int) -> None:
        pick = chance.random.choice
        self._chance = chance
        self.messages = [(b"%d" % i, pick(TAGS), f"id{i}") for i in range(count)]
        queues = pick([1, 2, 3])
        self.queues = [_Queue(list(range(at, count, queues))) for at in range(queues)]
        self.now_s = 1_000.0
        """By its own clock, which decides when a time is over."""
        self._pops = 0

    def hand(self, attempt: str, most: int, *, is_crowded: bool) -> list[HandedMessage]:
        """What a request brings: of each queue from the first message that is not acknowledged on."""
        found: list[HandedMessage] = []
        for number, queue in enumerate(self.queues):
            is_busy = is_crowded and self._chance(0.3)  # another request has its lock at this moment
            if len(found) < most and not is_busy and not queue.is_locked(attempt, self.now_s):
                found += self._of(number, queue, attempt, most - len(found))
        return found

    def _of(self, number: int, queue: _Queue, attempt: str, most: int) -> list[HandedMessage]:
        offsets = range(queue.done, min(queue.done + most, len(queue.messages)))
        if not offsets:
            return []
        self._pops += 1
        queue.attempt, queue.pop, queue.acked = attempt, self._pops, set()
        queue.until_s = dict.fromkeys(offsets, self.now_s + INVISIBLE_S)
        return [self._handed(number, queue, offset) for offset in offsets]

    def _handed(self, number: int, queue: _Queue, offset: int) -> HandedMessage:
        body, tag, drawn = self.messages[queue.messages[offset]]
        times = queue.times[offset] = queue.times.get(offset, -1) + 1
        receipt, place = f"{number} {offset} {queue.pop}", Place(TOPIC, "b", number, offset)
        message_id = f"{number:08X}{offset:08X}"
        return HandedMessage(receipt, TOPIC, place, body, 1, 1, drawn, message_id, tag, (), [("TAGS", tag)], times)

    def _find(self, receipt: str) -> tuple[_Queue, int] | None:
        number, offset, pop = map(int, receipt.split())
        queue = self.queues[number]
        return (queue, offset) if queue.pop == pop and offset in queue.until_s else None

    def ack(self, receipt: str) -> None:
        """What is acknowledged up to the first hole is done with."""
        if found := self._find(receipt):
            queue, offset = found
            del queue.until_s[offset]
            queue.acked.add(offset)
            while queue.done in queue.acked:
                queue.acked.remove(queue.done)
                queue.done += 1

    def change(self, receipt: str, time_s: float) -> None:
        """Come again after this time."""
        if found := self._find(receipt):
            found[0].until_s[found[1]] = self.now_s + time_s

    def flush(self) -> None:
        """Keep offsets."""
        for queue in self.queues:
            queue.flushed = queue.done

    def die(self) -> None:
        """Killed: it forgets who has what, and the newest offsets."""
        for queue in self.queues:
            queue.done, queue.until_s, queue.acked, queue.attempt, queue.pop = queue.flushed, {}, set(), "", 0

    def out(self) -> set[tuple[int, int, int]]:
        """What somebody has: queues, offsets, and with which hand-over it came."""
        return {(number, offset, queue.pop) for number, queue in enumerate(self.queues) for offset in queue.until_s}

    def left(self) -> str:
        """What is not acknowledged."""
        return str([(queue.done, len(queue.messages), queue.until_s) for queue in self.queues])

    def current(self) -> list[tuple[bytes, bytes]]:
        """Bodies and tags."""
        return [(body, tag) for body, tag, _ in self.messages]

    @property
    def is_empty(self) -> bool:
        """Whether all is acknowledged."""
        return all(queue.done == len(queue.messages) for queue in self.queues)


@dataclass(slots=True)
class _Lease:
    receipt: str
    use: Use | None = None


class FifoClient:
    """An `LeasedClient` that receives, acknowledges and names its requests as `GrpcClient` does in order.

    Args:
        broker: Hands messages over.
        chance: What goes wrong.
    """

    moves = True

    def __init__(self, broker: FifoBroker, chance: Chance) -> None:
        self._broker, self._chance = broker, chance
        self._attempts = Attempts("place")
        self._open: list[tuple[Use, int]] = []
        self._arrived: list[HandedMessage] = []
        self._leases: dict[Hashable, _Lease] = {}
        self._acks: list[_Lease] = []
        self._tokens = 0
        self._full = self._has_adopted = False

    def open(self) -> None:
        """Nothing to do."""

    def receive(self, timeout_s: float) -> Sequence[HandedMessage]:
        """Some requests are made, some are answered."""
        self._acknowledge()
        if self._has_adopted and not self._full:
            self._has_adopted = bool(self._acks)
        if not self._full and not self._has_adopted:
            count = min(self._chance.random.randrange(1, 9), self._attempts.most(WHERE))
            for use in self._attempts.free(WHERE, len(self._broker.queues)):
                self._attempts.begin_request(use)
                self._open.append((use, count))
        for one in list(self._open):
            self._chance.crash()
            if self._chance.random.random() < 0.3:
                self._open.remove(one)
                self._answer(*one)
        if self._full:
            return []
        found, self._arrived = self._arrived, []
        return found

    def _answer(self, use: Use, count: int) -> None:
        found = self._broker.hand(self._attempts.attempt_id(use), count, is_crowded=bool(self._open))
        self._chance.crash()
        if self._chance(0.03):  # the connection broke: the broker has given them all the same
            self._attempts.answered(use, [], wholly=False, cut=True)
            return
        for one in found:
            self._attempts.hold(use)
            self._arrived.append(one._replace(handle=self._token(str(one.handle), use)))
        self._attempts.answered(use, [one.place.queue for one in found], wholly=len(found) < count, cut=False)

    def _token(self, receipt: str, use: Use | None) -> int:
        self._tokens += 1
        self._leases[self._tokens] = _Lease(receipt, use)
        return self._tokens

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge."""
        self._acks += [lease for handle in handles if (lease := self._leases.pop(handle, None))]

    def _acknowledge(self) -> None:
        """What fails is tried again."""
        acks, self._acks = self._acks, []
        for lease in acks:
            self._chance.crash()
            if self._chance(0.1):
                self._acks.append(lease)
                continue
            self._broker.ack(lease.receipt)
            if lease.use is not None:
                self._attempts.end_request(lease.use)

    def extend(self, handles: Collection[Hashable]) -> None:
        """Keep these, and what waits to be taken."""
        waiting = [one.handle for one in self._arrived]
        for handle in [*handles, *waiting]:
            if handle in self._leases:
                self._broker.change(self._leases[handle].receipt, EXTENDED_S)

    def is_leased(self, handle: Hashable) -> bool:
        """False: the broker is killed at will, so that a message may come at any time."""
        return False

    def release(self, handles: Collection[Hashable]) -> None:
        """Give back."""
        for handle in handles:
            if lease := self._leases.pop(handle, None):
                self._broker.change(lease.receipt, RELEASED_S)

    def receipt(self, handle: Hashable) -> str:
        """What another process needs."""
        lease = self._leases.get(handle)
        return lease.receipt if lease else ""

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        """Of another process."""
        self._has_adopted = True
        return self._token(receipt, None)

    def pause(self, full: bool) -> None:
        """Take nothing in."""
        self._full = full

    def problems(self) -> Mapping[str, str]:
        """None."""
        return {}

    def close(self) -> None:
        """Give back what is left, and acknowledge."""
        self.release(list(self._leases))
        for _ in range(3):
            self._acknowledge()


class FifoWorld(LeasedWorld):
    """One schedule; its broker's clock is put right now and then."""

    broker: FifoBroker  # type: ignore[assignment]

    def __init__(self, seed: int, count: int = 120) -> None:
        super().__init__(seed)
        self.broker = FifoBroker(self.chance, count)
        self._jumps = self.chance.random.random() < 0.5
        self._has_died, self._off_s = False, 0.0
        self._flush_at_ms = 0.0
        self._missed: set[tuple[int, int, int]] = set()
        """What a process had that was killed at the end of all faults."""
        self._killed_ms = 0.0

    def _process(self, at: int) -> Process:
        client = FifoClient(self.broker, self.chance)
        return Process(client, self.receiver, self._states[at], self.chance, None, self.form, is_fifo=True)

    def _round(self) -> None:
        before_ms = self.now_ms
        if not self.chance.faulty and not self._killed_ms:
            self.processes = [None]
            self._missed, self._killed_ms = self.broker.out(), before_ms
        super()._round()
        self.broker.now_s += (self.now_ms - before_ms) / 1000
        self._missed &= self.broker.out()
        is_late = self.now_ms > self._killed_ms + SOON_S * 1000 and not self.chance.faulty
        is_late &= not self._jumps and not self._has_died
        assert not (is_late and self._missed), f"given late: {self._missed}"

    def _happen(self) -> None:
        if self.now_ms >= self._flush_at_ms:
            self._flush_at_ms = self.now_ms + 5_000
            self.broker.flush()
        if self.chance(0.002):
            self.broker.die()
            self._has_died = True  # what was out is given under other ids, so that more of them are in use than queues
        if self._jumps and self.chance(0.01):
            off_s = self.chance.random.choice([600.0, 0.0, -600.0])
            if off_s * self._off_s < 0:
                off_s = 0.0  # by more at once, messages come again after a process has forgotten that it delivered them
            self.broker.now_s += off_s - self._off_s
            self._off_s = off_s

    def _expire_lost(self) -> None:
        """Its time does so."""

    def check(self) -> None:
        """As for any broker; and within a queue and a group rows stand in their order."""
        super().check()
        assert not any(one.gone for one in self.processes if one)
        arrived: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        for key in self.receiver.order:
            number = int(key)
            arrived[number % len(self.broker.queues), self.broker.messages[number][1]].append(number)
        for where, numbers in arrived.items():
            assert numbers == sorted(numbers), f"out of order in {where}: {numbers}"
        assert all(GROUPS[tag] for _, tag in arrived)


def run_fifo(seed: int) -> FifoWorld:
    """Run one schedule, and check what arrived.

    Raises:
        AssertionError: Something was lost, is stuck, came twice, late or out of order.
    """
    world = FifoWorld(seed)
    world.run()
    world.check()
    return world
