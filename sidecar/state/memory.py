"""The state in memory, for simulations and users' tests: what `Store` promises, without a disk; no file may come in."""

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
    PartitionSnapshot,
    ProgressKey,
    StoredIds,
    StoredLetter,
    another_group,
    check_ids,
    no_room_for_letters,
    same_cluster,
)


class MemoryState:
    """A `State` that lives as long as the object: hand it to the next simulated life as its disk.

    Args:
        dead_letters_bytes_max: As of `Store`.
    """

    failing: str = ""
    """While this is set every write raises `StateError` with this text and changes nothing: a full disk."""

    def __init__(self, *, dead_letters_bytes_max: int = DEAD_LETTERS_BYTES_MAX) -> None:
        self._lock = threading.RLock()
        self._letters_bytes_max = dead_letters_bytes_max
        self._bound: tuple[str, str] | None = None
        self._member: tuple[str, str] | None = None
        self._partitions: dict[TopicPartition, PartitionSnapshot] = {}
        self._progress: dict[ProgressKey, str] = {}
        self._ids: dict[TopicPartition, dict[int, bytearray]] = {}
        self._begun_at_ms: dict[tuple[TopicPartition, int], int] = {}
        self._letters: dict[tuple[str, str, int, str, int], StoredLetter] = {}
        self._letters_bytes = 0

    def _check_writable(self) -> None:
        if self.failing:
            raise StateError(f"the state in memory cannot be written: {self.failing}")

    def bind(self, cluster_id: str, group_id: str) -> bool:
        """See `State.bind`."""
        self._check_writable()
        if self._bound is None:
            self._bound = (cluster_id, group_id)
            return True
        bound_cluster, bound_group = self._bound
        if bound_group != group_id:
            raise another_group("the state in memory", bound_group, group_id)
        same = same_cluster(bound_cluster, cluster_id)
        if not same:
            self._partitions.clear()
            self._progress.clear()
            self._ids.clear()
            self._begun_at_ms.clear()
            self._member = None
        self._bound = (cluster_id or bound_cluster, group_id)
        return same

    def member(self) -> tuple[str, str] | None:
        """See `State.member`."""
        return self._member

    def save_member(self, group_id: str, member_id: str) -> None:
        """See `State.save_member`."""
        self._check_writable()
        self._member = (group_id, member_id)

    def forget_member(self) -> None:
        """See `State.forget_member`."""
        self._check_writable()
        self._member = None

    def save_partitions(self, rows: Iterable[PartitionSnapshot]) -> None:
        """See `State.save_partitions`."""
        self._check_writable()
        self._partitions.update({row.tp: row for row in rows})

    def load_partitions(self) -> dict[TopicPartition, PartitionSnapshot]:
        """See `State.load_partitions`."""
        return dict(self._partitions)

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:  # noqa: ARG002
        """See `State.save_progress`."""
        self._check_writable()
        self._progress.update(rows)
        self._progress = {key: text for key, text in self._progress.items() if text}

    def load_progress(self) -> dict[ProgressKey, str]:
        """See `State.load_progress`."""
        return dict(self._progress)

    def append_ids(self, segments: Iterable[IdSegment]) -> None:
        """See `State.append_ids`."""
        self._check_writable()
        wanted = [segment for segment in segments if segment.ids]
        for segment in wanted:
            check_ids(segment.ids)
        for segment in wanted:
            self._begun_at_ms.setdefault((segment.tp, segment.generation), time.time_ns() // 1_000_000)
            self._ids.setdefault(segment.tp, {}).setdefault(segment.generation, bytearray()).extend(segment.ids)

    def drop_ids_before(self, tp: TopicPartition, generation: int) -> None:
        """See `State.drop_ids_before`."""
        self._check_writable()
        generations = self._ids.get(tp, {})
        for old in [g for g in generations if g < generation]:
            del generations[old], self._begun_at_ms[tp, old]

    def load_ids(self, tp: TopicPartition) -> list[tuple[int, bytes]]:
        """See `State.load_ids`."""
        return [(generation, bytes(ids)) for generation, ids in sorted(self._ids.get(tp, {}).items())]

    def sort_ids(self, tp: TopicPartition, *, merge: bool = True) -> StoredIds:  # noqa: ARG002
        """See `State.sort_ids`."""
        self._check_writable()
        runs = {
            generation: [SortedRun.of(rising(np.frombuffer(bytes(ids), np.int64)))]
            for generation, ids in self._ids.get(tp, {}).items()
        }
        return StoredIds(runs, {generation: self._begun_at_ms[tp, generation] for generation in runs})

    def copy_ids(self, source: TopicPartition, target: TopicPartition) -> None:
        """See `State.copy_ids`."""
        self._check_writable()
        self._ids[target] = {generation: ids[:] for generation, ids in self._ids.get(source, {}).items()}
        for generation in self._ids[target]:
            self._begun_at_ms[target, generation] = self._begun_at_ms[source, generation]

    def stop_sorting(self) -> None:
        """See `State.stop_sorting`: nothing here takes long."""

    def changed_ids(self) -> set[TopicPartition]:
        """See `State.changed_ids`: nobody changes what is in memory."""
        return set()

    def put_dead_letters(self, letters: Sequence[StoredLetter]) -> int:
        """See `State.put_dead_letters`."""
        self._check_writable()
        with self._lock:
            new: dict[tuple[str, str, int, str, int], StoredLetter] = {}
            for letter in letters:
                if letter.identity not in self._letters:
                    new.setdefault(letter.identity, letter)
            size_bytes = self._letters_bytes + sum(letter.size_bytes for letter in new.values())
            if new and size_bytes > self._letters_bytes_max:
                raise no_room_for_letters("memory", size_bytes, self._letters_bytes_max)
            for letter in new.values():
                self._letters[letter.identity] = replace(letter, id=len(self._letters) + 1)
            self._letters_bytes = size_bytes
            return len(new)

    def dead_letters(self, limit: int, after: int = 0) -> list[StoredLetter]:
        """See `State.dead_letters`."""
        with self._lock:
            return list(self._letters.values())[after : after + limit]

    def count_dead_letters(self) -> int:
        """See `State.count_dead_letters`."""
        return len(self._letters)

    def check_in_place(self) -> None:
        """See `State.check_in_place`: nobody moves what is in memory."""

    def take_damages(self) -> list[Damage]:
        """See `State.take_damages`: memory is never damaged."""
        return []

    def close(self) -> None:
        """See `State.close`: what is kept stays for the next life."""
