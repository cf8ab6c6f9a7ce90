"""Core and the source on remoting under seeded schedules: resets, topics made again, kills and clocks at every step.

`run_remoting(seed)` runs one schedule to its end. The source is the real one with all of its parts; its network and its
clock are simulated. No thread, no clock, no socket.
"""

from __future__ import annotations

from collections import Counter, deque

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.errors import UnavailableError
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.state.interface import ProgressKey
from tests.simulation.leased_broker import Chance, CrashError, FragileState, SimulatedReceiver
from tests.simulation.remoting_broker import (
    GROUP,
    NAME_SERVER,
    TOPIC,
    Clock,
    Kept,
    SimulatedBroker,
    queue_of,
    reset_frame,
)
from tests.simulation.remoting_process import Process, simulated
from tests.simulation.shell import GROUPS

ROUNDS_MAX = 4_000
EXPRESSIONS = ["*", "a || b || c"]
NOTED_S, NOTED_TURNS = 3.0, 20
"""After so long and so many turns a commit is known to the state folder: the next one keeps it, or a note of a queue
that rests."""
MARKED_S, MARKED_TURNS = 3.0, 60
"""So long it takes until the state folder has a mark of a queue that is begun after its first message."""
TOLD_S = 3.0
"""A broker tells a member of a reset once: if one of both ends meanwhile, nobody knows it any more."""


