"""A receiver that remembers the names of parts, refuses poison, and notices what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.core.records import Answer, Batch, FailedRow, Verdict
from tests.simulation.broker import BrokenPromiseError, Broker
from tests.simulation.plan import Plan

ACK = Answer(Verdict.ACK, status=200)
UNAVAILABLE = Answer(Verdict.RETRY, "unavailable", 503)
TIMEOUT = Answer(Verdict.RETRY, "timeout")
HALT = Answer(Verdict.HALT, "unauthorized", 401)
REJECT = Answer(Verdict.REJECT, "bad", 400)
TOO_LARGE = Answer(Verdict.TOO_LARGE, "too large", 413)


@dataclass(slots=True)
class Request:
    """A send on its way: what it carried does not change any more."""

    batch: Batch
    parts: list[tuple[str, str, int, tuple[int, ...]]]
    """Group, name, partition and offsets of each part."""
    count: int

    @classmethod
    def of(cls, batch: Batch) -> Request:
        """The request that a batch makes now."""
        parts = []
        for part in batch.parts:
            offsets = tuple(offset for fragment in part.fragments for offset in fragment.offsets)
            parts.append((part.group, part.name, part.tp.partition, offsets))
        return cls(batch, parts, sum(len(part[3]) for part in parts))


class Receiver:
    """Stores rows once a name.

    Args:
        plan: What it refuses.
        broker: What was compacted away, and dead-lettered.
        chance: Uniform in [0, 1).
    """

    def __init__(self, plan: Plan, broker: Broker, chance: Callable[[], float]) -> None:
        self._plan = plan
        self._broker = broker
        self._chance = chance
        self.stored: list[set[int]] = [set() for _ in plan.logs]
        self._names: dict[tuple[str, str], tuple[int, ...]] = {}
        """What a name was first used for."""
        self._known: dict[tuple[str, str], dict[int, bool]] = {}
        """Of each stored part the offsets that failed, and whether they were to be sent again."""
        self._last: dict[tuple[int, str], int] = {}

    def knows(self, group: str, name: str) -> bool:
        """Whether a part with this name was stored."""
        return (group, name) in self._known

    def deliver(self, request: Request) -> Answer:
        """One request arrives."""
        for group, name, number, offsets in request.parts:
            self._check_name(group, name, number, offsets)
        fresh = [part for part in request.parts if (part[0], part[1]) not in self._known]
        # By ids an owner without its predecessor's window may send more under a name than was stored under it.
        if request.count > self._plan.rows_max and (fresh or not self._plan.ids):
            return TOO_LARGE
        if not self._plan.partial:
            if any(not self._plan.logs[number].poison.isdisjoint(offsets) for _, _, number, offsets in fresh):
                return REJECT
            for part in fresh:
                self._store(part, {})
            return ACK
        return self._partial(request)

    def _partial(self, request: Request) -> Answer:
        failed: list[FailedRow] = []
        at = 0
        for part in request.parts:
            group, name, number, offsets = part
            known = self._known.get((group, name))
            if known is None:
                poison = self._plan.logs[number].poison
                known = {o: o not in poison for o in offsets if o in poison or self._chance() < self._plan.flaky}
                if len(known) < len(offsets):
                    self._store(part, known)
            failed += [FailedRow(at + i, known[o], "row") for i, o in enumerate(offsets) if o in known]
            at += len(offsets)
        return Answer(Verdict.PARTIAL, "rows", 207, failed=tuple(failed)) if failed else ACK

    def _check_name(self, group: str, name: str, number: int, offsets: tuple[int, ...]) -> None:
        before = self._names.setdefault((group, name), offsets)
        if before != offsets:
            differ = set(before) ^ set(offsets)
            differ -= self._broker.gone[number]
            if self._plan.ids:
                differ = {offset for offset in differ if not self._broker.settled(number, offset, self.stored[number])}
            if differ:
                raise BrokenPromiseError("names", f"{group} {name} stands for {before} and for {offsets}")

    def _store(self, part: tuple[str, str, int, tuple[int, ...]], failed: dict[int, bool]) -> None:
        group, name, number, offsets = part
        self._known[group, name] = failed
        stored = self.stored[number]
        for offset in offsets:
            if offset not in failed:
                if offset in stored:
                    raise BrokenPromiseError("twice", f"{number}:{offset} again as {name}")
                stored.add(offset)
        if self._plan.rules.ordered:
            last = self._last.get((number, group), -1)
            if offsets[0] < last and offsets[0] not in self._broker.gone[number]:
                raise BrokenPromiseError("order", f"{number}:{offsets[0]} of {group} after {last}")
            self._last[number, group] = offsets[-1]
