"""The state in memory: the promises of `Store` without a disk. It uses no file."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sidecar.core.records import TopicPartition
from sidecar.core.windows.idruns import SortedRun, rising
from sidecar.errors import StateError
from sidecar.state.interface import (
    DEAD_LETTERS_BYTES_MAX,
    Damage,
    IdSegment,
    NoStoredIds,
    PartitionSnapshot,
    ProgressKey,
    StoredIds,
    StoredLetter,
    check_ids,
    no_room_for_letters,
    refuse_another_group,
    same_cluster,
)


class Disk:
    """Simulates a disk that may refuse writes."""

    def __init__(self) -> None:
        self.failing = ""

    def check(self) -> None:
        """Raise `StateError` if writes fail."""
        if self.failing:
            raise StateError(f"the state in memory cannot be written: {self.failing}")


class MemoryIds(NoStoredIds):
    """Ids in memory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._ids: dict[TopicPartition, dict[int, bytearray]] = {}
        self._begun_at_ms: dict[tuple[TopicPartition, int], int] = {}

    def append(self, segments: Iterable[IdSegment]) -> None:
        self._disk.check()
        wanted = [segment for segment in segments if segment.ids]
        for segment in wanted:
            check_ids(segment.ids)
        for segment in wanted:
            self._begun_at_ms.setdefault((segment.tp, segment.generation), time.time_ns() // 1_000_000)
            self._ids.setdefault(segment.tp, {}).setdefault(segment.generation, bytearray()).extend(segment.ids)

    def drop_before(self, tp: TopicPartition, generation: int) -> None:
        self._disk.check()
        generations = self._ids.get(tp, {})
        for old in [g for g in generations if g < generation]:
            del generations[old], self._begun_at_ms[tp, old]

    def load(self, tp: TopicPartition) -> list[tuple[int, bytes]]:
        return [(generation, bytes(ids)) for generation, ids in sorted(self._ids.get(tp, {}).items())]

    def sort(self, tp: TopicPartition, *, merge: bool = True) -> StoredIds:
        self._disk.check()
        runs = {
            generation: [SortedRun.of(rising(np.frombuffer(bytes(ids), np.int64)))]
            for generation, ids in self._ids.get(tp, {}).items()
        }
        return StoredIds(runs, {generation: self._begun_at_ms[tp, generation] for generation in runs})

    def copy(self, source: TopicPartition, target: TopicPartition) -> None:
        self._disk.check()
        self._ids[target] = {generation: ids[:] for generation, ids in self._ids.get(source, {}).items()}
        for generation in self._ids[target]:
            self._begun_at_ms[target, generation] = self._begun_at_ms[source, generation]

    def clear(self) -> None:
        self._ids.clear()
        self._begun_at_ms.clear()


class MemoryLetters:
    """`Letters` in memory."""

    def __init__(self, disk: Disk, bytes_max: int) -> None:
        self._disk = disk
        self._bytes_max = bytes_max
        self._lock = threading.RLock()
        self._letters: dict[tuple[str, str, int, str, int], StoredLetter] = {}
        self._bytes = 0

    def put(self, letters: Sequence[StoredLetter]) -> int:
        self._disk.check()
        with self._lock:
            new: dict[tuple[str, str, int, str, int], StoredLetter] = {}
            for letter in letters:
                if letter.identity not in self._letters:
                    new.setdefault(letter.identity, letter)
            size_bytes = self._bytes + sum(letter.size_bytes for letter in new.values())
            if new and size_bytes > self._bytes_max:
                raise no_room_for_letters("memory", size_bytes, self._bytes_max)
            for letter in new.values():
                self._letters[letter.identity] = replace(letter, id=len(self._letters) + 1)
            self._bytes = size_bytes
            return len(new)

    def load(self, limit: int, after: int = 0) -> list[StoredLetter]:
        with self._lock:
            return list(self._letters.values())[after : after + limit]

    def count(self) -> int:
        return len(self._letters)


class MemoryState:
    """A `State` that lives as long as the object: pass it to the next simulated process as its disk."""

    def __init__(self, *, dead_letters_bytes_max: int = DEAD_LETTERS_BYTES_MAX) -> None:
        self._disk = Disk()
        self.ids = MemoryIds(self._disk)
        self.letters = MemoryLetters(self._disk, dead_letters_bytes_max)
        self._bound: tuple[str, str] | None = None
        self._member: tuple[str, str] | None = None
        self._partitions: dict[TopicPartition, PartitionSnapshot] = {}
        self._progress: dict[ProgressKey, str] = {}

    @property
    def failing(self) -> str:
        """While this is set, every write raises `StateError` with this text and changes nothing, as on a full disk."""
        return self._disk.failing

    @failing.setter
    def failing(self, why: str) -> None:
        self._disk.failing = why

    def bind(self, cluster_id: str, group_id: str) -> bool:
        self._disk.check()
        if self._bound is None:
            self._bound = (cluster_id, group_id)
            return True
        bound_cluster, bound_group = self._bound
        refuse_another_group("the state in memory", bound_group, group_id)
        same = same_cluster(bound_cluster, cluster_id)
        if not same:
            self._partitions.clear()
            self._progress.clear()
            self.ids.clear()
            self._member = None
        self._bound = (cluster_id or bound_cluster, group_id)
        return same

    @property
    def cluster_id(self) -> str:
        return self._bound[0] if self._bound else ""

    def member(self) -> tuple[str, str] | None:
        return self._member

    def save_member(self, member: tuple[str, str] | None) -> None:
        self._disk.check()
        self._member = member

    def save_partitions(self, rows: Iterable[PartitionSnapshot]) -> None:
        self._disk.check()
        self._partitions.update({row.tp: row for row in rows})

    def load_partitions(self) -> dict[TopicPartition, PartitionSnapshot]:
        return dict(self._partitions)

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        self._disk.check()
        self._progress.update(rows)
        self._progress = {key: text for key, text in self._progress.items() if text}

    def load_progress(self) -> dict[ProgressKey, str]:
        return dict(self._progress)

    def check_in_place(self) -> None:
        """Memory cannot be moved."""

    def take_damages(self) -> list[Damage]:
        """Memory is never damaged."""
        return []

    def close(self) -> None:
        """The rows stay for the next process."""
