"""Core and leased source under seeded schedules: a broker that hands over again as it likes, crashes at every step.

`run_leased(seed)` runs one schedule to its end. No thread, no clock, no socket.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from operator import attrgetter
from unittest.mock import patch

from sidecar.core.claims import ClaimEnd
from sidecar.core.effects import Claim, Effect
from sidecar.core.messages.fields import Field
from sidecar.core.messages.ids import key_reader
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.sources.context import SourceContext
from sidecar.sources.rocketmq.leased import slot
from sidecar.sources.rocketmq.leased.client import LeasedClient
from sidecar.sources.rocketmq.leased.columns import LeasedColumns, LeasedMessage
from sidecar.sources.rocketmq.leased.source import LeasedSource
from sidecar.state.interface import Rules
from tests.simulation.leased_broker import (
    TOPIC,
    Chance,
    CrashError,
    FragileState,
    Inline,
    SimulatedBroker,
    SimulatedClient,
    SimulatedLedger,
    SimulatedReceiver,
)
from tests.simulation.shell import GROUPS, Shell, batching_of, delivery_of, reading_of
from tests.support.memory_ledger import MemoryLedger

ROUNDS_MAX = 40_000
CLAIM_MS = 10_000_000
ROOM = 1 << 20
"""With a ledger for all messages: what waits for a twin makes no room for what that one waits for."""


class Process(Shell):
    """A daemon with a leased source.

    Args:
        client: Hands messages over.
        receiver: Takes batches.
        state: Outlives it.
        chance: What goes wrong.
        ledger: Shared by all, if there is one.
        form: Of rows.
        is_fifo: Whether the broker keeps order, so that the process does too.
    """

    source: LeasedSource

    def __init__(
        self, client: LeasedClient, receiver: SimulatedReceiver, state: FragileState, chance: Chance,
        ledger: MemoryLedger | None = None, form: str = "ndjson", *, is_fifo: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(receiver, chance)
        self._ledger = SimulatedLedger(ledger, CLAIM_MS, chance) if ledger else None
        self._passed_ms = 0.0
        columns = LeasedColumns()
        keys = key_reader(Field("header", "order"), "text", columns, "g") if ledger else None
        reading = reading_of(columns, attrgetter("handed.tag"), form, keys)
        batching = batching_of(chance, chance.random.choice([4_000 if ledger else 30_000, 1 << 20]))
        delivery = delivery_of(
            ordered=ledger is None or chance.ordered, lease_ms=CLAIM_MS // 3 if ledger else None, numbered=True
        )
        self.pipeline = Pipeline(reading, batching, delivery, chance.random.random)
        room = chance.random.choice([20_000, 1 << 20]) if not ledger else ROOM
        ordered = is_fifo or (chance.ordered if ledger else chance.random.random() < 0.2)
        context = SourceContext(
            state, Rules(b"rule"), 0, held_max_bytes=room, groups_of=lambda _: self._groups, keeps_order=ordered
        )
        self.source = LeasedSource(
            client, [TOPIC], "g", context,
            keep_rows=ordered, disk=Inline(),
            exchange=self._ledger, clock=self._clock,
        )  # fmt: skip
        state.failing = ""
        self.source.open(self)
        self._claims: list[Claim] = []

    @property
    def now_ms(self) -> float:
        """Since its start."""
        return self._passed_ms

    @property
    def gone(self) -> int:
        """How often it gave up what did not come again."""
        return self.events.count("members.gone")

    def _clock(self) -> float:
        return self.now_ms / 1000

    def _groups(self, tp: TopicPartition, messages: Sequence[LeasedMessage]) -> list[str | None]:
        return [GROUPS[message.handed.tag] for message in messages]

    def turn(self) -> None:
        """One round of the loop, with an answer now and then."""
        self._passed_ms += self._chance.random.choice([1, 5, 30]) * (1 if self._chance.faulty else 5)
        if self._claims and self._chance.random.random() < 0.5:
            self._claim(self._claims.pop(self._chance.random.randrange(len(self._claims))))
        super().turn()

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Claim):
            self._claims.append(effect)
        else:
            super()._do(effect)

    def _settle(self, marks: Sequence[ClaimEnd]) -> bool:
        assert self._ledger is not None
        return self._ledger.settle(marks)

    def _claim(self, claim: Claim) -> None:
        assert self._ledger is not None
        self.pipeline.claimed(claim.number, self._ledger.claim(claim.wants), self.now_ms)


class LeasedWorld:
    """One schedule.

    Args:
        seed: Of all chances.
        members: Processes in the group.
        count: Messages.
        copies: How many of them are sent twice, which a ledger is to tell; without any there is none.
        remade: Whether the topic is made again now and then.

    Attributes:
        processes: Those that live.
        crashes: How many there were.
        wall: The processes' wall clock.
    """

    def __init__(self, seed: int, members: int = 1, count: int = 120, copies: int = 0, *, remade: bool = False) -> None:
        self.chance = Chance(seed)
        self.broker = SimulatedBroker(self.chance, count, copies)
        self.now_ms = 0.0
        self.ledger = MemoryLedger(lambda: self.now_ms) if copies else None
        self.receiver = SimulatedReceiver()
        self.form = "envelope" if random.Random(~seed).random() < 0.3 and not copies else "ndjson"
        self._states = [FragileState() for _ in range(members)]
        for state in self._states:
            state.chance = self.chance
        self.processes: list[Process | None] = [None] * members
        self.crashes = 0
        self.remade = 0
        self._remakes = remade
        self.wall = Wall(self.chance)

    def run(self, rounds: int = 400) -> None:
        """Faults for so many rounds, then none until all is settled."""
        with patch.object(slot, "time", self.wall):
            for _ in range(rounds):
                self._round()
            self.chance.faulty = False
            for number in range(ROUNDS_MAX):
                self._round()
                if number % 50 == 0:
                    self._expire_lost()
                if self.broker.is_empty and all(one and one.pipeline.idle for one in self.processes):
                    return
        raise AssertionError(f"stuck: {self.broker.left()}")

    def _process(self, at: int) -> Process:
        client = SimulatedClient(self.broker, self.chance)
        return Process(client, self.receiver, self._states[at], self.chance, self.ledger, self.form)

    def _round(self) -> None:
        self.now_ms += 12 if self.chance.faulty else 60
        for at, process in enumerate(self.processes):
            try:
                process = process or self._process(at)
                self.processes[at] = process
                process.turn()
                if self.chance(0.003):
                    process.stop()
                    self.processes[at] = None
            except CrashError:
                self.crashes += 1
                self.processes[at] = None
        self._happen()

    def _happen(self) -> None:
        if self.chance(0.05):
            leases = list(self.broker.leases)
            self.broker.expire(self.chance.random.sample(leases, min(len(leases), 5)))
        if self.chance(0.01):
            self.broker.die()
        if self._remakes and self.chance(0.01):
            self.broker.remake()
            self.remade += 1

    def _expire_lost(self) -> None:
        """What nobody holds, since its process is gone or an acknowledgement was lost, comes again."""
        held: set[int] = set()
        for process in self.processes:
            if process:
                held |= {int(str(h)) for one in process.source._held.unsettled.values() for h in one.handles[-1:]}
        self.broker.expire([handle for handle in self.broker.leases if handle not in held])

    def check(self) -> None:
        """What arrived is what is wanted.

        Raises:
            AssertionError: Something was lost or, with one member or a ledger, came twice or with other bytes.
        """
        wanted = {body.split()[0] for body, tag in self.broker.current() if GROUPS[tag]}
        rows = self.receiver.keys
        assert not wanted - rows.keys(), f"lost {wanted - rows.keys()}"
        assert self.remade or not rows.keys() - wanted, f"not wanted {rows.keys() - wanted}"
        if len(self.processes) == 1 or self.ledger:
            assert max(rows.values()) == 1, f"twice {[row for row, times in rows.items() if times > 1]}"
        if len(self.processes) == 1 and not self.remade:
            assert not self.receiver.differing, f"other bytes under {self.receiver.differing}"


class Wall:
    """In place of the module `time`: a clock that is put right now and then, by minutes.

    Args:
        chance: When.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._at_s = 1_700_000_000.0

    def time_ns(self) -> int:
        """Nanoseconds."""
        self._at_s += self._chance.random.choice([1.0, 600.0, -600.0])
        return int(self._at_s * 1_000_000_000)


def run_leased(seed: int, members: int = 1, *, copies: int = 0, remade: bool = False) -> LeasedWorld:
    """Run one schedule, and check what arrived.

    Raises:
        AssertionError: A promise was broken.
    """
    world = LeasedWorld(seed, members, copies=copies, remade=remade)
    world.run()
    world.check()
    return world
