"""A schedule: random events upon processes, broker and receiver, then the end of all faults, and the final account."""

from __future__ import annotations

import random

from sidecar.core.delivery.outbox import Stage
from sidecar.core.partition.promises import Phase, standing
from sidecar.core.records import Answer
from tests.simulation.broker import BrokenPromiseError, Broker
from tests.simulation.plan import TPS, Plan, make_log, make_plan, refilled
from tests.simulation.process import Process
from tests.simulation.receiver import HALT, TIMEOUT, UNAVAILABLE, Receiver, Request
from tests.support.memory_ledger import MemoryLedger

SETTLE_ROUNDS_MAX = 2_000
LOST = 0.1
"""How often a commit, an acknowledgement, an answer or a dead letter is lost while there are faults."""


class World:
    """Runs one schedule.

    Args:
        plan: Its circumstances.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._r = random.Random(~plan.seed)
        self._chance = self._r.random
        self.ledger = MemoryLedger(lambda: self.now_ms) if plan.claim_ms else None
        self.broker = Broker(plan, self.ledger)
        self.receiver = Receiver(plan, self._chance)
        sent: set[tuple[str, str]] = set()
        self.processes = [
            Process(plan, self.broker, self.receiver, sent, self._chance, self.ledger) for _ in range(plan.processes)
        ]
        self.wandering: list[Request] = []
        """Requests that nobody waits for any more, and that may still arrive."""
        self.now_ms = 0.0
        self.outage: Answer | None = None
        self.faulty = True
        self.steps = 0
        self._refills = 0
        self._assign(range(len(plan.logs)))

    # Faults

    def _pick(self, many: int) -> int:
        return int(self._chance() * many)

    def _assign(self, numbers: object) -> None:
        """Give partitions to members; without any, one process starts."""
        members = [process for process in self.processes if process.member]
        if not members:
            members = [self.processes[self._pick(len(self.processes))]]
            if members[0].alive:
                members[0].lose()
            else:
                members[0].start()
        for number in numbers:  # type: ignore[attr-defined]
            members[self._pick(len(members))].take(number)

    def _crash(self, process: Process) -> None:
        """Gone between two effects; what it was sending arrives now, later, or never."""
        member, numbers = process.member, list(process.positions)
        self._kill(process)
        if member:
            self._assign(numbers)

    def _kill(self, process: Process) -> None:
        process.step(self.now_ms, self._pick(4))
        for request in process.die():
            fate = self._chance()
            if fate < 0.3:
                self._arrive(request)
            elif fate < 0.7:
                self.wandering.append(request)

    def _reset(self) -> None:
        """A new incarnation: its owner dies or gives it up, and an operator moves the offset, or the topic is new."""
        life = self.broker.lives[self._pick(len(self.broker.lives))]
        numbers = [life.number]
        for process in self.processes:
            if process.member and life.number in process.positions:
                numbers = list(process.positions)
                if self._chance() < 0.5:
                    self._kill(process)
                else:
                    process.revoke()
        if self._chance() < 0.5:
            self.broker.reset(life.number, self._pick(self.plan.length + 1))
        else:
            plan = self.plan
            log = make_log(self._pick(40), plan.length, plan.groups, ids=plan.ids, odd=plan.odd)
            self.broker.make_again(life.number, log, self._pick(plan.length + 1))
        self._assign(numbers)

    def _rewind(self) -> None:
        """The broker forgets its newest commits of a partition, whose owner dies; the log may lose its end as well."""
        life = self.broker.lives[self._pick(len(self.broker.lives))]
        if len(life.history) < 2:
            return
        to = 1 + self._pick(len(life.history) - 1)
        owner = next((one for one in self.processes if one.member and life.number in one.positions), None)
        if owner is None:
            return
        numbers = list(owner.positions)
        self._kill(owner)
        memory = owner.folder.memory(life)
        life.rewind(to)
        ends = memory.fingerprints[-1].offset if memory is not None and memory.fingerprints else -1
        seen = life.committed.seen
        exact = memory is not None and memory.stamp == life.newest
        if exact and not self.plan.ids and seen <= ends and self._chance() < 0.5:
            at = seen + self._pick(ends - seen + 1)
            self._refills += 1
            plan = self.plan
            self.broker.refill(life, refilled(life.log, at, self._refills, plan.groups, odd=plan.odd), at)
            owner.start()
            for number in numbers:
                owner.take(number)
            return
        self._assign(numbers)

    def _fault(self, process: Process) -> None:
        kind = self._chance()
        if kind < 0.4:
            self._crash(process)
        elif kind < 0.6:
            if process.member and len(self.processes) > 1:
                process.member = False  # a zombie: it does not know yet
                self._assign(list(process.positions))
        elif kind < 0.8:
            if process.member and not process.fenced_for and process.positions:
                process.pipeline.fence([TPS[number] for number in process.positions])
                process.fenced_for = 1 + self._pick(12)
        elif process.member:
            process.pipeline.drain()

    def _arrive(self, request: Request) -> Answer:
        if self.outage is not None:
            return self.outage
        return self.receiver.deliver(request)

    # Events

    def event(self) -> None:
        """One thing happens."""
        chance = self._chance
        if self.plan.compaction and chance() < self.plan.compaction:
            life = self.broker.lives[self._pick(len(self.broker.lives))]
            poison = sorted(life.log.poison)  # what it refuses may be gone when it is asked again
            lucky = poison and chance() < 0.5
            gone = poison[self._pick(len(poison))] if lucky else self._pick(self.plan.length)
            life.gone.add(gone)
        if self.plan.resets and chance() < self.plan.resets:
            self._reset()
        if self.plan.rewinds and chance() < self.plan.rewinds:
            self._rewind()
        if self.plan.reloads and chance() < self.plan.reloads:
            self.broker.rules = (self.broker.rules + 1) % 5
            for process in self.processes:
                if process.alive and chance() < 0.8:
                    process.reload()
        if self.wandering and chance() < 0.1:
            self._arrive(self.wandering.pop(self._pick(len(self.wandering))))
        process = self.processes[self._pick(len(self.processes))]
        if not process.alive:
            if chance() < 0.2:
                process.start()
            return
        if chance() < self.plan.faults:
            self._fault(process)
            if not process.alive:
                return
        if self.ledger is not None:
            self._ask_ledger(self.ledger, process)
        if self.plan.rewinds and chance() < 0.1:
            process.snapshot()
        self._act(process, chance())
        process.step(self.now_ms)
        self._end_of_ownership(process)

    def _ask_ledger(self, ledger: MemoryLedger, process: Process) -> None:
        process.now_ms = self.now_ms
        if self._chance() < 0.02:
            ledger.failing = "away" if self._chance() < 0.4 else ""
        open_ones = [*process.claims, *process.verdicts]
        if open_ones and self._chance() < 0.5:
            process.advance_claim(open_ones[self._pick(len(open_ones))], lost=LOST)

    def _act(self, process: Process, what: float) -> None:
        chance = self._chance
        process.now_ms = self.now_ms
        if what < 0.2 and process.commit is not None:
            process.advance_commit(lost=LOST)
        elif what < 0.45 and process.sends:
            for _ in range(min(self.plan.answers, len(process.sends))):
                self._answer(process, list(process.sends)[self._pick(len(process.sends))])
        elif what < 0.5 and process.stores:
            process.advance_store(next(iter(process.stores)), lost=0.3)
        elif what < 0.6:
            self.now_ms += (1, 15, 60, 250, 1100)[self._pick(5)]
        elif what < 0.62:
            process.read_again(1 + self._pick(20), 1 + self._pick(20), self.now_ms)
        elif what < 0.63:
            process.skip(1 + self._pick(3), self.now_ms)
        elif what < 0.65:
            self.outage = None if chance() < 0.6 else UNAVAILABLE if chance() < 0.7 else HALT
        else:
            process.read(1 + self._pick(self.plan.run_max), self.now_ms)

    def _answer(self, process: Process, batch_id: int) -> None:
        request, fate = process.sends[batch_id], self._chance()
        if fate < LOST:
            process.answer(batch_id, TIMEOUT)
            if fate < LOST / 2:
                self._arrive(request)
            else:
                self.wandering.append(request)
        else:
            process.answer(batch_id, self._arrive(request))

    def _end_of_ownership(self, process: Process) -> None:
        if process.fenced_for and process.member:
            process.fenced_for -= 1
            if not process.fenced_for:
                self._assign(process.revoke())
        elif not process.member and self._chance() < 0.1:
            process.lose()
        elif process.pipeline.draining and process.member and process.pipeline.idle:
            self._stop(process)

    def _stop(self, process: Process) -> None:
        """A planned stop has settled everything: nothing stands above the watermark."""
        numbers = list(process.positions)
        for number in numbers:
            state, position = process.lives[number].committed, process.pipeline.partitions[TPS[number]].reach.position
            if state.watermark != position and position > process.lives[number].start:
                raise BrokenPromiseError("drain", f"{state} after a planned stop at {position}")
        process.die()
        self._assign(numbers)

    # The end

    def explained(self) -> None:
        """What commits tell of single messages is so: what they call settled has its end, and the rest is below `seen`.

        A message that has a twin is settled once the twin is read.
        """
        for number, life in enumerate(self.broker.lives):
            state, groups = life.committed, self.plan.reading.groups
            for offset in sorted(life.log.wanted):
                group = str(groups[life.log.messages[offset][1]])  # type: ignore[index]  # tags are numbers here
                is_settled = standing(state, group, offset).phase is Phase.SETTLED
                if is_settled and len(life.log.twins_of(offset)) < 2 and not life.settled(offset):
                    raise BrokenPromiseError("explained", f"{number}: {offset} of {group} is not settled, {state}")

    def settle(self) -> None:
        """No more faults: everything comes to its end."""
        self.outage, self.faulty = None, False
        if self.ledger is not None:
            self.ledger.failing = ""
        for process in self.processes:
            if not process.alive:
                process.start()
            elif not process.member:
                process.lose()
        for _ in range(SETTLE_ROUNDS_MAX):
            self.now_ms += 120
            busy = [process for process in self.processes if not self._at_rest(process)]
            if not busy:
                break
            for process in busy:
                self._settle(process)
        else:
            raise BrokenPromiseError("stuck", self._describe())
        for request in self.wandering:
            self._arrive(request)
        self._account()

    def _settle(self, process: Process) -> None:
        """One round of a process without faults."""
        self.steps += 1
        process.now_ms = self.now_ms
        process.read(20, self.now_ms)
        for token in list(process.stores):
            process.advance_store(token, lost=0)
        for batch_id in list(process.sends):
            process.answer(batch_id, self._arrive(process.sends[batch_id]))
        while process.commit is not None:
            process.advance_commit(lost=0)
        for number in [*process.claims, *process.claims, *process.verdicts]:
            process.advance_claim(number, lost=0)
        process.step(self.now_ms)
        self._end_of_ownership(process)

    def _at_rest(self, process: Process) -> bool:
        if not process.alive:
            return True
        length = self.plan.length
        if process.commit or process.sends or process.claims or process.fenced_for or process.pipeline.draining:
            return False
        return all(position == length for position in process.positions.values()) and process.pipeline.idle

    def _describe(self) -> str:
        found = []
        for i, process in enumerate(self.processes):
            p = process.pipeline
            found.append(
                f"process {i}: positions {process.positions}, paused {sorted(process.paused)}, sends "
                f"{len(process.sends)}, groups {dict(p.delivery.outbox.groups)}, stops {p.gate.stops}, idle {p.idle}, "
                f"states {[partition.state() for partition in p.partitions.values()]}"
            )
        return "\n".join(found)

    def _account(self) -> None:
        for process in self.processes:
            process.check()
            outbox = process.pipeline.delivery.outbox
            waiting = outbox.count(Stage.WAITING)
            at_rest = (process.pipeline.gate.held_bytes, outbox.groups.healthy, len(outbox.groups), waiting)
            if any(at_rest):
                raise BrokenPromiseError("rest", f"{at_rest} held, healthy, groups, waiting at rest")
        for number, life in enumerate(self.broker.lives):
            state, log, stored = life.committed, life.log, life.stored
            if (state.watermark, state.seen) != (self.plan.length,) * 2 or state.lanes or state.shared:
                raise BrokenPromiseError("stuck", f"{number}: {state} at the end")
            lost = [offset for offset in log.wanted if not life.settled(offset)]
            if lost:
                raise BrokenPromiseError("lost", f"{number}: {sorted(lost)}")
            wrong = (
                ((life.letters - life.given_up) & stored) | (stored & (log.poison | log.odd)) | (stored - log.wanted)
            )
            wrong |= {offset for offset in stored | life.letters if offset < life.start}
            if wrong:
                raise BrokenPromiseError("letters", f"{number}: {sorted(wrong)} delivered against the rules")


def run_schedule(
    seed: int,
    steps: int = 200,
    *,
    newer: bool = True,
    ledger: bool = False,
    reloads: bool = False,
    lane: bool = False,
) -> int:
    """Run one schedule; returns its steps, raises `BrokenPromiseError`."""
    world = World(make_plan(seed, newer=newer, ledger=ledger, reloads=reloads, lane=lane))
    for _ in range(steps):
        world.event()
    if not reloads:  # else a message may have been of another group
        world.explained()
    world.settle()
    return steps + world.steps
