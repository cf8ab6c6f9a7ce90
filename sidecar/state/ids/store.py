"""A partition's message ids: new ones as rows of the database, the others in sorted files. Decides nothing about them.

A row is durable before the commit that settles its ids; a file replaces rows once it is durable. Ids that a crash
leaves in both count once.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from typing_extensions import override

from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.core.windows.idruns import Keys, SortedRun, rising, unmixed
from sidecar.errors import StateError
from sidecar.state.database import Database, checksum
from sidecar.state.ids import segments as id_segments
from sidecar.state.ids.file import StoppedError
from sidecar.state.ids.files import IdFiles
from sidecar.state.ids.places import generation_of
from sidecar.state.interface import Damage, IdSegment, NoStoredIds, StoredIds, check_ids

FILED_MIN = 1_024
"""Minimum number of ids in a file; fewer stay rows."""


class IdStore(NoStoredIds):
    """The ids of one state folder: rows and files of all partitions."""

    def __init__(self, database: Database, folder: Path, on_damage: Callable[[Damage], None]) -> None:
        self._database = database
        self._on_damage = on_damage
        self._begun: set[tuple[TopicPartition, int]] = set()
        """Generations whose begin is in the database."""
        self._sorting: defaultdict[TopicPartition, threading.Lock] = defaultdict(threading.Lock)
        """Locks, so that only one thread at a time writes files of a partition."""
        self._listed: dict[TopicPartition, dict[str, int]] = {}
        """Files and checksums listed in the database, for partitions whose files were compared with the list."""
        self.files = IdFiles(folder, on_damage)

    @override
    def bind(self, cluster_id: str, group_id: str, *, ours: bool) -> None:
        self.files.bind(cluster_id, group_id, ours=ours)

    @override
    def forget_database(self) -> None:
        self._begun.clear()
        self._listed.clear()

    @override
    def append(self, segments: Iterable[IdSegment]) -> None:
        wanted = [segment for segment in segments if segment.ids]
        for segment in wanted:
            check_ids(segment.ids)
        new = {(segment.tp, segment.generation) for segment in wanted} - self._begun
        with self._database.transaction() as connection:
            for segment in wanted:
                id_segments.append(connection, segment, self._on_damage)
            for tp, generation in new:
                _put_begun(connection, tp, generation, time.time_ns() // 1_000_000)
        self._begun |= new

    @override
    def drop_before(self, tp: TopicPartition, generation: int) -> None:
        with self._database.transaction() as connection:
            connection.execute(
                "DELETE FROM ids WHERE topic = ? AND partition = ? AND broker = ? AND generation < ?", (*tp, generation)
            )
            for old in [old for old in begun_of(connection, tp) if old < generation]:
                connection.execute("DELETE FROM meta WHERE name = ?", (_begun_name(tp, old),))
                self._begun.discard((tp, old))
            listed = listed_of(connection, tp)
            kept = {name: total for name, total in listed.items() if generation_of(name) >= generation}
            if kept != listed:
                _put_listed(connection, tp, kept)
        if tp in self._listed:
            self._listed[tp] = kept
        self.files.drop_before(tp, generation)
        self._database.return_space()

    @override
    def load(self, tp: TopicPartition) -> list[tuple[int, bytes]]:
        with self._database.transaction() as connection:
            stored = id_segments.load(connection, tp, self._on_damage)
        filed = self.files.runs(tp)
        stored += [(generation, unmixed(run.keys).tobytes()) for generation, runs in filed.items() for run in runs]
        return sorted(stored, key=lambda segment: segment[0])

    @override
    def sort(self, tp: TopicPartition, *, merge: bool = True) -> StoredIds:
        with self._sorting[tp]:
            return self._sort(tp, merge=merge)

    def _sort(self, tp: TopicPartition, *, merge: bool) -> StoredIds:
        problem = ""
        try:
            self._mend(tp)
            self._file_rows(tp)
            if merge:
                self.files.tidy(tp)
            self._list(tp)
        except StoppedError as error:
            raise StateError("message ids were not sorted, because the daemon stops", hint="start it again") from error
        except StateError as error:
            problem = str(error)
        runs: dict[int, list[SortedRun]] = self.files.runs(tp)
        with self._database.transaction() as connection:
            begun = begun_of(connection, tp)
            rows = id_segments.load(connection, tp, self._on_damage)
        for generation in {generation for generation, _ in rows}:
            keys = _keys_of([ids for number, ids in rows if number == generation])
            runs.setdefault(generation, []).append(SortedRun.of(keys))
        return StoredIds(runs, begun, problem)

    @override
    def stop_sorting(self) -> None:
        self.files.closing = True

    @override
    def changed(self) -> set[TopicPartition]:
        return self.files.changed()

    def _mend(self, tp: TopicPartition) -> None:
        """Repair changes that other programs made to mapped files."""
        self._database.check_in_place()  # otherwise files would be written beside a folder that was moved away
        if tp in self._listed:
            self.files.mend(tp)
            return
        with self._database.transaction() as connection:
            listed = listed_of(connection, tp)
        self.files.expect(tp, listed)
        self._listed[tp] = listed

    def _list(self, tp: TopicPartition) -> None:
        """Store the list of files: a file that is missing at the next start was removed."""
        totals = self.files.totals(tp)
        if totals != self._listed.get(tp):
            with self._database.transaction() as connection:
                _put_listed(connection, tp, totals)
            self._listed[tp] = totals

    def _file_rows(self, tp: TopicPartition) -> None:
        """Move rows into files, a page at a time; too few for a file stay rows."""
        with self._database.transaction() as connection:
            if id_segments.count(connection, tp) < FILED_MIN:
                return
        while True:
            with self._database.transaction() as connection:
                page = id_segments.page(connection, tp, self._on_damage)
            if page is None:
                return
            generation, rows, ids = page
            self.files.add_keys(tp, generation, _keys_of(ids))
            totals = self.files.totals(tp)
            with self._database.transaction() as connection:
                id_segments.remove(connection, rows)
                _put_listed(connection, tp, totals)
            self._listed[tp] = totals
            self._database.return_space()

    @override
    def copy(self, source: TopicPartition, target: TopicPartition) -> None:
        self.drop_before(target, 1 << 62)
        with self._database.transaction() as connection:
            for generation, ids in id_segments.load(connection, source, self._on_damage):
                id_segments.append(connection, IdSegment(target, generation, ids), self._on_damage)
            for generation, at_ms in begun_of(connection, source).items():
                _put_begun(connection, target, generation, at_ms)
        self.files.copy(source, target)
        self._listed.pop(target, None)


def _keys_of(ids: Sequence[bytes]) -> Keys:
    return rising(np.frombuffer(b"".join(ids), np.int64))


def _begun_name(tp: TopicPartition, generation: int | None = None) -> str:
    name = json.dumps(["ids", *tp])
    return name if generation is None else f"{name} {generation}"


def _put_begun(connection: sqlite3.Connection, tp: TopicPartition, generation: int, at_ms: int) -> None:
    name, text = _begun_name(tp, generation), str(at_ms)
    connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?, ?)", (name, text, checksum(name, text)))


def begun_of(connection: sqlite3.Connection, tp: TopicPartition) -> dict[int, int]:
    """Begin of each generation; unknown if its row is damaged."""
    start = f"{_begun_name(tp)} "
    rows = connection.execute("SELECT name, value, crc FROM meta WHERE substr(name, 1, ?) = ?", (len(start), start))
    return {int(name[len(start) :]): int(text) for name, text, crc in rows if crc == checksum(name, text)}


def listed_of(connection: sqlite3.Connection, tp: TopicPartition) -> dict[str, int]:
    """The files that the partition had; empty if unknown."""
    name = json.dumps(["id files", *tp])
    row = connection.execute("SELECT value, crc FROM meta WHERE name = ?", (name,)).fetchone()
    return {} if row is None or row[1] != checksum(name, row[0]) else dict(loads(row[0]))


def _put_listed(connection: sqlite3.Connection, tp: TopicPartition, totals: dict[str, int]) -> None:
    name, text = json.dumps(["id files", *tp]), json.dumps(totals)
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, text, checksum(name, text)))
