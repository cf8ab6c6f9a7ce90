"""A receiver that remembers the names of parts, refuses poison, and notices what must never happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sidecar.core.claims import ClaimState
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, FailedRow, Verdict
from tests.simulation.broker import SCOPE, BrokenPromiseError, Life
from tests.simulation.plan import Plan

ACK = Answer(Verdict.ACK, status=200)
UNAVAILABLE = Answer(Verdict.BUSY, "unavailable", 503)
TIMEOUT = Answer(Verdict.UNANSWERED, "timeout")
HALT = Answer(Verdict.HALT, "unauthorized", 401)
REJECT = Answer(Verdict.REJECT, "bad", 400)
TOO_LARGE = Answer(Verdict.TOO_LARGE, "too large", 413)


Sent = tuple[str, str, Life, tuple[int, ...]]
"""A part on its way: group, name, the incarnation of its partition, offsets."""


@dataclass(slots=True)
class Request:
    """A send on its way: what it carried does not change any more."""

    batch: Batch
    parts: list[Sent]
    count: int

    @classmethod
    def of(cls, batch: Batch, lives: Mapping[int, Life]) -> Request:
        """The request that a batch makes now."""
        parts = []
        for part in batch.parts:
            offsets = tuple(offset for fragment in part.fragments for offset in fragment.offsets)
            parts.append((part.group, part.name, lives[part.tp.partition], offsets))
        return cls(batch, parts, sum(len(part[3]) for part in parts))


class Receiver:
    """Stores rows once a name.

    Args:
        plan: How it refuses.
        chance: Uniform in [0, 1).
    """

    def __init__(self, plan: Plan, chance: Callable[[], float]) -> None:
        self._plan = plan
        self._chance = chance
        self._names: dict[tuple[str, str], tuple[Life, tuple[int, ...]]] = {}
        """What a name was first used for."""
        self._known: dict[tuple[str, str], dict[int, bool]] = {}
        """Of each stored part the offsets that failed, and whether they were to be sent again."""
        self._last: dict[tuple[Life, str], int] = {}

    def knows(self, group: str, name: str) -> bool:
        """Whether a part with this name was stored."""
        return (group, name) in self._known

    def deliver(self, request: Request) -> Answer:
        """One request arrives; its body is not compressed."""
        return replace(self._deliver(request), sent_bytes=request.batch.nbytes)

    def _deliver(self, request: Request) -> Answer:
        for part in request.parts:
            self._check_name(*part)
        fresh = [part for part in request.parts if (part[0], part[1]) not in self._known]
        # By ids an owner without its predecessor's window may send more under a name than was stored under it.
        if request.count > self._plan.rows_max and (fresh or not self._plan.ids):
            return TOO_LARGE
        if not self._plan.partial:
            if any(not life.log.poison.isdisjoint(offsets) for _, _, life, offsets in fresh):
                return REJECT
            for part in fresh:
                self._store(part, {})
            return ACK
        return self._partial(request)

    def _partial(self, request: Request) -> Answer:
        failed: list[FailedRow] = []
        at = 0
        for part in request.parts:
            group, name, life, offsets = part
            known = self._known.get((group, name))
            if known is None:
                poison = life.log.poison
                known = {o: o not in poison for o in offsets if o in poison or self._chance() < self._plan.flaky}
                if len(known) < len(offsets):
                    self._store(part, known)
            failed += [FailedRow(at + i, known[o], "row") for i, o in enumerate(offsets) if o in known]
            at += len(offsets)
        return Answer(Verdict.PARTIAL, "rows", 207, failed=tuple(failed)) if failed else ACK

    def _check_name(self, group: str, name: str, life: Life, offsets: tuple[int, ...]) -> None:
        owner, before = self._names.setdefault((group, name), (life, offsets))
        last = max((*before, *offsets), default=-1)
        is_other = not (life.shares(owner, last) or owner.shares(life, last))
        if not is_other:  # it may have arrived when the log had been refilled behind it
            life.stored.update(owner.stored.intersection(before))
        if before != offsets or is_other:
            differ = (set(before) ^ set(offsets)) - life.gone
            if self._plan.ids or life.rewound:
                life.hidden |= {o for o in differ if not life.gone.isdisjoint(life.log.twins_of(o))}
                differ = {offset for offset in differ if not life.settled(offset)}
                life.doubtful.update(before, offsets)
            elif (group, name) not in self._known and len(offsets) < len(before):
                # The known limit: more was refused, and split perhaps; less of it, sent by a member that does not know
                # that it was replaced and that read it when some was compacted away, is taken.
                life.doubtful.update(offsets)
            if self._plan.claim_ms:
                differ = {offset for offset in differ if not self.overtaken(life, offset)}
            if differ or is_other:
                raise BrokenPromiseError("names", f"{group} {name} stands for {before} and for {offsets}")

    def _store(self, part: Sent, failed: dict[int, bool]) -> None:
        group, name, life, offsets = part
        self._known[group, name] = failed
        taken = [offset for offset in offsets if offset not in failed] if failed else offsets
        again = life.stored.intersection(taken) - life.doubtful
        if self._plan.claim_ms:
            again = {offset for offset in again if not self.overtaken(life, offset)}
        if again:
            raise BrokenPromiseError("twice", f"{life.number}:{sorted(again)} again as {name}")
        life.stored.update(taken)
        if self._plan.claim_ms:
            self._check_keys(life, taken)
        if self._plan.ids and self._plan.processes == 1:
            self._check_twins(life, taken)
        if self._plan.rules.ordered:
            last = self._last.get((life, group), -1)
            # What was given up may come again after a crash, when its dead letter was not committed yet, and with it
            # what an owner with other ids had dropped.
            known_limit = life.gone | life.given_up | life.doubtful
            if taken[0] < last and taken[0] not in known_limit and not self._may_overtake(life, taken[0], last):
                raise BrokenPromiseError("order", f"{life.number}:{taken[0]} of {group} after {last}")
            self._last[life, group] = max(taken[-1], last)

    def _may_overtake(self, life: Life, first: int, last: int) -> bool:
        """The known limits: what was lost to a twin, or what an earlier incarnation had, goes its own way.

        By ids it was left out for a twin that is gone since, or whose id the owner does not know.
        """
        if self._plan.claim_ms:
            return life.scope != SCOPE or any(self.overtaken(life, offset) for offset in range(first, last + 1))
        ended = life.gone | life.stored | life.letters
        return any(twin in ended for twin in life.log.twins_of(first) if twin != first)

    def overtaken(self, life: Life, offset: int) -> bool:
        """The known limit: a twin took the key when the claim had expired, or when the message was given up."""
        assert life.ledger is not None
        before = life.ledger.overtaken.get(life.key(offset), ())
        return ClaimState.PROCESSING in before or (ClaimState.ERROR in before and self._plan.gives_up)

    def _check_keys(self, life: Life, taken: Sequence[int]) -> None:
        """Of all messages with one key, in whatever partition, one arrives."""
        for offset in taken:
            place = (life.number, offset)
            if life.arrived.setdefault(life.key(offset), place) != place and not self.overtaken(life, offset):
                raise BrokenPromiseError("twice", f"{place} and its twin {life.arrived[life.key(offset)]}")

    def _check_twins(self, life: Life, taken: Sequence[int]) -> None:
        """Where the journal of ids never moves, one of a message's copies arrives, but for those compacted away."""
        left = life.stored - life.gone
        for offset in left.intersection(taken):
            twins = [twin for twin in life.log.twins_of(offset) if twin != offset and twin in left]
            if any(self._remembers(life, *sorted((twin, offset))) for twin in twins):
                raise BrokenPromiseError("twice", f"{life.number}:{offset} and a twin of it")

    def _remembers(self, life: Life, first: int, last: int) -> bool:
        """Whether so few ids came between two offsets that the first one's is surely not forgotten."""
        between = {row[2] for row in life.log.messages[first + 1 : last]}
        return len(between) < self._plan.reading.capacity // 2
