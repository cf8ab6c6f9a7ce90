"""When which partitions are committed, and which are read again. One commit is outstanding at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from sidecar.core.effects import Commit, CommitItem, Reload
from sidecar.core.intake.identities import Identities
from sidecar.core.partition.dues import Begun
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.partition.partition import Partition
from sidecar.core.records import TopicPartition

COMMIT_SPACING_MS = 20
COMMIT_RETRY_MS = 100


class Commits:
    """Begins commits, and tells partitions of their ends.

    A partition that was given up since is committed no more and hears no late end: its successor went on from an older
    state, which must not be overtaken.

    Args:
        owned: The partitions that are ours.
        identities: Have windows, whose generations the journal tells apart.
    """

    def __init__(self, owned: Ownerships, identities: Identities) -> None:
        self._owned = owned
        self._identities = identities
        self._dirty: dict[TopicPartition, float] = {}
        self._reloads: dict[TopicPartition, str] = {}
        self._outstanding: dict[TopicPartition, tuple[Partition, Begun]] = {}
        self._next_at_ms = 0.0

    @property
    def outstanding(self) -> bool:
        """Whether a commit is on its way."""
        return bool(self._outstanding)

    @property
    def idle(self) -> bool:
        """Whether nothing is to be committed or read again, and nothing on its way."""
        return not (self._dirty or self._outstanding or self._reloads)

    def touch(self, tp: TopicPartition, due_ms: float) -> None:
        """The partition's state changed and is to be committed at `due_ms`."""
        if due_ms < self._dirty.get(tp, inf):
            self._dirty[tp] = due_ms

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more."""
        self._reloads.pop(tp, None)
        self._dirty.pop(tp, None)

    def reload(self, tp: TopicPartition, reason: str) -> None:
        """The partition, which was forgotten, is to be read again from what is committed."""
        self._reloads[tp] = reason

    def take_reloads(self) -> list[Reload]:
        """Only now that no commit is on its way: what is read back must not be overtaken by an older state."""
        if self._outstanding:
            return []
        reloads = [Reload(tp, reason) for tp, reason in self._reloads.items()]
        self._reloads.clear()
        return reloads

    def due(self, now_ms: float, *, hurry: bool) -> Commit | None:
        """The commit that is due by now, if any; `ended` must follow.

        Args:
            now_ms: Monotonic time.
            hurry: Whether nothing is waited for.
        """
        if not self._dirty or self._outstanding or now_ms < self._next_at_ms:
            return None
        if not hurry and min(self._dirty.values()) > now_ms:
            return None
        # What is fenced is committed once more by the listener, when nothing of it is being sent any more.
        items = self.begin([tp for tp in self._dirty if tp not in self._owned.fenced])
        if not items:
            return None
        self._next_at_ms = now_ms + COMMIT_SPACING_MS
        return Commit(items)

    def begin(self, tps: Iterable[TopicPartition]) -> list[CommitItem]:
        """What is to be made durable of these partitions now; `ended` must follow. Empty when nothing changed."""
        items = []
        for tp in list(tps):
            self._dirty.pop(tp, None)  # what changes from here on touches it again
            partition = self._owned.get(tp)
            if partition is None:
                continue
            begun = partition.begin_commit(self._identities.generation(tp) if partition.dues.has_ids else 0)
            if begun is not None:
                item, then = begun
                self._outstanding[tp] = partition, then
                items.append(item)
        return items

    def ended(self, results: Mapping[TopicPartition, bool], now_ms: float) -> None:
        """The outstanding commit ended; what is missing in `results` failed and is tried again."""
        sent, self._outstanding = self._outstanding, {}
        for tp, (partition, begun) in sent.items():
            if self._owned.get(tp) is not partition:
                continue
            if not results.get(tp):
                self.touch(tp, now_ms + COMMIT_RETRY_MS)
            elif partition.acknowledged(begun):
                self.touch(tp, now_ms)
