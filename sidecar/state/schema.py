"""The schema of a state file: its tables, its version, and its check. Reads no rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from sidecar.errors import StateError

DatabaseRow: TypeAlias = tuple[Any, ...]

APPLICATION_ID = 0x5CA20000
SCHEMA_VERSION = 1
MESSAGES_MAX = 100

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE partitions (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, broker TEXT NOT NULL, topic_id TEXT NOT NULL,
  incarnation TEXT NOT NULL, watermark INTEGER NOT NULL, floor INTEGER NOT NULL, younger BLOB NOT NULL,
  older BLOB NOT NULL, crc INTEGER NOT NULL,
  PRIMARY KEY (topic, partition, broker));
CREATE TABLE progress (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, broker TEXT NOT NULL, text TEXT NOT NULL, crc INTEGER NOT NULL,
  PRIMARY KEY (topic, partition, broker));
CREATE TABLE ids (
  seq INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, broker TEXT NOT NULL,
  generation INTEGER NOT NULL, level INTEGER NOT NULL, data BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX ids_by_partition ON ids (topic, partition, broker, generation, level);
CREATE TABLE dead_letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
  broker TEXT NOT NULL, "offset" INTEGER NOT NULL, group_name TEXT NOT NULL, reason TEXT NOT NULL, status INTEGER,
  attempts TEXT NOT NULL, first_at_ms INTEGER NOT NULL, row BLOB, envelope BLOB, size_bytes INTEGER NOT NULL,
  crc INTEGER NOT NULL,
  UNIQUE (scope, topic, partition, broker, "offset"));
CREATE TABLE dead_letter_totals (letters INTEGER NOT NULL, size_bytes INTEGER NOT NULL);
INSERT INTO dead_letter_totals VALUES (0, 0);
CREATE TRIGGER dead_letter_put AFTER INSERT ON dead_letters BEGIN
  UPDATE dead_letter_totals SET letters = letters + 1, size_bytes = size_bytes + NEW.size_bytes; END;
CREATE TRIGGER dead_letter_deleted AFTER DELETE ON dead_letters BEGIN
  UPDATE dead_letter_totals SET letters = letters - 1, size_bytes = size_bytes - OLD.size_bytes; END;
"""


class DamagedStateError(Exception):
    """The file is no sound database of this program; the text has the reason."""


def check(connection: sqlite3.Connection) -> int:
    """The version of a file; 0 for an empty one.

    Raises:
        DamagedStateError: It is no state file, or its pages are damaged.
        StateError: Another version of this program wrote it.
    """
    version = version_of(connection)
    if version:
        _check_pages(connection, "quick_check")
    return version


def check_fully(connection: sqlite3.Connection) -> None:
    """Check a file with its indexes and tables, which takes longer; writes nothing. Raises like `check`."""
    written_version(connection)
    _check_pages(connection, "integrity_check")
    _missing(connection)


def written_version(connection: sqlite3.Connection) -> int:
    """The version of a file that must have one; raises like `check`."""
    if version := version_of(connection):
        return version
    raise DamagedStateError("it is empty")


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a file, without a check of its pages; 0 for an empty one.

    Raises:
        DamagedStateError: It is no state file.
        StateError: Another version of this program wrote it.
    """
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if objects == 0 and version == 0:
        return 0
    # The version is stored in two places, so that a flipped bit is not taken for a newer program.
    if application != APPLICATION_ID + version or version < 1:
        raise DamagedStateError(f"not a state file (user_version {version}, application_id {application})")
    if version != SCHEMA_VERSION:
        raise StateError(
            f"the state file was written by another version (schema {version}, this one knows only {SCHEMA_VERSION})",
            hint="run the version that wrote it, or use another state.dir",
        )
    return SCHEMA_VERSION


def complete(connection: sqlite3.Connection, version: int) -> None:
    """Create what is missing within the caller's transaction: all of it with both marks, or nothing.

    Objects that others created in the file stay; an index or trigger of Sidecar that was dropped is created again.

    Args:
        version: 0 for an empty file.

    Raises:
        DamagedStateError: A table of Sidecar is missing or changed.
    """
    for statement in () if version else _statements(SCHEMA):
        connection.execute(statement)
    _mend(connection)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID + SCHEMA_VERSION}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _check_pages(connection: sqlite3.Connection, how: str) -> None:
    """Check the pages by a pragma; complaints about other programs' tables are ignored."""
    try:
        faults = [text for (text,) in connection.execute(f"PRAGMA {how}({MESSAGES_MAX})")]
    except sqlite3.OperationalError as error:  # a function or collation that only the other program has
        faults = [str(error)]
    if faults == ["ok"]:
        return
    ours = {name for kind, name, *_ in _expected_objects() if kind == "table"}
    theirs = {table for _, _, table, _ in _objects(connection)} - ours
    checks = [connection.execute(f"PRAGMA {how}('{name}')").fetchone()[0] for name in sorted(ours)]
    if not theirs or len(faults) == MESSAGES_MAX or any(text != "ok" for text in checks) or _is_structural(faults):
        raise DamagedStateError(faults[0])


def _is_structural(complaints: Sequence[str]) -> bool:
    """Whether they are about pages, not about values and their constraints."""
    return any(text.startswith(("***", "Tree", "Page", "Freelist", "wrong #", "row ")) for text in complaints)


def _mend(connection: sqlite3.Connection) -> None:
    missing = _missing(connection)
    for sql in missing:
        connection.execute(sql)
    if missing:
        connection.execute(
            "UPDATE dead_letter_totals SET letters = (SELECT count(*) FROM dead_letters), "
            "size_bytes = (SELECT coalesce(sum(size_bytes), 0) FROM dead_letters)"
        )


def _missing(connection: sqlite3.Connection) -> list[str]:
    """Statements that create the indexes and triggers of Sidecar which are missing."""
    there = {(kind, name): (table, sql) for kind, name, table, sql in _objects(connection)}
    missing = []
    for kind, name, table, sql in _expected_objects():
        if there.get((kind, name), (table, sql)) != (table, sql) or (kind == "table" and (kind, name) not in there):
            raise DamagedStateError("its tables are not those of a state file")
        if (kind, name) not in there:
            missing.append(sql)
    ours = {(kind, name) for kind, name, *_ in _expected_objects()}
    if any(
        "dead_letter_totals" in str(sql) for key, (_, sql) in there.items() if key[0] == "trigger" and key not in ours
    ):
        raise DamagedStateError("a trigger of its tables has another name")
    return missing


def _objects(connection: sqlite3.Connection) -> list[DatabaseRow]:
    return sorted(
        connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    )


def _expected_objects() -> list[DatabaseRow]:
    with sqlite3.connect(":memory:") as connection:
        connection.executescript(SCHEMA)
        objects = _objects(connection)
    connection.close()
    return objects


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would end their transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
