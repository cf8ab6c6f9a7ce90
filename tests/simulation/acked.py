"""Core and acked source under seeded schedules: a broker that hands over again as it likes, crashes at every step.

`run_acked(seed)` runs one schedule to its end. No thread, no clock, no socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery import DeliveryRules
from sidecar.core.effects import Claim, Commit, CommitItem, Flow, Reload, Send, Store
from sidecar.core.fields import Field
from sidecar.core.ids import key_reader
from sidecar.core.intake import Reading
from sidecar.core.pipeline import Pipeline
from sidecar.core.records import Answer, Batch, Run, TopicPartition, Verdict
from sidecar.ledger.memory import MemoryLedger
from sidecar.sinks.formats import NdjsonFramer
from sidecar.sources.acked import AckedSource
from sidecar.sources.acked_columns import AckedColumns, Taken
from sidecar.sources.acked_exchange import Exchange
from sidecar.sources.base import Assignment
from tests.simulation.acked_broker import (
    TOPIC,
    Chance,
    CrashError,
    FragileState,
    Inline,
    SimulatedBroker,
    SimulatedClient,
    SimulatedDesk,
    SimulatedReceiver,
)

GROUPS: dict[Any, str | None] = {b"a": "a", b"b": "b", b"c": "c", b"no": None}
ROUNDS_MAX = 20_000
CLAIM_MS = 10_000_000
ROOM = 1 << 20
"""With a ledger for all messages: what waits for a twin makes no room for what that one waits for."""
DOWN = Answer(Verdict.RETRY, "down")


class Process:
    """A daemon: what it holds in memory is gone with it.

    Args:
        broker: Hands messages over.
        receiver: Takes batches.
        state: Outlives it.
        chance: What goes wrong.
        ledger: Shared by all, if there is one.
    """

    def __init__(
        self, broker: SimulatedBroker, receiver: SimulatedReceiver, state: FragileState, chance: Chance,
        ledger: MemoryLedger | None = None,
    ) -> None:  # fmt: skip
        self._receiver, self._chance = receiver, chance
        self._desk = SimulatedDesk(ledger, CLAIM_MS, chance) if ledger else None
        self.now_ms = 0.0
        self.gone = 0
        self.client = SimulatedClient(broker, chance)
        columns = AckedColumns()
        reading = Reading(
            columns, NdjsonFramer(columns), lambda tp, messages: [m.handed.tag for m in messages], GROUPS,
            keys=key_reader(Field("header", "order"), "text", columns, "g") if ledger else None,
        )  # fmt: skip
        batching = BatchRules(
            by_group=chance.random.random() < 0.3, limits=Limits(chance.random.choice([1, 5, 20]), 10_000),
            linger_ms=50, span_max=10_000, held_max_bytes=chance.random.choice([4_000 if ledger else 30_000, 1 << 20]),
        )  # fmt: skip
        delivery = DeliveryRules(
            backoff=Backoff(10, 100), concurrency=2, ordered=ledger is None or chance.ordered, separator=b"\n",
            lease_ms=CLAIM_MS // 3 if ledger else None, numbered=True,
        )  # fmt: skip
        self.pipeline = Pipeline(reading, batching, delivery, chance.random.random)
        room = chance.random.choice([20_000, 1 << 20]) if not ledger else ROOM
        ordered = chance.ordered if ledger else chance.random.random() < 0.2
        self.source = AckedSource(
            self.client, [TOPIC], "g", state, b"rule", room,
            self._groups,
            in_order=ordered, keep_rows=ordered, disk=Inline(),
            exchange=Exchange(self._desk, "g", self._clock) if self._desk else None, clock=self._clock,
        )  # fmt: skip
        state.failing = ""
        self.source.open(self)
        self._sending: list[Batch] = []
        self._claims: list[Claim] = []

    def _clock(self) -> float:
        return self.now_ms / 1000

    def _groups(self, tp: TopicPartition, messages: Sequence[Taken]) -> list[str | None]:
        return [GROUPS[message.handed.tag] for message in messages]

    def turn(self) -> None:
        """One round of the loop, with an answer now and then."""
        self.now_ms += self._chance.random.choice([1, 5, 30]) * (1 if self._chance.faulty else 5)
        for effect in self.pipeline.step(self.now_ms):
            self._chance.crash()
            match effect:
                case Commit(items):
                    self._commit(items)
                case Claim():
                    self._claims.append(effect)
                case Send(batch):
                    self._sending.append(batch)
                case Store(token, _):
                    self.pipeline.stored(token, ok=True, now_ms=self.now_ms)
                case Flow(paused):
                    self.source.pause(paused)
                case Reload():
                    raise AssertionError(effect)
                case _:
                    pass
        if self._claims and self._chance.random.random() < 0.5:
            self._claim(self._claims.pop(self._chance.random.randrange(len(self._claims))))
        if self._sending and self._chance.random.random() < 0.5:
            self._answer(self._sending.pop(self._chance.random.randrange(len(self._sending))))
        for found in self.source.poll(0.0):
            self._chance.crash()
            if isinstance(found, Run):
                self.pipeline.read(found, self.now_ms)
            else:
                self.pipeline.read_past(found.tp, found.position, self.now_ms)
        for books in self.pipeline.books.values():
            assert books.balanced, books

    def _commit(self, items: list[CommitItem]) -> None:
        if self._settle(items):
            self.source.commit(items)
        else:
            self.pipeline.committed({}, self.now_ms)

    def _settle(self, items: list[CommitItem]) -> bool:
        return self._desk is None or self._desk.settle([mark for item in items for mark in item.marks])

    def _claim(self, claim: Claim) -> None:
        assert self._desk is not None
        self.pipeline.claimed(claim.number, self._desk.claim(claim.wants), self.now_ms)

    def _answer(self, batch: Batch) -> None:
        down = self._chance(0.2)
        if not down:
            self._receiver.store(batch)
        self._chance.crash()
        answer = DOWN if down or self._chance(0.1) else Answer(Verdict.ACK, status=200)
        self.pipeline.answered(batch.id, answer, self.now_ms, 0)

    def stop(self) -> None:
        """In order: what is settled is committed, the rest is given back."""
        self._commit_now()
        self.source.close()

    def _commit_now(self) -> None:
        self.pipeline.committed({}, self.now_ms)
        items = self.pipeline.commit(list(self.pipeline.partitions))
        items = items if self._settle(items) else []
        self.pipeline.committed(self.source.commit_now(items), self.now_ms)

    # The listener

    def assigned(self, found: Sequence[Assignment]) -> None:
        """Go on."""
        for one in found:
            self.pipeline.assign(one.tp, one.scope, one.state)

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """Commit once more."""
        self.pipeline.fence(tps)
        self._commit_now()
        self.pipeline.forget(tps)

    lost = reloading = revoking  # type: ignore[assignment]

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """The core goes on."""
        self.pipeline.committed(results, self.now_ms)

    def waiting(self, what: str) -> None:
        pass

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Note what was given up."""
        self.gone += name == "members.gone"


