"""The state folder's memory of partitions in addition to the broker's commits: written after them, read at a start.

The broker may lose its newest commits; then only this memory has them. A row is kept once its commit was acknowledged.
It is not synced, so after a power loss it may be some commits older. A commit of another member takes the place of an
older row when the partition goes on from it: what is void by that commit is removed from the local store, so that the
older row would count messages that are gone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import NamedTuple, Self

from sidecar import threads
from sidecar.core.json_text import loads
from sidecar.core.lineage import Fingerprint, Lineage, Remembered
from sidecar.core.records import TopicPartition
from sidecar.errors import SidecarError
from sidecar.sources.base import Tell
from sidecar.state.interface import ProgressKey, State
from sidecar.state.offset_map import Identity, decode


class CommitMemory(NamedTuple):
    """The kept row of a partition.

    Args:
        text: The metadata of the commit.
        topic_id: The topic's id, empty if the broker has none.
        ancestors: See `Lineage`; pairs of token and number.
        fingerprints: See `Lineage`; pairs of offset and digest.
    """

    watermark: int
    text: str
    topic_id: str
    ancestors: list[tuple[int, int]]
    fingerprints: list[Fingerprint]

    @classmethod
    def of(cls, watermark: int, text: str, topic_id: str, lineage: Lineage) -> Self:
        """The row of a commit."""
        return cls(watermark, text, topic_id, list(lineage.ancestors.items()), list(lineage.fingerprints))

    @classmethod
    def load(cls, text: str) -> Self | None:
        """Parse a row from text; None if it is invalid."""
        try:
            watermark, metadata, topic_id, ancestors, fingerprints = loads(text)
            marks = [Fingerprint(int(offset), int(digest)) for offset, digest in fingerprints]
            return cls(int(watermark), str(metadata), str(topic_id), [(int(a), int(b)) for a, b in ancestors], marks)
        except (ValueError, TypeError, OverflowError):  # the last for a number that is infinite
            return None


class RememberedState(NamedTuple):
    """A row that applies to a partition, decoded."""

    incarnation: int
    state: Remembered


class Memories:
    """Keeps the newest row of each partition."""

    def __init__(self, state: State, tell: Tell) -> None:
        self._state = state
        self._tell = tell
        loaded = {key.tp: CommitMemory.load(text) for key, text in state.load_progress().items()}
        self._known = {tp: memory for tp, memory in loaded.items() if memory is not None}
        self._outdated: set[TopicPartition] = set()
        self._lock = threading.Lock()
        self._unsaved: dict[TopicPartition, CommitMemory] = {}
        self._disk = threads.Pool("memory")
        self._failing = False

    def find(self, tp: TopicPartition, known: Identity, rules: bytes) -> RememberedState | None:
        """The row that applies: of the same group, topic and rules; None if there is none."""
        memory = self._known.get(tp)
        if memory is None or memory.topic_id != known.topic_id:
            return None
        decoded = decode(memory.text, memory.watermark, known, rules)
        if decoded.state is None or decoded.stamp is None:
            return None
        state = Remembered(decoded.state, decoded.stamp, dict(memory.ancestors), tuple(memory.fingerprints))
        return RememberedState(decoded.incarnation, state)

    def distrust(self, tp: TopicPartition) -> None:
        """Another member went on from a commit before the row's."""
        self._outdated.add(tp)

    def is_outdated(self, tp: TopicPartition) -> bool:
        """Whether the row is known to be outdated."""
        return tp in self._outdated

    def keep(self, rows: Mapping[TopicPartition, CommitMemory]) -> None:
        """Keep the rows of an acknowledged commit; further rows may come while they are written."""
        if not self._take(rows):  # a write under way has already taken its rows, and a later commit may never come
            threads.watch(self._disk.submit(self._write), "memory")

    def supersede(self, rows: Mapping[TopicPartition, CommitMemory]) -> None:
        """Keep the rows of commits of others, synced: the stores may then forget what is void by them."""
        self._take(rows)
        self._disk.submit(self._write, durable=True).result()

    def _take(self, rows: Mapping[TopicPartition, CommitMemory]) -> bool:
        """Take rows to be written; return whether a write that will have them was already asked for."""
        self._known.update(rows)
        self._outdated.difference_update(rows)
        with self._lock:
            is_asked_for = bool(self._unsaved)
            self._unsaved.update(rows)
        return is_asked_for

    def _write(self, *, durable: bool = False) -> None:
        """Write on a separate thread. If it fails, the partition's next commit repairs that."""
        with self._lock:
            rows, self._unsaved = self._unsaved, {}
        try:
            texts = {ProgressKey.of(tp): json.dumps(memory) for tp, memory in rows.items()}
            self._state.save_progress(texts, durable=durable)
        except SidecarError as error:
            self._tell("memory.not_saved", "warning", {"reason": str(error)})
            self._failing = True
        else:
            if self._failing:
                self._tell("memory.saved", "info", {})
            self._failing = False

    def close(self) -> None:
        """Write the remaining rows."""
        self._disk.shutdown()
