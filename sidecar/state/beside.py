"""The dead letters of a state folder that another process may have open: chosen, counted, read and deleted.

Changes no other table, and creates no folder and no state file.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from sidecar.core.records import TopicPartition
from sidecar.errors import NoStateError, StateError
from sidecar.state.database import BUSY_TIMEOUT_MS, DATABASE_FILE, FREE_PAGES_RETURNED_MAX, text_of
from sidecar.state.interface import Damage, StoredLetter
from sidecar.state.letters import SELECT, is_sound, letter_of, storable, unstored
from sidecar.state.schema import DamagedStateError, DatabaseRow, written_version

DELETED_AT_ONCE = 1_000
"""Letters deleted in one transaction, for which the daemon waits."""
ALL = 1 << 62
PAGE = 500
"""Letters that are read at once: each may be as large as its message."""


class Chosen(NamedTuple):
    """Conditions that dead letters must meet; None for any."""

    group: str | None = None
    topic: str | None = None
    reason: str | None = None
    """Text that the reason contains."""
    from_ms: int | None = None
    until_ms: int | None = None
    ids: tuple[int, ...] = ()
    """Empty for any."""
    last_id: int = ALL
    """The highest id; letters that are stored later have higher ones."""

    def where(self) -> tuple[str, list[object]]:
        """A condition in SQL, and its values."""
        conditions: list[str] = ["id <= ?"]
        values: list[object] = [self.last_id]
        for condition, value in (
            ("group_name = ?", None if self.group is None else storable(self.group)),
            ("topic = ?", self.topic),
            ("instr(CAST(reason AS TEXT), ?) > 0", self.reason),
            ("first_at_ms >= ?", self.from_ms),
            ("first_at_ms < ?", self.until_ms),
            ("id IN (SELECT value FROM json_each(?))", json.dumps(self.ids) if self.ids else None),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        return " AND ".join(conditions), values

    def takes(self, letter: StoredLetter) -> bool:
        """Whether all conditions choose the letter; `last_id` is left to the caller."""
        return (
            self.group in (None, letter.group_name)
            and self.topic in (None, letter.topic)
            and (self.reason is None or self.reason in letter.reason)
            and (self.from_ms is None or letter.first_at_ms >= self.from_ms)
            and (self.until_ms is None or letter.first_at_ms < self.until_ms)
            and (not self.ids or letter.id in self.ids)
        )


class Totals(NamedTuple):
    """Number and size of dead letters."""

    letters: int
    size_bytes: int
    last_id: int
    """Id of the newest letter; 0 if there is none."""


class LettersOfKind(NamedTuple):
    """Dead letters of a group whose reasons begin alike."""

    group: str
    reason: str
    """Up to its first colon: what follows quotes a message or a receiver."""
    letters: int
    first_at_ms: int
    last_at_ms: int
    newest: int


class Outline(NamedTuple):
    """A dead letter without its message."""

    id: int
    offset: int
    group: str
    size_bytes: int
    """Size of its row, or of its envelope if it has none."""


class StateBeside:
    """A connection to the state file of a folder, whether a daemon runs or not.

    Raises:
        NoStateError: There is no state file.
        StateError: It cannot be used, or a newer version wrote it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATABASE_FILE
        if not self._path.exists():
            raise NoStateError(
                f"there are no dead letters: {self._path} does not exist",
                hint="check state.dir; the daemon creates the file when it starts",
            )
        try:
            uri = f"file:{quote(str(self._path))}?mode=rw"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            self._connection.text_factory = text_of
            self._connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            self._connection.execute("PRAGMA synchronous=FULL")
            written_version(self._connection)
        except sqlite3.Error as error:
            raise self._error("open", error) from error
        except DamagedStateError as error:
            self.close()
            raise StateError(f"cannot use {self._path}: {error}", hint="check state.dir") from error

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable afterwards; raises `StateError` if it was rolled back."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._error("write", error) from error

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
        try:
            return self._connection.execute(sql, tuple(map(_bounded, values))).fetchall()
        except sqlite3.Error as error:
            raise self._error("read", error) from error

    def return_space(self) -> None:
        """Return free pages to the file system, a bounded number; errors are ignored."""
        with suppress(sqlite3.Error):
            self._connection.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES_RETURNED_MAX})")

    def _error(self, action: str, error: sqlite3.Error) -> StateError:
        return StateError(
            f"cannot {action} {self._path}: {error}",
            hint="run this command as the daemon's user; if the file is locked, try again",
        )