class AckedWorld:
    """One schedule.

    Args:
        seed: Of all chances.
        members: Processes in the group.
        count: Messages.
        copies: How many of them are sent twice, which a ledger is to tell; without any there is none.

    Attributes:
        processes: Those that live.
        crashes: How many there were.
    """

    def __init__(self, seed: int, members: int = 1, count: int = 120, copies: int = 0) -> None:
        self.chance = Chance(seed)
        self.broker = SimulatedBroker(self.chance, count, copies)
        self.now_ms = 0.0
        self.ledger = MemoryLedger(lambda: self.now_ms) if copies else None
        self.receiver = SimulatedReceiver()
        self._states = [FragileState() for _ in range(members)]
        for state in self._states:
            state.chance = self.chance
        self.processes: list[Process | None] = [None] * members
        self.crashes = 0

    def run(self, rounds: int = 400) -> None:
        """Faults for so many rounds, then none until all is settled."""
        for _ in range(rounds):
            self._round()
        self.chance.faulty = False
        for number in range(ROUNDS_MAX):
            self._round()
            if number % 50 == 0:
                self._expire_lost()
            if self.broker.is_empty and all(one and one.pipeline.idle for one in self.processes):
                return
        raise AssertionError(f"stuck: {len(self.broker.ready)} ready, {len(self.broker.leases)} out")

    def _round(self) -> None:
        self.now_ms += 12 if self.chance.faulty else 60
        for at, process in enumerate(self.processes):
            try:
                process = process or Process(
                    self.broker, self.receiver, self._states[at], self.chance, self.ledger
                )  # fmt: skip
                self.processes[at] = process
                process.turn()
                if self.chance(0.003):
                    process.stop()
                    self.processes[at] = None
            except CrashError:
                self.crashes += 1
                self.processes[at] = None
        if self.chance(0.05):
            leases = list(self.broker.leases)
            self.broker.expire(self.chance.random.sample(leases, min(len(leases), 5)))
        if self.chance(0.01):
            self.broker.die()

    def _expire_lost(self) -> None:
        """What nobody holds, since its process is gone or an acknowledgement was lost, comes again."""
        held: set[int] = set()
        for process in self.processes:
            if process:
                held |= {int(str(h)) for one in process.source._known.values() for h in one.handles[-1:]}
        self.broker.expire([handle for handle in self.broker.leases if handle not in held])


def run_acked(seed: int, members: int = 1, *, copies: int = 0) -> AckedWorld:
    """Run one schedule, and check what arrived.

    Raises:
        AssertionError: Something was lost or is stuck or, with one member or a ledger, came twice.
    """
    world = AckedWorld(seed, members, copies=copies)
    world.run()
    wanted = {body.split()[0] for body, tag, _ in world.broker.messages if GROUPS[tag]}
    rows = Counter[bytes]()
    for row, times in world.receiver.rows.items():
        rows[row.split()[0]] += times
    assert not wanted - rows.keys(), f"seed {seed}: lost {wanted - rows.keys()}"
    assert not rows.keys() - wanted, f"seed {seed}: not wanted {rows.keys() - wanted}"
    if members == 1 or copies:
        assert max(rows.values()) == 1, f"seed {seed}: twice {[row for row, times in rows.items() if times > 1]}"
    return world
