"""Core and acked source under seeded schedules: a broker that hands over again as it likes, crashes at every step.

`run_acked(seed)` runs one schedule to its end. No thread, no clock, no socket.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery import DeliveryRules
from sidecar.core.effects import Commit, Flow, Reload, Send, Store
from sidecar.core.intake import Reading
from sidecar.core.pipeline import Pipeline
from sidecar.core.records import Answer, Batch, Run, TopicPartition, Verdict
from sidecar.sinks.formats import NdjsonFramer
from sidecar.sources.acked import AckedSource
from sidecar.sources.acked_client import Handed
from sidecar.sources.acked_columns import AckedColumns, Taken
from sidecar.sources.base import Assignment
from sidecar.state.memory import MemoryState

TOPIC = "orders"
GROUPS: dict[Any, str | None] = {b"a": "a", b"b": "b", b"c": "c", b"no": None}
ROUNDS_MAX = 20_000
DOWN = Answer(Verdict.RETRY, "down")


class CrashError(Exception):
    """The process is gone from here on."""


class Inline(Executor):
    """Does at once what it is given."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except CrashError:
            raise
        except Exception as error:  # noqa: BLE001
            done.set_exception(error)
        return done


class Chance:
    """What goes wrong, and when.

    Args:
        seed: Of all of it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faulty = True
        self.crash_rate = self.random.choice([0.0, 0.002, 0.01])

    def __call__(self, rate: float) -> bool:
        return self.faulty and self.random.random() < rate

    def crash(self) -> None:
        """Perhaps."""
        if self(self.crash_rate):
            raise CrashError


class FragileState(MemoryState):
    """A state whose process may end before a write and after it."""

    chance: Chance

    def save_progress(self, rows: Mapping[TopicPartition, str]) -> None:
        """See `State.save_progress`."""
        self.chance.crash()
        self.failing = "full" if self.chance(0.02) else ""
        super().save_progress(rows)
        self.chance.crash()


class SimulatedBroker:
    """Keeps messages, and hands over again what is not acknowledged.

    Args:
        chance: What goes wrong.
        count: How many messages there are.
    """

    def __init__(self, chance: Chance, count: int) -> None:
        self._chance = chance
        pick = chance.random.choice
        tags = [b"a", b"b", b"c", b"no"]
        # Producers draw ids that are not unique.
        self.messages = [(b"%d" % i, pick(tags), f"id{i // 2 if i % 10 == 0 else i}") for i in range(count)]
        self.leases: dict[int, int] = {}
        """Message by handle."""
        self.ready = list(range(count))
        self.acked: list[int] = []
        self._times: Counter[int] = Counter()
        self._handles = 0

    def hand(self, most: int) -> list[Handed]:
        """Hand over some messages, in about their order."""
        found = []
        for _ in range(min(most, len(self.ready))):
            at = min(self._chance.random.randrange(4), len(self.ready) - 1) if self._chance.faulty else 0
            found.append(self._handed(self.ready.pop(at)))
        return found

    def _handed(self, number: int) -> Handed:
        body, tag, drawn = self.messages[number]
        self._handles += 1
        self._times[number] += 1
        self.leases[self._handles] = number
        times = self._times[number] - 1
        at, properties, retry = self._handles, (("TAGS", tag),), f"%RETRY%{TOPIC}" if times else ""
        return Handed(at, TOPIC, "b", 0, at, body, 1, 1, drawn, f"{at}", tag, (), properties, times, retry)

    def ack(self, handle: int) -> None:
        """A lost one leaves the message where it is."""
        number = self.leases.get(handle)
        if number is not None and not self._chance(0.05):
            del self.leases[handle]
            self.acked.append(number)

    def expire(self, handles: Collection[int]) -> None:
        """These are handed over again."""
        for handle in handles:
            number = self.leases.pop(handle, None)
            if number is not None:
                self.ready.insert(self._chance.random.randrange(len(self.ready) + 1), number)

    def die(self) -> None:
        """Killed: it forgets some acknowledgements."""
        forgotten = [number for number in self.acked[-20:] if self._chance(0.5)]
        self.acked = [number for number in self.acked if number not in forgotten]
        self.ready = forgotten + self.ready

    @property
    def is_empty(self) -> bool:
        """Whether all is acknowledged."""
        return not self.ready and not self.leases


class SimulatedClient:
    """An `AckedClient` of the simulated broker."""

    def __init__(self, broker: SimulatedBroker, chance: Chance) -> None:
        self._broker = broker
        self._chance = chance
        self._full = False
        self.given: list[int] = []

    def open(self) -> None:
        """Nothing to do."""

    def receive(self, timeout_s: float) -> Sequence[Handed]:
        """Some of what is there."""
        found = [] if self._full else self._broker.hand(self._chance.random.randrange(8))
        self.given += [int(str(one.handle)) for one in found]
        return found

    def ack(self, handles: Collection[Hashable]) -> None:
        """Any of it may be lost, and the process may end in between."""
        for handle in handles:
            self._chance.crash()
            self._broker.ack(int(str(handle)))

    def extend(self, handles: Collection[Hashable]) -> None:
        """Nothing expires by itself here."""

    def release(self, handles: Collection[Hashable]) -> None:
        """Give back."""
        self._broker.expire([int(str(handle)) for handle in handles])

    def pause(self, full: bool) -> None:
        """Take nothing in."""
        self._full = full

    def problems(self) -> Mapping[str, str]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing to do."""


