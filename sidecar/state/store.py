"""The state folder as a `State`: the meaning of rows, each with its checksum. No opening, locking or logging."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.state.database import Database, checksum
from sidecar.state.folder import IDS_FOLDER, StateFolder, errors, make_private
from sidecar.state.interface import (
    DEAD_LETTERS_BYTES_MAX,
    Damage,
    NoStoredIds,
    PartitionSnapshot,
    ProgressKey,
    refuse_another_group,
    same_cluster,
)
from sidecar.state.letters import LetterStore
from sidecar.state.schema import DatabaseRow

DAMAGES_KEPT_MAX = 1_000

_PARTITION_COLUMNS = "topic, partition, broker, topic_id, incarnation, watermark, floor, younger, older, crc"


class Store:
    """A `State` in one SQLite file of a folder that only this process holds.

    Writes and loads are meant for one thread; `letters.load` and `letters.count` may come from any and never wait for
    a write. A damaged file is set aside and a new one begun: see `take_damages`.

    Args:
        folder: Created if it is missing.
        remembers_ids: Whether the owner remembers message ids. If not, those left behind are only dropped.
        dead_letters_bytes_max: Rows and envelopes together, in bytes.

    Raises:
        StateError: The folder cannot be used, another process uses it, or a newer version wrote it.
    """

    def __init__(
        self, folder: Path | str, *, remembers_ids: bool = True, dead_letters_bytes_max: int = DEAD_LETTERS_BYTES_MAX
    ) -> None:
        self._damages: deque[Damage] = deque(maxlen=DAMAGES_KEPT_MAX)
        self._bound: tuple[str, str] | None = None
        self._folder = StateFolder(Path(folder))
        try:
            with errors("read", self._folder.path):
                make_private(self._folder.path)
            self._database = Database(self._folder, self._damages.append, self._rebind)
            self.ids = NoStoredIds()
            if remembers_ids or self._has_ids():
                from sidecar.state.ids.store import IdStore  # imports numpy, which takes 0.1 s

                self.ids = IdStore(self._database, self._folder.path, self._damages.append)
        except BaseException:
            self._folder.close()
            raise
        self.letters = LetterStore(self._database, str(self._folder.path), dead_letters_bytes_max, self._damages.append)

    def _has_ids(self) -> bool:
        with errors("read", self._folder.path):
            if (self._folder.path / IDS_FOLDER).exists():
                return True
        with suppress(StateError):  # a damaged file, which is set aside
            names = "SELECT 1 FROM meta WHERE name LIKE '[\"id%'"
            return bool(self._database.rows(f"SELECT 1 FROM ids UNION {names} LIMIT 1"))
        return True

    def bind(self, cluster_id: str, group_id: str) -> bool:
        with self._database.transaction() as connection:
            stored = self._meta(connection, "identity")
            bound_cluster, bound_group = stored or (cluster_id, group_id)
            refuse_another_group(f"the state folder {self._folder.path}", bound_group, group_id)
            same = same_cluster(bound_cluster, cluster_id)
            if not same:
                for table in ("partitions", "progress", "ids", "meta"):
                    connection.execute(f"DELETE FROM {table}")
            bound = (cluster_id or bound_cluster, group_id)
            _put_meta(connection, "identity", bound)
        if not same:
            self.ids.forget_database()
        self.ids.bind(*bound, ours=same and stored is not None)
        self._bound = bound
        if not same:
            self._database.return_space()
        return same

    @property
    def cluster_id(self) -> str:
        return self._bound[0] if self._bound else ""

    def _rebind(self) -> None:
        """Bind a file begun while the process runs to the owner of the old one."""
        self.ids.forget_database()
        if self._bound:
            with self._database.transaction() as connection:
                _put_meta(connection, "identity", self._bound)

    def _meta(self, connection: sqlite3.Connection, name: str) -> tuple[str, str] | None:
        row = connection.execute("SELECT value, crc FROM meta WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        value, crc = row
        if crc != checksum(name, value):
            self._damages.append(Damage(name, str(self._folder.path), "checksum", "dropped"))
            return None
        try:
            first, second = loads(value)
            return str(first), str(second)
        except (ValueError, TypeError):
            self._damages.append(Damage(name, str(self._folder.path), "it has another form", "dropped"))
            return None

    def member(self) -> tuple[str, str] | None:
        with self._database.transaction() as connection:
            return self._meta(connection, "member")

    def save_member(self, member: tuple[str, str] | None) -> None:
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM meta WHERE name = 'member'")
            if member is not None:
                _put_meta(connection, "member", member)

    def save_partitions(self, rows: Iterable[PartitionSnapshot]) -> None:
        values = [_partition_row(row) for row in rows]
        with self._database.transaction() as connection:
            connection.executemany(
                f"INSERT OR REPLACE INTO partitions ({_PARTITION_COLUMNS}) VALUES ({', '.join('?' * 10)})", values
            )

    def load_partitions(self) -> dict[TopicPartition, PartitionSnapshot]:
        snapshots: dict[TopicPartition, PartitionSnapshot] = {}
        with self._database.transaction() as connection:
            for rowid, *row in connection.execute(f"SELECT rowid, {_PARTITION_COLUMNS} FROM partitions").fetchall():
                if row[-1] == checksum(*row[:-1]):
                    snapshot = _partition_snapshot(tuple(row))
                    snapshots[snapshot.tp] = snapshot
                else:
                    connection.execute("DELETE FROM partitions WHERE rowid = ?", (rowid,))
                    tp = TopicPartition(*row[:3])
                    self._damages.append(Damage("partition", f"{tp.topic}:{tp.queue}", "checksum", "dropped"))
        return snapshots

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        values = [(*key, text, checksum(*key, text)) for key, text in rows.items() if text]
        dropped = [key for key, text in rows.items() if not text]
        with self._database.transaction(durable=durable) as connection:
            connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, ?)", values)
            connection.executemany("DELETE FROM progress WHERE topic = ? AND partition = ? AND broker = ?", dropped)

    def load_progress(self) -> dict[ProgressKey, str]:
        texts: dict[ProgressKey, str] = {}
        with self._database.transaction() as connection:
            for rowid, *columns, text, crc in connection.execute("SELECT rowid, * FROM progress").fetchall():
                key = ProgressKey(*columns)
                if crc == checksum(*key, text):
                    texts[key] = text
                else:
                    connection.execute("DELETE FROM progress WHERE rowid = ?", (rowid,))
                    self._damages.append(Damage("progress", f"{key.topic}:{key.tp.queue}", "checksum", "dropped"))
        return texts

    def check_in_place(self) -> None:
        self._database.check_in_place()

    def take_damages(self) -> list[Damage]:
        taken: list[Damage] = []
        while self._damages:
            taken.append(self._damages.popleft())
        return taken

    def close(self) -> None:
        """The folder is free for another process afterwards."""
        self._database.close()
        self._folder.close()


def _put_meta(connection: sqlite3.Connection, name: str, value: tuple[str, str]) -> None:
    text = json.dumps(value)
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, text, checksum(name, text)))


def _partition_row(snapshot: PartitionSnapshot) -> DatabaseRow:
    # The incarnation is an unsigned 64-bit number, which SQLite's integers cannot hold.
    place = (*snapshot.tp, snapshot.topic_id, f"{snapshot.incarnation:x}")
    row = (*place, snapshot.watermark, snapshot.floor, *snapshot.bitmaps)
    return (*row, checksum(*row))


def _partition_snapshot(row: DatabaseRow) -> PartitionSnapshot:
    topic, partition, broker, topic_id, incarnation, watermark, floor, younger, older, _ = row
    return PartitionSnapshot(
        TopicPartition(topic, partition, broker), topic_id, int(incarnation, 16), watermark, floor, (younger, older)
    )