class RemotingWorld:
    """One schedule.

    Args:
        seed: Of all chances.

    Attributes:
        crashes: How many there were.
        resets: How many there were.
        made: How often the topic was made again.
        begun: When a queue was begun in its middle last, and in which turn.
        expired: How often old messages were dropped.
    """

    def __init__(self, seed: int) -> None:
        self.chance = Chance(seed)
        pick = self.chance.random.choice
        self.clock = Clock()
        self.broker = SimulatedBroker(self.clock, self.chance)
        self.receiver = SimulatedReceiver()
        self.state = FragileState()
        self.state.chance = self.chance
        self.form = pick(["ndjson", "envelope"])
        self.expression = pick(EXPRESSIONS)
        config = {"name_servers": NAME_SERVER, "group": GROUP, "topics": [TOPIC], "start_timeout": "5s"}
        self.start = pick(["earliest", "earliest", "latest"])
        self.settings = Settings.model_validate(config | {"start": self.start})
        self.rates = [pick([0.0, rate, 3 * rate]) for rate in (0.004, 0.004, 0.004, 0.001)]
        """Of a topic that is made again, a reset, a kill of the broker, lost ends and old messages."""
        self._send_rate = pick([0.03, 0.03, 0.003])
        self.broker.questioned = self._on_question
        self.process: Process | None = None
        self.crashes = self.resets = self.made = self.expired = 0
        self._bare_since: tuple[float, int] | None = None
        self._turns = 0
        self.begun = (-MARKED_S, -MARKED_TURNS)
        self._is_opening = False
        self._reset_at_s: dict[int, float] = {}
        self.wanted: set[bytes] = set()
        self.allowed: Counter[bytes] = Counter()
        self._again: list[_Again] = []
        self._broker_ended_at_s = 0.0
        self._turned_at_s: deque[float] = deque(maxlen=NOTED_TURNS)
        """When the process's newest turns ended."""
        self._read: set[int] = set()
        """Queues that it had then."""
        self._noted_s: dict[int, float] = {}
        """By queue: commits before that time are known to the state folder."""
        self._floors: dict[int, int] = {}
        """What brokers had committed before a long rest, which nothing in between made worthless."""
        self._sizes = [0]
        self.broker.make(pick([1, 2, 3]))
        self._send(20)

    # What happens

    def happen(self) -> None:
        """Perhaps something, between any two steps of the network."""
        chance, broker = self.chance, self.broker
        if not broker.is_up:
            if not chance.faulty or chance(0.02):
                broker.is_up = True
        elif chance(self.rates[2]):
            killed = broker.may_be_killed and not chance(0.3)
            self._doubt(killed=killed)
            if killed:
                self._forget_resets()
            broker.end(killed=killed)
            self._broker_ended_at_s, self._bare_since = self.clock.now_s, None
            if chance(0.1) and self.expression == "*":  # what a broker leaves out leaves no mark
                self._lose_end()
        if broker.queues is None:
            if not chance.faulty or chance(0.1):
                self._make()
        elif self._deletes(self.rates[0]):
            self._delete()
            if not chance(0.3):
                self._make()
        elif broker.is_up and chance(self.rates[1]):
            self._reset()
        elif chance(self.rates[3]):
            self._expire()
        if broker.queues is not None and broker.is_up and chance(self._send_rate):
            self._send(chance.random.randrange(1, 12))
        if chance(0.01):
            broker.clock_off_ms = chance.random.randrange(-600_000, 600_000)
        self.clock.now_s += chance.random.choice([0.0, 0.5, 3.0]) if chance(0.01) else 0.0

    def begin(self) -> None:
        """A queue is begun after its first message: nothing that is known of it tells it from another one yet."""
        self.begun = (self.clock.now_s, self._turns)

    def _delete(self) -> None:
        self._sizes = [queue.high for queue in self.broker.queues or ()]
        self.broker.delete()
        self.wanted.clear()
        self._again.clear()
        self._floors.clear()

    def _deletes(self, rate: float) -> bool:
        """Whether the topic is deleted now.

        Not before the state folder can have a mark of each queue that something was read of: nothing else tells then
        that a queue is another one. Where it has none by then, it never will, and that is to be seen.
        """
        self._turns += 1
        if not self.broker.is_up or not self.chance(10 * rate) or self.clock.now_s < self.broker.obeyed_at_s + TOLD_S:
            return False
        if self.process and self.process.is_told():
            return False
        is_new = self.start == "latest" and not self.state.load_progress()
        since_s, turns = self.begun
        if self.clock.now_s < since_s + MARKED_S or self._turns < turns + MARKED_TURNS:
            return False
        if is_new and (self.process is not None or self._is_opening):  # where it begins is being decided
            return False
        bare = self._bare()
        if not bare:
            self._bare_since = None
            return rate == 1.0 or self.chance(0.1)
        since_s, turns = self._bare_since = self._bare_since or (self.clock.now_s, self._turns)
        is_due = self._turns >= turns + MARKED_TURNS and self.clock.now_s >= since_s + MARKED_S
        return is_due and self.process is not None and all(self.broker.has_messages(number) for number in bare)

    def _bare(self) -> set[int]:
        """Queues that are begun after their first message, and the state folder has no mark of."""
        rows = [(key.number, QueueProgress.load(text)) for key, text in self.state.load_progress().items()]
        marked = {number for number, row in rows if row and row.marks}
        read = {number for number, row in rows if row and row.watermark}
        read |= {number for number, offset in self.broker.committed.items() if offset}
        if self.process is not None:
            read |= {number for number, offset in self.process.offsets().items() if offset}
        return read - marked

    def _make(self) -> None:
        """Make the topic again: as large as it was, or of any size."""
        self.made += 1
        if self.chance(0.3):
            self.broker.make(len(self._sizes))
            for number, size in enumerate(self._sizes):
                self._send(size, number)
        else:
            self.broker.make(self.chance.random.choice([1, 2, 3]))
            self._send(self.chance.random.choice([0, 5, 40]))

    def _send(self, count: int, number: int | None = None) -> None:
        before = self._kept()
        self.broker.send(count, number)
        new = [one for key, one in self._kept().items() if key not in before]
        is_known = self.broker.committed and self.broker.flushed  # what is flushed alone may be of a topic that is gone
        if self.start == "earliest" or is_known or self.state.load_progress():  # else it is a new group
            self.wanted |= {one.key for one in new if GROUPS[one.tag]}
        self.allowed.update(one.key for one in new)

    def _kept(self) -> dict[bytes, Kept]:
        return {one.key: one for queue in self.broker.queues or () for one in queue.messages}

    def _reset(self) -> None:
        """To any offset of a queue, by an operator, whether the daemon runs or not."""
        broker = self.broker
        assert broker.queues is not None
        number = self.chance.random.randrange(len(broker.queues))
        if self.clock.now_s < self._reset_at_s.get(number, 0.0) + TOLD_S:  # whichever came last would be anyone's guess
            return
        self._reset_at_s[number] = self.clock.now_s
        queue = broker.queues[number]
        offset = self.chance.random.randrange(queue.low, queue.high + 1)
        is_back = offset < broker.committed.get(number, -1)
        if self.process is None:  # put back to where it stopped, it knows of no offset that was set meanwhile
            is_back &= offset < broker.taken.get(number, -1)
        is_known = self._is_known(number, offset)
        self.resets += 1
        self.wanted -= {one.key for one in queue.messages[:offset]}
        self.allowed.update(one.key for one in queue.messages[offset:])
        if broker.is_new or self.process is None:
            broker.reset(number, offset)
        else:
            self.process.source._cluster.network.take_request(reset_frame(number, offset))
            broker.obeyed_at_s = self.clock.now_s
            # In a long rest the locks lapse: then an offset that was told is one that somebody else may have set.
            is_back &= self.process.reads(number) and not self.state.is_sound
        self._again = [one for one in self._again if one.number != number]
        self._floors.pop(number, None)
        if is_back and is_known:
            again = {one.key for one in queue.messages[offset:] if GROUPS[one.tag]}
            self._again.append(_Again(number, offset, self.clock.now_s, {key: self.count(key) for key in again}))

    def _on_question(self) -> None:
        """An operator is quicker than a question for a mark."""
        if self.chance(4 * self.rates[1]):
            self._reset()

    def _is_known(self, number: int, offset: int) -> bool:
        """Whether what the broker had is known to the daemon, or to its state folder."""
        if offset < self._floors.get(number, -1):
            return True
        is_told = self._has_noted(number) or (self.process is not None and self.process.reads(number))
        is_same_run = self.broker.taken_at_s.get(number, -1.0) > self._broker_ended_at_s
        return self.broker.tells_boot and is_told and is_same_run

    def _has_noted(self, number: int) -> bool:
        return self.broker.taken_at_s.get(number, 0.0) <= self._noted_s.get(number, 0.0)

    def _doubt(self, *, killed: bool = False) -> None:
        """Of these resets nothing tells that they were none of what a broker forgets in a crash."""
        written_s = self.broker.flushed_at_s if killed else self.clock.now_s
        self._again = [
            one for one in self._again if one.offset < self._floors.get(one.number, -1) and one.at_s <= written_s
        ]

    def _forget_resets(self) -> None:
        """A broker that is killed just after a reset may be ahead again: as if another member had gone on.

        It may also be back at an earlier reset, which is obeyed then.
        """
        for number, queue in enumerate(self.broker.queues or ()):
            known = min(offsets.get(number, -1) for offsets in (self.broker.committed, self.broker.taken))
            at = self.broker.flushed.get(number, -1)
            if at > known or number in self.broker.flushed_set:
                self.allowed.update(one.key for one in queue.messages[at:])
            if at > known:
                self.wanted -= {one.key for one in queue.messages[:at]}

    def count(self, key: bytes) -> int:
        """How often a message arrived."""
        return self.receiver.keys[key]

    def _lose_end(self) -> None:
        queues = self.broker.queues
        if queues and not self._bare():
            number = self.chance.random.randrange(len(queues))
            lost = self.broker.lose_end(number, self.chance.random.randrange(1, 6))
            self.wanted -= {one.key for one in lost}
            self._again.clear()
            self._floors.clear()
            self.allowed.update(one.key for one in queues[number].messages)

    def _expire(self) -> None:
        assert self.broker.queues is not None
        number = self.chance.random.randrange(len(self.broker.queues))
        if not self._is_met(number):  # of a topic made again nothing tells that its first messages are gone
            return
        self.expired += 1
        queue = self.broker.queues[number]
        queue.low = self.chance.random.randrange(queue.low, queue.high + 1)
        gone = {one.key for one in queue.messages[: queue.low]}
        self.wanted -= gone
        for one in self._again:
            for key in gone:
                one.counts.pop(key, None)

    def _is_met(self, number: int) -> bool:
        """Whether all that the daemon knows of a queue is of the present topic."""
        row = QueueProgress.load(self.state.load_progress().get(ProgressKey.of(queue_of(number)), ""))
        marks = [row and row.mark, self.process.mark(number) if self.process else None]
        queue = (self.broker.queues or ())[number]
        here = {(one.offset, one.position) for one in queue.messages}
        return self.broker.is_told_of(number) and all(mark is None or mark[:2] in here for mark in marks)

    # The schedule

    def run(self, rounds: int = 250) -> None:
        """Faults for so many rounds, then none until all is settled."""
        for _ in range(rounds):
            self._round()
        if self.broker.queues is not None and self._deletes(1.0) and self.chance.random.random() < 0.5:
            self._delete()
            self._make()
        self.chance.faulty = False
        for _ in range(ROUNDS_MAX):
            self._round()
            if self.process and self._has_all() and self.process.pipeline.idle:
                return
        raise AssertionError(f"stuck: {self.missing()}, {self.process and self.process.source.problems()}")

    def _has_all(self) -> bool:
        return not self.missing()

    def missing(self) -> set[bytes]:
        """What has not arrived, or not again."""
        again = {key for one in self._again for key, count in one.counts.items() if self.count(key) <= count}
        return {key for key in self.wanted if not self.count(key)} | again

    def _round(self) -> None:
        try:
            if self.process is None:
                self.happen()
                if self.broker.queues and self.broker.is_up and self.chance(20 * self.rates[1]):
                    self._reset()
                if self.chance(0.7):
                    self.clock.now_s += self.chance.random.choice([0.1, 1.0, 20.0])
                    self.broker.tick()
                    return
                self._is_opening = True
                self.process = Process(self)
                self._is_opening = False
            self.process.wait_s = 0.05 if self.chance.faulty else 0.5
            self._turn()
            if self.chance(0.003):
                self._idle()
            if self.chance(0.005):
                self.process.stop()
                self._end(well=not self.state.failing)
        except UnavailableError:
            self._end()
        except CrashError:
            self.crashes += 1
            if self.process:
                self.process.die()
            self._end()

    def _turn(self) -> None:
        assert self.process is not None
        self.process.turn()
        self._turned_at_s.append(self.clock.now_s)
        self._read = {number for number in range(len(self.broker.queues or ())) if self.process.reads(number)}

    def _end(self, *, well: bool = False) -> None:
        self.broker.forget_stale()
        self._bare_since = None
        self.state.is_sound = self._is_opening = False
        if self.process is not None:
            noted_s = self.clock.now_s if well else self._turned_at_s[0] - NOTED_S if self._turned_at_s else 0.0
            self._noted_s |= {number: max(noted_s, self._noted_s.get(number, 0.0)) for number in self._read}
            self._again = [one for one in self._again if self._has_survived(one)]
        self.process = None
        self._turned_at_s.clear()
        self._read.clear()

    def _has_survived(self, one: _Again) -> bool:
        """Whether a reset that was perhaps not obeyed yet is still known to somebody."""
        is_told = one.number in self.broker.resets or one.at_s <= self.clock.now_s - TOLD_S
        return is_told and self._has_noted(one.number)

    def _idle(self) -> None:
        """Some minutes in which little happens."""
        assert self.process is not None
        was_up, before = self.broker.is_up, dict(self.broker.committed)
        happened = (self.made, self.resets, self.broker.stops)
        self.state.is_sound = True
        for _ in range(40):
            self.clock.now_s += 8.0
            self._turn()
        self.state.is_sound = False
        has_happened = happened != (self.made, self.resets, self.broker.stops)
        if was_up and not has_happened and self.broker.queues is not None:  # a broker that is away tells nothing
            self._floors = before


class _Again:
    """Messages that must come again, since an operator wanted it."""

    def __init__(self, number: int, offset: int, at_s: float, counts: dict[bytes, int]) -> None:
        self.number, self.offset, self.at_s, self.counts = number, offset, at_s, counts


def run_remoting(seed: int) -> RemotingWorld:
    """Run one schedule, and check what arrived.

    Raises:
        AssertionError: Something was lost, is stuck, came twice, or did not come again after a reset.
    """
    world = RemotingWorld(seed)
    with simulated(world):
        world.run()
    twice = {key for key, times in world.receiver.keys.items() if times > world.allowed[key]}
    assert not twice, f"seed {seed}: twice {sorted(twice)}"
    # What expired is missing in a part that is sent again, and so may be what was deleted meanwhile.
    assert world.expired or world.made or not world.receiver.differing, (
        f"seed {seed}: other bytes under {world.receiver.differing}"
    )
    return world
