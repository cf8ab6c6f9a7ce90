"""The simulated broker: what is compacted away, what is committed, and who may commit."""

from __future__ import annotations

from sidecar.core.carried import Carried
from sidecar.state.offset_map import Identity, decode, encode
from tests.simulation.plan import Plan, Row

IDENTITY = Identity("cluster", "group", "topic", 7)
RULES = b"rule"
FRESH = Carried(0, 0)


class BrokenPromiseError(AssertionError):
    """A promise does not hold; `kind` is one of lost, twice, stuck, and others."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Broker:
    """Partitions and their committed states.

    Args:
        plan: The logs.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.gone: list[set[int]] = [set() for _ in plan.logs]
        self.letters: list[set[int]] = [set() for _ in plan.logs]
        """Offsets durably dead-lettered; beside the broker, but checked with it."""
        self.committed: list[Carried] = [FRESH] * len(plan.logs)
        self._texts: list[str | None] = [None] * len(plan.logs)
        self._intents: list[set[tuple[int | None, int, int]]] = [set() for _ in plan.logs]
        self._checked = [0] * len(plan.logs)
        self.scope = IDENTITY.scope

    def carried(self, number: int) -> Carried:
        """What a new owner gets."""
        text = self._texts[number]
        if text is None:
            return self.committed[number]
        found = decode(text, self.committed[number].watermark, IDENTITY, RULES)
        if found.carried is None or found.carried != self.committed[number]:
            raise BrokenPromiseError("codec", f"{self.committed[number]} came back as {found}")
        return found.carried

    def commit(self, number: int, carried: Carried, stored: set[int]) -> None:
        """A member's commit arrives."""
        if self._plan.codec:
            self._texts[number] = encode(IDENTITY, RULES, carried)
        self.committed[number] = carried
        intents = self._intents[number]
        for key, lane in carried.lanes.items():
            intents.update((key, first, last) for first, last in lane.intents)
        intents.update((None, joint.first, joint.last) for joint in carried.joints)
        for offset in range(self._checked[number], carried.watermark):
            if not self.settled(number, offset, stored):
                raise BrokenPromiseError(
                    "lost", f"{number}:{offset} is below the committed {carried.watermark}, unsettled"
                )
        self._checked[number] = max(self._checked[number], carried.watermark)

    def settled(self, number: int, offset: int, stored: set[int]) -> bool:
        """Whether a message, or a twin of it, has its end."""
        log = self._plan.logs[number]
        ended = stored, self.letters[number], self.gone[number]
        if offset not in log.wanted or any(offset in where for where in ended):
            return True
        twins = log.twins.get(log.messages[offset][2], ())
        return any(twin in where for twin in twins for where in ended)

    def intended(self, number: int, key: int | None, first: int, last: int) -> bool:
        """Whether this intent was ever committed."""
        return (key, first, last) in self._intents[number]

    def fetch(self, number: int, position: int, count: int) -> list[Row]:
        """Up to `count` messages from `position` on."""
        messages, gone = self._plan.logs[number].messages, self.gone[number]
        if not gone:
            return messages[position : position + count]
        found: list[Row] = []
        while position < self._plan.length and len(found) < count:
            if position not in gone:
                found.append(messages[position])
            position += 1
        return found
