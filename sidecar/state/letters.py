"""Rows of dead letters, written and read; nothing but SQL on one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sidecar.core.json_text import loads
from sidecar.core.records import Attempt, TopicPartition
from sidecar.state.database import Database, checksum
from sidecar.state.interface import Damage, StoredLetter, no_room_for_letters
from sidecar.state.schema import DatabaseRow

_COLUMNS = (
    'scope, topic, partition, broker, "offset", group_name, reason, status, attempts, first_at_ms, row, envelope, '
    "size_bytes, crc"
)
SELECT = f"SELECT id, {_COLUMNS} FROM dead_letters"
_INSERT = f"INSERT OR IGNORE INTO dead_letters ({_COLUMNS}) VALUES ({', '.join('?' * 14)})"


class LetterStore:
    """`Letters` of one state folder."""

    def __init__(self, database: Database, place: str, bytes_max: int, on_damage: Callable[[Damage], None]) -> None:
        self._database = database
        self._place = place
        self._bytes_max = bytes_max
        self._on_damage = on_damage

    def put(self, letters: Sequence[StoredLetter]) -> int:
        with self._database.transaction() as connection:
            new = sum(connection.execute(_INSERT, row_of(letter)).rowcount for letter in letters)
            (size_bytes,) = connection.execute("SELECT size_bytes FROM dead_letter_totals").fetchone()
            if new and size_bytes > self._bytes_max:
                raise no_room_for_letters(self._place, size_bytes, self._bytes_max)
            return new

    def load(self, limit: int, after: int = 0) -> list[StoredLetter]:
        """Leaves out damaged rows and reports them; they stay in the file."""
        letters: list[StoredLetter] = []
        for row in self._database.rows(f"{SELECT} WHERE id > ? ORDER BY id LIMIT ?", (after, limit)):
            if is_sound(row):
                letters.append(letter_of(row))
            else:
                tp = TopicPartition(*row[2:5])
                where = f"{tp.topic}:{tp.queue} offset {row[5]}"
                self._on_damage(Damage("dead letter", where, "checksum", f"left out, id {row[0]}"))
        return letters

    def count(self) -> int:
        return int(self._database.rows("SELECT letters FROM dead_letter_totals")[0][0])


def row_of(letter: StoredLetter) -> DatabaseRow:
    """The columns of a letter without its id; the last one is the checksum."""
    attempts, texts = json.dumps(letter.attempts), map(storable, (letter.group_name, letter.reason))
    contents = letter.row, letter.envelope, letter.size_bytes
    row = (*letter.identity, *texts, letter.status, attempts, letter.first_at_ms, *contents)
    return (*row, checksum(*row))


def is_sound(row: DatabaseRow) -> bool:
    """Whether a row of `SELECT` is as it was written."""
    return bool(row[-1] == checksum(*row[1:-1]))


def letter_of(row: DatabaseRow) -> StoredLetter:
    """The letter of a sound row of `SELECT`."""
    id_, scope, topic, partition, broker, offset, group_name, reason, status, *rest = row
    attempts, first_at_ms, data, envelope, *_ = rest
    return StoredLetter(
        topic, partition, offset, scope, unstored(group_name), unstored(reason), status,
        tuple(Attempt(*attempt) for attempt in loads(attempts)), first_at_ms, data, envelope, broker, id_,
    )  # fmt: skip


def storable(text: str) -> str | bytes:
    """Text for SQLite, which cannot hold surrogates: these stand for bytes of tags that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def unstored(stored: str | bytes) -> str:
    """Text that `storable` made storable."""
    return stored.decode("utf-8", "surrogatepass") if isinstance(stored, bytes) else stored
