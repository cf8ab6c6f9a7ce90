"""Parts of dead letters that are being delivered again: fixed before they are sent, and ended. Only SQL.

The table is in the state file and not in its schema: the first replay creates it, and the daemon leaves it alone.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.state.beside import StateBeside, delete_letters
from sidecar.state.database import checksum
from sidecar.state.interface import StoredLetter
from sidecar.state.letters import row_of, storable, unstored
from sidecar.state.schema import DatabaseRow

STATE = "state"
TOPIC = "topic:"
Target: TypeAlias = Literal["receiver", "topic"]

_SCHEMA = """CREATE TABLE IF NOT EXISTS replay_parts (
  id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, target TEXT NOT NULL, scope TEXT NOT NULL,
  topic TEXT NOT NULL, partition INTEGER NOT NULL, broker TEXT NOT NULL, group_name TEXT NOT NULL,
  first INTEGER NOT NULL, last INTEGER NOT NULL, letters TEXT NOT NULL, crc INTEGER NOT NULL)"""
_ORIGINS = """CREATE TABLE IF NOT EXISTS replay_origins (
  source TEXT NOT NULL, origin BLOB NOT NULL, letter INTEGER NOT NULL, PRIMARY KEY (source, origin)) WITHOUT ROWID"""
_COLUMNS = "source, target, scope, topic, partition, broker, group_name, first, last, letters, crc"
_INSERT = f"INSERT INTO replay_parts ({_COLUMNS}) VALUES ({', '.join('?' * 11)})"


@dataclass(frozen=True, slots=True)
class ReplayPart:
    """A part of dead letters: a name and its members.

    Args:
        scope: Common to the names of all parts of one replay.
        source: Where the letters are: `STATE`, or the name of a topic with `TOPIC` before it.
        id: Its place in the table, 0 before it is there.
    """

    target: Target
    scope: str
    tp: TopicPartition
    group: str
    first: int
    last: int
    letters: tuple[int, ...]
    source: str = STATE
    id: int = 0


class Replays:
    """The parts of dead letters that are fixed and not ended."""

    def __init__(self, state: StateBeside) -> None:
        self._state = state

    def pending(self) -> list[ReplayPart]:
        """The parts that an earlier process fixed and did not end, oldest first."""
        if not self._has("replay_parts"):
            return []
        return [_part(row) for row in self._state.rows(f"SELECT id, {_COLUMNS} FROM replay_parts ORDER BY id")]

    def _has(self, table: str) -> bool:
        """Whether a replay has created this table."""
        return bool(self._state.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", [table]))

    def token(self) -> str:
        """Random digits that identify this state file forever; drawn at the first call."""
        with self._state.transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS replay_token (token TEXT NOT NULL)")
            found = connection.execute("SELECT token FROM replay_token").fetchone()
            if found is None:
                found = (secrets.token_hex(8),)
                connection.execute("INSERT INTO replay_token VALUES (?)", found)
            return str(found[0])

    def fix(self, part: ReplayPart) -> ReplayPart:
        """Make a part durable; it may be sent afterwards."""
        with self._state.transaction() as connection:
            connection.execute(_SCHEMA)
            return _insert(connection, part)

    def halve(self, part: ReplayPart, halves: Iterable[ReplayPart]) -> list[ReplayPart]:
        """Replace a part by its halves, durably."""
        with self._state.transaction() as connection:
            connection.execute("DELETE FROM replay_parts WHERE id = ?", (part.id,))
            return [_insert(connection, half) for half in halves]

    def end_part(self, part: ReplayPart, delivered: Sequence[int], refused: Collection[StoredLetter]) -> None:
        """End a part, durably: delete the accepted letters by id, and keep the others with the last refusal."""
        with self._state.transaction() as connection:
            delete_letters(connection, delivered)
            for letter in refused:
                *columns, crc = row_of(letter)
                reason, status, attempts = columns[6:9]
                connection.execute(
                    "UPDATE dead_letters SET reason = ?, status = ?, attempts = ?, crc = ? WHERE id = ?",
                    (reason, status, attempts, crc, letter.id),
                )
            _delete(connection, part)

    # Letters in a topic, whose records cannot be deleted

    def origins(self, source: str) -> set[bytes]:
        """The origins of letters of a topic that were replayed."""
        if not self._has("replay_origins"):
            return set()
        return {
            origin for (origin,) in self._state.rows("SELECT origin FROM replay_origins WHERE source = ?", [source])
        }

    def end_origins(self, part: ReplayPart, origins: Iterable[tuple[bytes, int]]) -> None:
        """End a part of letters in a topic, durably, with the replayed origins and the ids of their letters."""
        with self._state.transaction() as connection:
            connection.execute(_ORIGINS)
            rows = [(part.source, origin, id_) for origin, id_ in origins]
            connection.executemany("INSERT OR REPLACE INTO replay_origins VALUES (?, ?, ?)", rows)
            _delete(connection, part)


def _delete(connection: sqlite3.Connection, part: ReplayPart) -> None:
    if part.id:  # a part that was never fixed has no row, and perhaps there is no table
        connection.execute("DELETE FROM replay_parts WHERE id = ?", (part.id,))


def _insert(connection: sqlite3.Connection, part: ReplayPart) -> ReplayPart:
    place = part.source, part.target, part.scope, *part.tp
    columns = (*place, storable(part.group), part.first, part.last, json.dumps(part.letters))
    added = connection.execute(_INSERT, (*columns, checksum(*columns)))
    return replace(part, id=added.lastrowid or 0)


def _part(row: DatabaseRow) -> ReplayPart:
    id_, *columns, crc = row
    if crc != checksum(*columns):
        raise StateError(
            f"the replay of dead letters that was interrupted cannot be continued: part {id_} is damaged",
            hint="its letters may have arrived; look at the receiver, then: sqlite3 state.db 'DROP TABLE replay_parts'",
        )
    source, target, scope, topic, partition, broker, group, first, last, letters = columns
    tp = TopicPartition(topic, partition, broker)
    return ReplayPart(target, scope, tp, unstored(group), first, last, tuple(loads(letters)), source, id_)
