"""What a simulated process remembers beside the broker's commits, and how it goes on from both."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pyroaring import BitMap64

from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Basis, Fingerprint, Lineage, Recalled, Remembered, inherited, recall
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.pipeline import Pipeline
from tests.simulation.broker import Life
from tests.simulation.plan import TPS, digest_of

Key = tuple[int, str]
_tokens = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LifeLog:
    """`lineage.Log` of a life."""

    life: Life
    high: int
    low: int = 0

    def has(self, mark: Fingerprint) -> bool | None:
        """Whether the same message stands there."""
        if mark.offset in self.life.gone:
            return None
        return digest_of(self.life.log.messages[mark.offset]) == mark.digest

    def confirm_end(self, seen: int) -> None:
        """The log never ends early here."""
        raise AssertionError(seen)


class Folder:
    """Outlives its process."""

    def __init__(self) -> None:
        self._memories: dict[Key, list[Remembered]] = {}
        self._windows: dict[Key, tuple[bytes, bytes]] = {}
        self._powerless = False
        """Whether the power failed once: which commits the state came after is known with gaps then."""

    def keep(self, life: Life, item: CommitItem) -> None:
        """This commit was acknowledged."""
        assert item.stamp is not None
        assert item.lineage is not None
        memory = Remembered(item.state, item.stamp, item.lineage.ancestors, item.lineage.fingerprints)
        self._memories.setdefault((life.number, life.scope), []).append(memory)

    def snapshot(self, life: Life, window: tuple[bytes, bytes]) -> None:
        """The window is written."""
        self._windows[life.number, life.scope] = window

    def lose(self, many: int) -> None:
        """The power failed: the newest of what was not synced is gone."""
        self._powerless = True
        for memories in self._memories.values():
            del memories[max(1, len(memories) - many) :]

    def memory(self, life: Life) -> Remembered | None:
        """The newest of this incarnation."""
        found = self._memories.get((life.number, life.scope))
        return found[-1] if found else None

    def recall(self, life: Life, length: int) -> tuple[Recalled, Lineage]:
        """How this process goes on."""
        memory = self.memory(life)
        recalled = recall(life.found(), memory, LifeLog(life, length))
        marks = memory.fingerprints if memory is not None else ()
        return recalled, Lineage(
            next(_tokens),
            life.found().stamp,
            inherited(life.found(), memory),
            tuple(mark for mark in marks if mark.offset < recalled.settled_below),
            durable=recalled.is_committed,
        )

    def load(self, life: Life, pipeline: Pipeline, below: int) -> bool:
        """Load the window of this incarnation; whether it is to be written again."""
        found = self._windows.get((life.number, life.scope))
        return found is not None and pipeline.load_settled(TPS[life.number], found, below)

    def facts(self, life: Life, recalled: Recalled) -> set[int]:
        """What this process knows to be settled, whatever the broker says."""
        known: set[int] = set()
        for blob in self._windows.get((life.number, life.scope), ()):
            known.update(offset for offset in BitMap64.deserialize(blob) if offset < recalled.settled_below)
        memory = self.memory(life)
        if memory is not None and recalled.settled_below:
            known.update(range(min(memory.state.watermark, recalled.settled_below)))
        return known

    def doubt(self, before: Life, life: Life, recalled: Recalled) -> None:
        """Where the broker forgot commits: what may come again all the same.

        Who remembers the newest commit of all, and can prove that, repeats nothing. Anybody else repeats what is not
        settled to their knowledge, and an intent that another one made after a rewind goes out whole.
        """
        memory = self.memory(before)
        unproven = recalled.compared and recalled.agreed is None
        exact = memory is not None and memory.stamp == before.newest and not (recalled.fresh or unproven)
        has_gap = self._has_gap(before, recalled)
        if has_gap or not exact or recalled.whose is Basis.BOTH:
            again = range(recalled.state.watermark, len(life.log.messages))
            life.doubtful.update(again if has_gap else set(again) - self.facts(before, recalled))
        if not exact or recalled.whose is Basis.BOTH:
            life.doubtful.update(promised(recalled.state))

    def _has_gap(self, before: Life, recalled: Recalled) -> bool:
        """The known limit: the state came after the broker's commit, and a loss of power took what said so."""
        memory, found = self.memory(before), before.found().stamp
        taken_for_fork = self._powerless and recalled.whose is Basis.BOTH
        return taken_for_fork and memory is not None and found is not None and before.descends(memory.stamp, found)


def promised(state: PartitionState) -> set[int]:
    """The offsets of intents."""
    bounds = [(one.first, one.last) for one in state.shared]
    bounds += [intent for lane in state.lanes.values() for intent in lane.intents]
    return {offset for first, last in bounds for offset in range(first, last + 1)}