class LettersBeside(StateBeside):
    """The dead letters of a folder, whether a daemon runs or not, but for damaged ones; raises like `StateBeside`."""

    def __init__(self, folder: Path, on_damage: Callable[[Damage], None]) -> None:
        super().__init__(folder)
        self._on_damage = on_damage

    def totals(self, chosen: Chosen) -> Totals:
        where, values = chosen.where()
        sql = f"SELECT count(*), coalesce(sum(size_bytes), 0), coalesce(max(id), 0) FROM dead_letters WHERE {where}"
        (row,) = self.rows(sql, values)
        return Totals(*row)

    def version(self) -> object:
        """Changes with each letter that is stored or deleted."""
        return self.rows("SELECT letters, size_bytes, (SELECT max(id) FROM dead_letters) FROM dead_letter_totals")

    def kinds(self, limit: int) -> list[LettersOfKind]:
        """The groups of letters of one kind, the most frequent first, at most `limit`."""
        sql = (
            "SELECT group_name, substr(said, 1, instr(said || ': ', ': ') - 1) AS kind, count(*), min(first_at_ms), "
            "max(first_at_ms), max(id) FROM (SELECT *, CAST(reason AS TEXT) AS said FROM dead_letters) "
            "GROUP BY group_name, kind ORDER BY count(*) DESC, group_name, kind LIMIT ?"
        )
        return [LettersOfKind(unstored(name), *rest) for name, *rest in self.rows(sql, [limit])]

    def page(self, chosen: Chosen, limit: int, after: int = 0) -> list[StoredLetter]:
        """The chosen letters with an id above `after`, in order of arrival, at most `limit`."""
        where, values = chosen.where()
        sql = f"{SELECT} WHERE id > ? AND {where} ORDER BY id LIMIT ?"
        return self._sound(self.rows(sql, [after, *values, limit]))

    def each(self, chosen: Chosen, after: int = 0, limit: int = ALL) -> Iterator[StoredLetter]:
        """The chosen letters of all pages, few at a time in memory."""
        while limit > 0 and (page := self.page(chosen, min(limit, PAGE), after)):
            yield from page
            after, limit = page[-1].id, limit - len(page)

    def at(self, scope: str, tp: TopicPartition, offset: int) -> StoredLetter | None:
        """The letter of a message; None if there is none."""
        sql = f'{SELECT} WHERE scope = ? AND topic = ? AND partition = ? AND broker = ? AND "offset" = ?'
        return next(iter(self._sound(self.rows(sql, [scope, *tp, offset]))), None)

    def by_ids(self, ids: Sequence[int]) -> list[StoredLetter]:
        """The letters with these ids that still exist, by offset."""
        sql = f'{SELECT} WHERE id IN (SELECT value FROM json_each(?)) ORDER BY "offset"'
        return self._sound(self.rows(sql, [json.dumps(ids)]))

    def _sound(self, rows: Sequence[DatabaseRow]) -> list[StoredLetter]:
        letters = []
        for row in rows:
            if is_sound(row):
                letters.append(letter_of(row))
            else:
                self._on_damage(Damage("dead letter", f"id {row[0]}", "checksum", "left out"))
        return letters

    def partitions(self, chosen: Chosen) -> list[tuple[str, TopicPartition]]:
        """The partitions that the chosen letters are of, each with the scope in which its offsets are valid."""
        where, values = chosen.where()
        rows = self.rows(f"SELECT DISTINCT scope, topic, partition, broker FROM dead_letters WHERE {where}", values)
        return sorted((scope, TopicPartition(*rest)) for scope, *rest in rows)

    def outlines(self, chosen: Chosen, scope: str, tp: TopicPartition, after: int, limit: int) -> list[Outline]:
        """The chosen letters of a partition whose offset is above `after`, by offset, at most `limit`."""
        where, values = chosen.where()
        sql = (
            'SELECT id, "offset", group_name, coalesce(length(row), length(envelope), 0) FROM dead_letters '
            f'WHERE scope = ? AND topic = ? AND partition = ? AND broker = ? AND "offset" > ? AND {where} '
            'ORDER BY "offset" LIMIT ?'
        )
        rows = self.rows(sql, [scope, *tp, after, *values, limit])
        return [Outline(id_, offset, unstored(name), size) for id_, offset, name, size in rows]

    def delete(self, chosen: Chosen) -> Iterator[int]:
        """Delete the chosen letters some at a time, each time durably; yield the number of each step."""
        where, values = chosen.where()
        ids = [id_ for (id_,) in self.rows(f"SELECT id FROM dead_letters WHERE {where} ORDER BY id", values)]
        for start in range(0, len(ids), DELETED_AT_ONCE):
            with self.transaction() as connection:
                deleted = delete_letters(connection, ids[start : start + DELETED_AT_ONCE])
            self.return_space()
            yield deleted


def delete_letters(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Delete these letters; return the number deleted. The totals that bound them follow by a trigger."""
    sql = "DELETE FROM dead_letters WHERE id IN (SELECT value FROM json_each(?))"
    return connection.execute(sql, [json.dumps(ids)]).rowcount


def _bounded(value: object) -> object:
    """The number within the range of SQLite's integers: no id or offset is beyond it."""
    return max(-(1 << 63), min(value, (1 << 63) - 1)) if isinstance(value, int) else value
