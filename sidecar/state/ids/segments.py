"""Rows of message ids, appended small and merged in tiers; nothing but SQL on one table.

Like a log-structured merge tree: 65 segments of one tier become one of the next, so that each id is rewritten at most
three times, however large a generation grows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from sidecar.core.records import TopicPartition
from sidecar.state.database import checksum
from sidecar.state.interface import Damage, IdSegment
from sidecar.state.schema import DatabaseRow

SEGMENTS_MAX = 64
"""Number of segments of one tier before they are merged."""
MERGED_BYTES_MIN = 256 << 10
"""A segment this large is not merged: it is one row, and copying it again gains nothing."""
PAGE_MAX, PAGE_BYTES_MAX = 128, 8 << 20
"""Segments read at once, and their bytes unless a single one has more: earlier versions made some of 10 MiB."""
_FINAL = 99
"""Tier of segments that are not merged again, see `MERGED_BYTES_MIN`."""


def append(connection: sqlite3.Connection, segment: IdSegment, on_damage: Callable[[Damage], None]) -> None:
    """Add a segment, and merge its tier when that is full."""
    level = _level(0, segment.ids)
    _insert(connection, None, segment, level)
    while level != _FINAL and (rows := _tier(connection, segment, level)) and len(rows) > SEGMENTS_MAX:
        ids = b"".join(_sound(segment.tp, segment.generation, level, data, crc, on_damage) for _, data, crc in rows)
        connection.executemany("DELETE FROM ids WHERE seq = ?", [(seq,) for seq, _, _ in rows])
        level = _level(level + 1, ids)
        _insert(connection, rows[0][0], segment._replace(ids=ids), level)


def load(
    connection: sqlite3.Connection, tp: TopicPartition, on_damage: Callable[[Damage], None]
) -> list[tuple[int, bytes]]:
    """The sound segments of a partition with generations rising; the others are deleted."""
    segments: list[tuple[int, bytes]] = []
    rows = connection.execute(
        "SELECT seq, generation, level, data, crc FROM ids WHERE topic = ? AND partition = ? AND broker = ? "
        "ORDER BY generation, seq",
        tp,
    ).fetchall()
    for seq, generation, level, data, crc in rows:
        if ids := _sound(tp, generation, level, data, crc, on_damage):
            segments.append((generation, ids))
        else:
            connection.execute("DELETE FROM ids WHERE seq = ?", (seq,))
    return segments


def page(
    connection: sqlite3.Connection, tp: TopicPartition, on_damage: Callable[[Damage], None]
) -> tuple[int, list[tuple[int]], list[bytes]] | None:
    """A partition's lowest generation, with rows and ids of its first segments; None if there are none."""
    rows: list[DatabaseRow] = []
    size = 0
    cursor = connection.execute(
        "SELECT seq, generation, level, data, crc FROM ids WHERE topic = ? AND partition = ? AND broker = ? "
        "ORDER BY generation, level, seq LIMIT ?",
        (*tp, PAGE_MAX),
    )
    for row in cursor:
        size += len(row[3])
        if rows and (row[1] != rows[0][1] or size > PAGE_BYTES_MAX):
            break
        rows.append(row)
    cursor.close()
    if not rows:
        return None
    generation = rows[0][1]
    ids = [_sound(tp, generation, level, data, crc, on_damage) for _, _, level, data, crc in rows]
    return generation, [(row[0],) for row in rows], ids


def remove(connection: sqlite3.Connection, rows: list[tuple[int]]) -> None:
    """Delete the rows of a page."""
    connection.executemany("DELETE FROM ids WHERE seq = ?", rows)


def count(connection: sqlite3.Connection, tp: TopicPartition) -> int:
    """Number of ids in rows."""
    (size,) = connection.execute(
        "SELECT coalesce(sum(length(data)), 0) FROM ids WHERE topic = ? AND partition = ? AND broker = ?", tp
    ).fetchone()
    return int(size) // 8


def _level(level: int, ids: bytes) -> int:
    return _FINAL if len(ids) >= MERGED_BYTES_MIN else level


def _tier(connection: sqlite3.Connection, segment: IdSegment, level: int) -> list[tuple[int, bytes, int]]:
    key = (*segment.tp, segment.generation, level)
    where = "FROM ids WHERE topic = ? AND partition = ? AND broker = ? AND generation = ? AND level = ?"
    (count,) = connection.execute(f"SELECT count(*) {where}", key).fetchone()
    if count <= SEGMENTS_MAX:
        return []
    return connection.execute(f"SELECT seq, data, crc {where} ORDER BY seq", key).fetchall()


def _insert(connection: sqlite3.Connection, seq: int | None, segment: IdSegment, level: int) -> None:
    tp, generation, ids = segment
    crc = checksum(*tp, generation, level, ids)
    connection.execute("INSERT INTO ids VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (seq, *tp, generation, level, ids, crc))


def _sound(
    tp: TopicPartition, generation: int, level: int, data: bytes, crc: int, on_damage: Callable[[Damage], None]
) -> bytes:
    if crc == checksum(*tp, generation, level, data):
        return data
    on_damage(Damage("message ids", f"{tp.topic}:{tp.queue} generation {generation}", "checksum", "dropped"))
    return b""
