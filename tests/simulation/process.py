"""One simulated process: a pipeline, and a shell that does its effects when the schedule says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sidecar.core.batching import held_bytes
from sidecar.core.claims import Want
from sidecar.core.cutting import UNIT_BYTES
from sidecar.core.effects import Claim, Commit, CommitItem, Effect, Flow, Reload, Report, Send, StoreDeadLetters
from sidecar.core.intake.identities import Identities
from sidecar.core.partition.partition import Partition
from sidecar.core.partition_state import Tries
from sidecar.core.parts import Part, held_by
from sidecar.core.pipeline.commit_order import CommitOrder, Journal, Publish, Settle, SettledIds, Step
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, Attempt, DeadLetter, Run, TopicPartition
from sidecar.core.windows.dedup import RotatingSet
from sidecar.core.windows.idruns import SortedRun, rising
from sidecar.ledger.interface import LedgerError
from tests.simulation.broker import BrokenPromiseError, Broker, Life
from tests.simulation.folder import Folder
from tests.simulation.plan import MANY_GROUPS, TPS, Plan
from tests.simulation.receiver import HALT, Receiver, Request
from tests.simulation.sorter import Sorter
from tests.support.memory_ledger import MemoryLedger

CHECK_EVERY = 4
"""Steps between two looks at all that is held."""


class Process:
    """Lives, dies, and lives again; its journal of ids stays.

    Args:
        plan: The circumstances.
        broker: Shared by all processes.
        receiver: Shared by all processes.
        sent: Names of parts that may have been sent, shared by all processes.
        chance: Uniform in [0, 1).
        ledger: Shared by all processes, if there is one.
    """

    def __init__(
        self,
        plan: Plan,
        broker: Broker,
        receiver: Receiver,
        sent: set[tuple[str, str]],
        chance: Callable[[], float],
        ledger: MemoryLedger | None = None,
    ) -> None:
        self._ledger = ledger
        self._plan = plan
        self._broker = broker
        self._receiver = receiver
        self._sent = sent
        self._chance = chance
        self._steps = 0
        self.journal: dict[Life, dict[int, list[int]]] = {}
        """Settled ids by generation."""
        self.folder = Folder()
        self.alive = False
        self.member = False
        """Whether the broker counts it in; if not while it is alive, it is a zombie."""
        self.start()

    def start(self) -> None:
        """A new life with an empty memory."""
        self.rules = self._broker.rules
        """The version of the configuration in force."""
        self.next_rules: int | None = None
        """The one that applies when all is quiet."""
        self.pipeline = Pipeline(*self._plan.version(self.rules), self._chance)
        self.alive = self.member = True
        self.positions: dict[int, int] = {}
        """What it believes to own, and the next offset to fetch."""
        self.lives: dict[int, Life] = {}
        """The incarnation it took last."""
        self.taken: dict[tuple[int, str], Life] = {}
        """Every one it took: a log may be refilled later under the same name, which this process does not know."""
        self.paused: frozenset[TopicPartition] = frozenset()
        self.order = CommitOrder()
        self.commit: Step | None = None
        """The step of the outstanding commit that is under way."""
        self.acknowledged: dict[TopicPartition, bool] | None = None
        """The outstanding commit's result, on its way."""
        self.sends: dict[int, Request] = {}
        self.stores: dict[int, StoreDeadLetters] = {}
        self.claims: dict[int, list[Want]] = {}
        self.verdicts: dict[int, list[list[int]] | None] = {}
        """The ledger's answers, on their way."""
        self.fenced_for = 0
        """Events until a revocation ends; 0 when none is going on."""

    def die(self) -> list[Request]:
        """The process is gone; what it was sending may arrive or not."""
        self._tear_step()
        if self._plan.rewinds and self._chance() < 0.1:
            self.folder.lose(1 + int(self._chance() * 4))
        self.alive = self.member = False
        self.positions = {}
        requests, self.sends = list(self.sends.values()), {}
        for store in self.stores.values():
            if self._chance() < 0.5:
                self._store_letters(store)
        for number in list(self.claims):
            if self._chance() < 0.5:
                self._claim(number, lost=0)
        return requests

    def _tear_step(self) -> None:
        """Some of a journal's write may be there, and a transaction of the ledger as a whole or not."""
        if isinstance(self.commit, Journal):
            for segment in self.commit.segments:
                self._journal(segment, segment.ids[: int(self._chance() * (len(segment.ids) + 1))])
        elif isinstance(self.commit, Settle) and self._chance() < 0.5:
            self._durable(self.commit)

    def _journal(self, segment: SettledIds, ids: Sequence[int]) -> None:
        kept = self.journal.setdefault(self._life(segment), {})
        kept.setdefault(segment.generation, []).extend(ids)

    def _life(self, item: CommitItem | DeadLetter | SettledIds) -> Life:
        key = item.tp.partition, item.scope
        return self.taken.get(key) or self._broker.life(*key)

    # Ownership

    def take(self, number: int) -> None:
        """The partition is assigned; it goes on from what the broker has, and from what its own folder remembers."""
        before = life = self._broker.lives[number]
        if life is not self.lives.get(number):
            self.order.forget_ids(TPS[number])
        if life.rules != self.rules:
            before = life = self._broker.change_rules(life, self.rules)
        life.check_codec()
        recalled, lineage = self.folder.recall(life, self._plan.length)
        if recalled.fresh:
            life = self._broker.renew(life, recalled.state)
        if before.rewound:
            self.folder.doubt(before, life, recalled)
            known_below = max(recalled.state.seen, recalled.settled_below)
            life.inherited.update(range(recalled.state.watermark, known_below))
        self.lives[number] = self.taken[number, life.scope] = life
        if self._plan.ids:
            self.pipeline.intake.identities.forget_partition(TPS[number])
            kept = _sorted(self.journal.get(life, {}))
            self._window(number).restore(kept, {}, 0.0, recalled.state.seen - 1)
        self.pipeline.assign(TPS[number], life.scope, recalled.state, lineage)
        is_stale = self._ledger is None and self.folder.load(before, self.pipeline, recalled.settled_below)
        self.positions[number] = recalled.state.watermark
        self.paused -= {TPS[number]}
        if is_stale or recalled.fresh:
            self.snapshot()

    def snapshot(self) -> None:
        """The windows are written."""
        for number in self.positions:
            partition = self.pipeline.partitions.get(TPS[number])
            if partition is not None:
                self.folder.snapshot(self.lives[number], self.pipeline.settled_offsets(TPS[number])[0])

    def _window(self, number: int) -> RotatingSet:
        assert isinstance(self.pipeline.intake.identities, Identities)
        return self.pipeline.intake.identities.window(TPS[number])

    def lose(self) -> None:
        """It learns that all its partitions went to others, and joins again."""
        tps = [TPS[number] for number in self.positions]
        self.pipeline.forget_partitions(tps)
        self.order.forget_partitions(tps)
        self.positions = {}
        self.fenced_for = 0
        self.member = True
        if isinstance(self.commit, Publish) and self.acknowledged is None:
            self.acknowledged = {}  # of an earlier generation: it never arrives

    def revoke(self) -> list[int]:
        """A revocation ends: last commit, then nothing later names the partitions. Returns them."""
        numbers, tps = list(self.positions), [TPS[number] for number in self.positions]
        if self.commit is not None:
            if isinstance(self.commit, Publish) and self._chance() < 0.5 and self.acknowledged is None:
                self._apply(self.commit.items)
            self.order.overtake()
            if isinstance(self.commit, Journal | Settle):
                self.order.ended(ok=self._durable(self.commit))
            self.acknowledged = self.commit = None
            self.pipeline.committed({}, self.now_ms)
        step: Step | None = self.order.begin_commit(self.pipeline.begin_commit(tps))
        while isinstance(step, Journal | Settle):
            step = self.order.ended(ok=self._durable(step))
        if isinstance(step, Publish) and self._chance() < 0.8:
            self._apply(step.items)
            self._keep(step.items)
            self.pipeline.committed({item.tp: True for item in step.items}, self.now_ms)
        else:
            self.pipeline.committed({}, self.now_ms)
        self.pipeline.forget_partitions(tps)
        self.positions = {}
        self.fenced_for = 0
        return numbers

    # Reading

    now_ms = 0.0

    def read(self, count: int, now_ms: float) -> None:
        """Fetch from one partition that is not paused."""
        self.now_ms = now_ms
        open_ones = [number for number in self.positions if TPS[number] not in self.paused]
        if open_ones:
            self._read(open_ones[int(self._chance() * len(open_ones))], count)

    def _read(self, number: int, count: int) -> None:
        found = self.lives[number].fetch(self.positions[number], count)
        if found:
            self._hand_over(number, found)
        if len(found) < count:
            self.positions[number] = self._plan.length
            self.pipeline.read_past(TPS[number], self._plan.length, self.now_ms)

    def _hand_over(self, number: int, found: list) -> None:  # type: ignore[type-arg]
        self.positions[number] = max(self.positions[number], found[-1][0] + 1)
        self.lives[number].read.update(row[0] for row in found)
        sorter = Sorter(found) if self._plan.is_sorted else None
        self.pipeline.read(Run(TPS[number], found, found[0][0], found[-1][0], sorter), self.now_ms)

    def read_again(self, back: int, count: int, now_ms: float) -> None:
        """The client seeks back, and hands over again what it had."""
        self.now_ms = now_ms
        for number, position in self.positions.items():
            found = self.lives[number].fetch(max(self.lives[number].start, position - back), count)
            if found:
                self._hand_over(number, found)
            return

    def skip(self, ahead: int, now_ms: float) -> None:
        """The client skips messages, and hands them over afterwards."""
        self.now_ms = now_ms
        for number, position in self.positions.items():
            found = self.lives[number].fetch(position, ahead + 1)
            if len(found) > ahead and TPS[number] not in self.paused:
                self._hand_over(number, found[ahead:])
                self._hand_over(number, found[:ahead])
            return

    # Effects

    def step(self, now_ms: float, effects_max: int = 1_000_000) -> None:
        """Let the pipeline step, and do its effects, or the first of them only."""
        self.now_ms = now_ms
        pipeline = self.pipeline
        for effect in pipeline.step(now_ms)[:effects_max]:
            self._do(effect)
        if self.next_rules is not None and effects_max > 1:
            self._change(self.next_rules)
        self._steps += 1
        if not self._steps % CHECK_EVERY:
            self.check()

    def reload(self) -> None:
        """It reads the configuration again: limits and waits apply at once."""
        self.next_rules = self._broker.rules
        _, batching, rules = self._plan.version(self.next_rules)
        by_group = self._plan.version(self.rules)[1].by_group
        self.pipeline.change(replace(batching, by_group=by_group), rules)

    def _change(self, rules: int) -> None:
        """What decides where messages go applies when all is quiet; it does not wait for that all the time."""
        pipeline = self.pipeline
        if pipeline.resting and pipeline.is_quiet:
            pipeline.change_reading(*self._plan.version(rules), self.now_ms)
            self.rules, self.next_rules = rules, None
            pipeline.rest(resting=False)
        else:
            pipeline.rest(resting=self._chance() < 0.9)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Report):
            return
        if isinstance(effect, Send):
            request = Request.of(effect.batch, self.lives)
            self._check_send(request)
            self.sends[effect.batch.id] = request
        elif isinstance(effect, Commit):
            if self.commit is not None:
                raise BrokenPromiseError("commit", "two are outstanding")
            if any(item.tp.partition not in self.positions for item in effect.items):
                raise BrokenPromiseError("commit", "names a partition that is not ours")
            self.commit, self.acknowledged = self.order.begin_commit(effect.items), None
        elif isinstance(effect, Claim):
            self.claims[effect.number] = effect.wants
        elif isinstance(effect, StoreDeadLetters):
            self._check_letters(effect)
            self.stores[effect.token] = effect
        elif isinstance(effect, Flow):
            self.paused = effect.paused
        elif isinstance(effect, Reload):
            number = effect.tp.partition
            self.order.forget_partitions([effect.tp])
            del self.positions[number]
            if self.member:
                self.take(number)

    def _check_send(self, request: Request) -> None:
        batch, plan = request.batch, self._plan
        if batch.count != request.count:
            raise BrokenPromiseError("count", f"{batch.count} messages announced, {request.count} sent")
        rewound = any(life.rewound for _, _, life, _ in request.parts)
        limits = plan.batching.limits
        # By ids a successor may keep what its predecessor dropped; and many groups at once are cut wholly.
        if (
            not ((plan.ids or rewound) and batch.attempt > 1)
            and plan.groups < MANY_GROUPS
            and (request.count > limits.max_messages or (batch.nbytes > limits.max_bytes and request.count > 1))
        ):
            raise BrokenPromiseError("limits", f"{request.count} rows, {batch.nbytes} bytes")
        names = [(group, name) for group, name, _, _ in request.parts]
        if self.member and batch.attempt == 1 and not self._sent.isdisjoint(names) and not rewound:
            raise BrokenPromiseError("attempt", f"{names} were sent before")
        self._sent.update(names)
        if self.member:
            for part, (_, _, life, offsets) in zip(batch.parts, request.parts, strict=True):
                if life.number in self.positions:
                    self._check_owned(part, life, offsets)

    def _check_owned(self, part: Part, life: Life, offsets: tuple[int, ...]) -> None:
        if not life.intended(part.intent.key, part.intent.first, part.intent.last):
            raise BrokenPromiseError("intent", f"{part.group} {part.name} is sent before its intent is durable")
        known = self._receiver.knows(part.group, part.name)
        again = life.stored.intersection(offsets) - life.doubtful
        if self._plan.claim_ms:
            again = {offset for offset in again if not self._receiver.overtaken(life, offset)}
        if part.primary and not known and again:
            raise BrokenPromiseError("twice", f"{part.group} {part.name} is sent as a whole, and some of it was stored")

    # What comes back

    def answer(self, batch_id: int, answer: Answer) -> None:
        """A send is answered."""
        del self.sends[batch_id]
        self.pipeline.answered(batch_id, answer, self.now_ms, int(self.now_ms))

    def advance_commit(self, *, lost: float) -> None:
        """The outstanding commit gets one step further: ids, broker, acknowledgement."""
        step = self.commit
        if isinstance(step, Journal | Settle):
            self.commit = self.order.ended(ok=self._durable(step, lost=lost / 2))
        elif isinstance(step, Publish) and self.acknowledged is None:
            reached = self.member and self._chance() >= lost
            if reached:
                self._apply(step.items)
            known = reached and self._chance() >= lost
            self.acknowledged = {item.tp: known for item in step.items}
        else:
            results, self.acknowledged, self.commit = self.acknowledged or {}, None, None
            if isinstance(step, Publish):
                self._keep([item for item in step.items if results.get(item.tp)])
            self.pipeline.committed(results, self.now_ms)

    def _durable(self, step: Journal | Settle, *, lost: float = 0.0) -> bool:
        """Do it, unless the disk is full or the ledger away."""
        if isinstance(step, Journal):
            return self._write_journal(step.segments, lost)
        assert self._ledger is not None
        try:
            self._ledger.settle(step.marks)
        except LedgerError:
            return False
        return True

    def _write_journal(self, segments: Sequence[SettledIds], lost: float) -> bool:
        if self._chance() < lost:
            return False
        for segment in segments:
            self._journal(segment, segment.ids)
            kept = self.journal[self._life(segment)]
            for old in [old for old in kept if old < segment.generation - 1]:
                del kept[old]
            number = segment.tp.partition
            ours = number in self.positions and self.lives[number] is self._life(segment)
            if ours and sum(segment.ids) % 3 == 0:  # now and then; no chance is drawn
                self._window(number).install(_sorted(kept))
        return True

    def advance_claim(self, number: int, *, lost: float) -> None:
        """A question to the ledger gets one step further: transaction, answer."""
        if number in self.claims:
            self._claim(number, lost=lost)
        else:
            self.pipeline.claimed(number, self.verdicts.pop(number), self.now_ms)

    def _claim(self, number: int, *, lost: float) -> None:
        assert self._ledger is not None
        wants = self.claims.pop(number)
        self.verdicts[number] = None
        if self._chance() < lost / 2:
            return
        try:
            verdicts = self._ledger.claim(wants, self._plan.claim_ms)
        except LedgerError:
            return
        if self._chance() >= lost / 2:
            self.verdicts[number] = verdicts

    def _apply(self, items: list[CommitItem]) -> None:
        for item in items:
            life = self._life(item)
            life.commit(item, codec=self._plan.codec)
            life.rules = self.rules

    def _keep(self, items: list[CommitItem]) -> None:
        for item in items:
            self.folder.keep(self._life(item), item)

    def advance_store(self, token: int, *, lost: float) -> None:
        """Dead letters are stored, or not."""
        store = self.stores.pop(token)
        ok = self._chance() >= lost
        if ok:
            self._store_letters(store)
        self.pipeline.stored(token, ok=ok, now_ms=self.now_ms)

    def _check_letters(self, store: StoreDeadLetters) -> None:
        for letter in store.letters:
            life = self._life(letter)
            if _is_given_up(letter, life) and not self._may_give_up(letter.attempts, self._tries(letter, life)):
                raise BrokenPromiseError("letters", f"{letter} is neither refused nor given up")

    def _store_letters(self, store: StoreDeadLetters) -> None:
        for letter in store.letters:
            life = self._life(letter)
            if _is_given_up(letter, life):
                life.given_up.add(letter.offset)
            life.letters.add(letter.offset)

    def _tries(self, letter: DeadLetter, life: Life) -> Tries:
        """What failed before these attempts: in earlier lives, and of the same intent, whose pieces fail together."""
        intents = self.pipeline.partitions[letter.tp].promises.intents
        known = [intent.tries for intent in intents if intent.first <= letter.offset <= intent.last]
        return Tries(*map(max, zip(life.tries, *known, strict=True)))

    def _may_give_up(self, attempts: Sequence[Attempt], before: Tries) -> bool:
        """Whether so many failures are enough with those of earlier lives; a halted sink never is enough."""
        rules = self._plan.rules
        if not attempts or attempts[-1].status == HALT.status:
            return False
        if rules.give_up_attempts is not None:
            return len(attempts) + max(1, before.attempts) >= rules.give_up_attempts
        failing_ms = attempts[-1].at_ms - attempts[0].at_ms + 1000 * before.seconds
        return rules.give_up_ms is not None and failing_ms >= rules.give_up_ms

    # Checks

    def check(self) -> None:
        """The books balance, and what they say is what is held."""
        pipeline = self.pipeline
        held = in_flight = 0
        for tp, books in pipeline.books.items():
            partition = pipeline.partitions.get(tp)
            count = 0
            if partition is not None:
                count, size = _held(partition)
                held += size
            in_flight += count
            if books.in_flight != count or not books.balanced:
                raise BrokenPromiseError("books", f"{tp}: {books}, {count} held")
        for request in self.sends.values():
            held += sum(held_by(part) for part in request.batch.parts if not _mine(pipeline, part))
        units = pipeline.cutter.units
        held += UNIT_BYTES * len(units) + units.lane_bytes * sum(len(unit.lanes) for unit in units.values())
        if pipeline.memory.held_bytes != held:
            raise BrokenPromiseError("memory", f"{pipeline.memory.held_bytes} accounted, {held} held")


def _is_given_up(letter: DeadLetter, life: Life) -> bool:
    return letter.offset not in life.log.poison | life.log.odd


def _sorted(kept: dict[int, list[int]]) -> dict[int, list[SortedRun]]:
    """Ids as the shell keeps them."""
    return {generation: [SortedRun.of(rising(ids))] for generation, ids in kept.items() if ids}


def _mine(pipeline: Pipeline, part: Part) -> bool:
    partition = pipeline.partitions.get(part.tp)
    return partition is not None and any(part is one for one in partition.lanes.parts())


def _held(partition: Partition) -> tuple[int, int]:
    count = size = 0
    for lane in partition.lanes.values():
        count += lane.buffer.count
        for fragment in lane.buffer.fragments:
            size += held_bytes(fragment)
        for part in lane.live:
            count += sum(fragment.count for fragment in part.fragments)
            size += held_by(part)
    for intent in partition.promises.intents:
        for buffer in (intent.collected or {}).values():
            count += buffer.count
            for fragment in buffer.fragments:
                size += held_bytes(fragment)
    return count, size