class SimulatedReceiver:
    """Stores parts, and remembers their names."""

    def __init__(self) -> None:
        self.rows: Counter[bytes] = Counter()
        self._known: dict[tuple[str, str], list[bytes]] = {}

    def store(self, batch: Batch) -> None:
        """Parts whose name is known are not stored again."""
        for part in batch.parts:
            rows = [row for fragment in part.fragments for row in fragment.data.split(b"\n") if fragment.offsets]
            if self._known.setdefault((part.group, part.name), rows) is rows:
                self.rows.update(rows)


class Process:
    """A daemon: what it holds in memory is gone with it.

    Args:
        broker: Hands messages over.
        receiver: Takes batches.
        state: Outlives it.
        chance: What goes wrong.
    """

    def __init__(
        self, broker: SimulatedBroker, receiver: SimulatedReceiver, state: FragileState, chance: Chance
    ) -> None:
        self._receiver, self._chance = receiver, chance
        self.now_ms = 0.0
        self.gone = 0
        self.client = SimulatedClient(broker, chance)
        columns = AckedColumns()
        reading = Reading(columns, NdjsonFramer(columns), lambda tp, messages: [m.handed.tag for m in messages], GROUPS)
        batching = BatchRules(
            by_group=chance.random.random() < 0.3, limits=Limits(chance.random.choice([1, 5, 20]), 10_000),
            linger_ms=50, span_max=10_000, held_max_bytes=chance.random.choice([4_000, 1 << 20]),
        )  # fmt: skip
        delivery = DeliveryRules(
            backoff=Backoff(10, 100), concurrency=2, ordered=True, separator=b"\n", give_up_attempts=None,
            give_up_ms=None,
        )  # fmt: skip
        self.pipeline = Pipeline(reading, batching, delivery, chance.random.random)
        self.source = AckedSource(
            self.client, [TOPIC], "g", state, b"rule", chance.random.choice([20_000, 1 << 20]), self._groups,
            in_order=chance.random.random() < 0.2, disk=Inline(),
            clock=lambda: self.now_ms / 1000,
        )  # fmt: skip
        state.failing = ""
        self.source.open(self)
        self._sending: list[Batch] = []

    def _groups(self, tp: TopicPartition, messages: Sequence[Taken]) -> list[str | None]:
        return [GROUPS[message.handed.tag] for message in messages]

    def turn(self) -> None:
        """One round of the loop, with an answer now and then."""
        self.now_ms += self._chance.random.choice([1, 5, 30])
        for effect in self.pipeline.step(self.now_ms):
            self._chance.crash()
            match effect:
                case Commit(items):
                    self.source.commit(items)
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
        self.pipeline.committed(self.source.commit_now(items), self.now_ms)

    # The listener

    def assigned(self, found: Sequence[Assignment]) -> None:
        """Go on."""
        for one in found:
            self.pipeline.assign(one.tp, one.scope, one.carried)

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """Commit once more."""
        self.pipeline.fence(tps)
        self._commit_now()
        self.pipeline.forget(tps)

    lost = reloading = revoking  # type: ignore[assignment]

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """The core goes on."""
        self.pipeline.committed(results, self.now_ms)

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Note what was given up."""
        self.gone += name == "members.gone"


class AckedWorld:
    """One schedule.

    Args:
        seed: Of all chances.
        members: Processes in the group.
        count: Messages.

    Attributes:
        processes: Those that live.
        crashes: How many there were.
    """

    def __init__(self, seed: int, members: int = 1, count: int = 120) -> None:
        self.chance = Chance(seed)
        self.broker = SimulatedBroker(self.chance, count)
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
        for at, process in enumerate(self.processes):
            try:
                process = process or Process(self.broker, self.receiver, self._states[at], self.chance)
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


def run_acked(seed: int, members: int = 1) -> AckedWorld:
    """Run one schedule, and check what arrived.

    Raises:
        AssertionError: Something was lost or is stuck or, with one member, came twice.
    """
    world = AckedWorld(seed, members)
    world.run()
    wanted = {body for body, tag, _ in world.broker.messages if GROUPS[tag]}
    rows = world.receiver.rows
    assert not wanted - rows.keys(), f"seed {seed}: lost {wanted - rows.keys()}"
    assert not rows.keys() - wanted, f"seed {seed}: not wanted {rows.keys() - wanted}"
    if members == 1:
        assert max(rows.values()) == 1, f"seed {seed}: twice {[row for row, times in rows.items() if times > 1]}"
    return world
