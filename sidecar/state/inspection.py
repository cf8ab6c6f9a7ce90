"""The content of a state folder and whether it is sound: read without a lock and without a change, daemon or not.

Raises `NoStateError` if there is no state file, `StateError` if it cannot be read or another version wrote it.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pyroaring import BitMap64

from sidecar.core.json_text import loads
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.errors import NoStateError, StateError
from sidecar.owner import Owner
from sidecar.state import schema
from sidecar.state.database import BUSY_TIMEOUT_MS, DATABASE_FILE, checksum, text_of
from sidecar.state.folder import IDS_FOLDER, files_set_aside, holder_of, is_read_only, state_error
from sidecar.state.ids.file import DamagedIdsError, keys_in, open_run
from sidecar.state.ids.places import folder_name, found, generation_of
from sidecar.state.ids.store import begun_of, listed_of
from sidecar.state.letters import SELECT
from sidecar.state.offset_map import state_of
from sidecar.state.schema import DamagedStateError

_TP = "topic, partition, broker"
_PLACE = "topic || ':' || CASE broker WHEN '' THEN '' ELSE broker || ':' END || partition"
ROWS = {
    "meta": "SELECT name, name, value, crc FROM meta",
    "partition": f"SELECT {_PLACE}, {_TP}, topic_id, incarnation, watermark, floor, younger, older, "
    "crc FROM partitions",
    "progress": f"SELECT {_PLACE}, {_TP}, text, crc FROM progress",
    "message ids": f"SELECT {_PLACE} || ' generation ' || generation, {_TP}, generation, level, data, crc FROM ids",
    "dead letter": SELECT.replace("SELECT id", "SELECT 'id ' || id"),
}
"""By kind: where a row is, the columns under its checksum, and the checksum."""


class HeldInFolder(NamedTuple):
    """The folder's content for a partition, or for the delayed messages of one.

    Args:
        watermark: The offset of the last snapshot below which everything is settled; None if there is no snapshot.
        remembered: Offsets in the bitmaps of the snapshot.
        ids: Message ids that count as duplicates after a restart.
        id_bytes: Their size, in the state file and in files of their own.
        generations: Generations of these ids; a window has two.
        since_ms: When the first of these ids was kept, in milliseconds since 1970; None if that is unknown.
        committed: The offset of the last commit that is remembered here; None if there is none.
        batches: Batches that were fixed in this commit and are not settled.
    """

    tp: TopicPartition
    watermark: int | None = None
    remembered: int = 0
    bitmap_bytes: int = 0
    ids: int = 0
    id_bytes: int = 0
    generations: int = 0
    since_ms: int | None = None
    committed: int | None = None
    batches: int = 0

    def to_json(self) -> dict[str, Any]:
        """Has the fields of the place first."""
        fields = self._asdict()
        return {**fields.pop("tp").fields(), **fields}


class Content(NamedTuple):
    """The content of a state folder."""

    folder: Path
    holder: str
    """The process that uses the folder; empty if none does."""
    schema: int
    file_bytes: int
    cluster_id: str
    group_id: str
    partitions: list[HeldInFolder]
    dead_letters: int
    dead_letter_bytes: int
    set_aside: list[str]

    def to_json(self) -> dict[str, Any]:
        """Has the place of each partition among the partition's own fields."""
        return {
            **self._asdict(),
            "folder": str(self.folder),
            "partitions": [held.to_json() for held in self.partitions],
        }


class Fault(NamedTuple):
    """Stored data that is not as it was written."""

    what: str
    where: str
    reason: str


class Inspection:
    """Reads the state file of a folder, and the files of message ids beside it, as they are at one moment."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / DATABASE_FILE
        if not self._path.exists():
            raise NoStateError(
                f"there is no state: {self._path} does not exist",
                hint="check state.dir, and that this is the host of the daemon, which creates the file when it starts",
            )

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection that writes nothing, and reads one moment."""
        is_fixed = is_read_only(self._folder)
        # SQLite creates files beside one that is not said to be fixed. What a daemon that was killed left must be read.
        is_whole = is_fixed and not self._path.with_name(f"{DATABASE_FILE}-wal").exists()
        uri = f"file:{quote(str(self._path))}?mode=ro{'&immutable=1' if is_whole else ''}"
        try:
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
                connection.text_factory = text_of
                connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
                connection.execute("BEGIN")
                yield connection
        except sqlite3.Error as error:
            cure = "run this command as the daemon's user; `sidecar state verify` tells whether the file is damaged"
            if is_fixed:
                cure = "copy the folder to a disk that can be written, and set state.dir to the copy for this command"
            raise StateError(f"cannot read {self._path}: {error}", hint=cure) from error
        except OSError as error:
            raise state_error("read", self._folder, error) from error

    def progress(self) -> dict[TopicPartition, str]:
        """The sound rows of progress, by partition."""
        with self._opened() as connection:
            rows = connection.execute(f"SELECT {_TP}, text, crc FROM progress").fetchall()
        return {TopicPartition(*place): text for *place, text, crc in rows if crc == checksum(*place, text)}

    def owner(self) -> Owner | None:
        """The owner of the folder; None if it was never used."""
        with self._opened() as connection:
            row = connection.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
        if row is None:
            return None
        cluster_id, group_id = loads(row[0])
        return Owner(group_id, cluster_id)

    # Content

    def content(self) -> Content:
        """All that the folder holds, by partition and in total."""
        with self._opened() as connection:
            try:
                version = schema.written_version(connection)
            except DamagedStateError as error:
                raise StateError(f"cannot use {self._path}: {error}", hint="check state.dir") from error
            (identity,) = connection.execute("SELECT max(value) FROM meta WHERE name = 'identity'").fetchone()
            cluster_id, group_id = loads(identity or '["", ""]')
            letters, letter_bytes = connection.execute("SELECT letters, size_bytes FROM dead_letter_totals").fetchone()
            return Content(
                folder=self._folder,
                holder=holder_of(self._folder),
                schema=version,
                file_bytes=self._path.stat().st_size,
                cluster_id=cluster_id,
                group_id=group_id,
                partitions=self._partitions(connection),
                dead_letters=letters,
                dead_letter_bytes=letter_bytes,
                set_aside=[file.name for file in files_set_aside(self._path)],
            )

    def _partitions(self, connection: sqlite3.Connection) -> list[HeldInFolder]:
        held: defaultdict[TopicPartition, dict[str, Any]] = defaultdict(dict)
        for *place, watermark, younger, older in connection.execute(
            f"SELECT {_TP}, watermark, younger, older FROM partitions"
        ):
            held[TopicPartition(*place)] = {
                "watermark": watermark,
                "remembered": sum(len(BitMap64.deserialize(bitmap)) for bitmap in (younger, older)),
                "bitmap_bytes": len(younger) + len(older),
            }
        for *place, text in connection.execute(f"SELECT {_TP}, text FROM progress WHERE topic != ''"):
            if (state := _state_within(text)) is not None:
                batches = len(state.shared) + sum(len(lane.intents) for lane in state.lanes.values())
                held[TopicPartition(*place)] |= {"committed": state.watermark, "batches": batches}
        generations: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        size: defaultdict[TopicPartition, int] = defaultdict(int)
        for *place, generation, bytes_ in connection.execute(
            f"SELECT {_TP}, generation, sum(length(data)) FROM ids GROUP BY {_TP}, generation"
        ):
            generations[TopicPartition(*place)].add(generation)
            size[TopicPartition(*place)] += bytes_
        ids = {tp: bytes_ // 8 for tp, bytes_ in size.items()}
        for tp, path in found(self._folder / IDS_FOLDER):
            generations[tp].add(generation_of(path.name))
            ids[tp] = ids.get(tp, 0) + keys_in(path)
            size[tp] += path.stat().st_size
        for tp in generations:
            since = min(begun_of(connection, tp).values(), default=None)
            held[tp] |= {
                "ids": ids[tp], "id_bytes": size[tp], "generations": len(generations[tp]), "since_ms": since,
            }  # fmt: skip
        return [HeldInFolder(tp, **held[tp]) for tp in sorted(held)]

    # Soundness

    def faults(self) -> Iterator[Fault]:
        """Damaged and missing data, yielded as it is found."""
        with self._opened() as connection:
            try:
                schema.check_fully(connection)
            except (DamagedStateError, UnicodeDecodeError, sqlite3.DatabaseError) as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                yield Fault("database", str(self._path), str(error))
                return
            for what, sql in ROWS.items():
                for where, *row, crc in connection.execute(sql):
                    if crc != checksum(*row):
                        yield Fault(what, where, "checksum")
            yield from _bitmaps(connection)
            yield from _totals(connection)
        yield from self._id_files()

    def _id_files(self) -> Iterator[Fault]:
        names = defaultdict[TopicPartition, set[str]](set)
        for tp, path in found(self._folder / IDS_FOLDER):
            try:
                open_run(path)
            except FileNotFoundError:  # merged meanwhile
                continue
            except (DamagedIdsError, ValueError, OSError) as error:
                yield Fault("message ids", str(path), str(error))
            names[tp].add(path.name)
        with self._opened() as connection:
            places = connection.execute("SELECT topic, partition, broker FROM partitions").fetchall()
            for tp in {TopicPartition(*place) for place in places} | names.keys():
                for name in sorted(listed_of(connection, tp).keys() - names[tp]):
                    path = self._folder / IDS_FOLDER / folder_name(tp) / name
                    if not path.exists():
                        yield Fault("message ids", str(path), "it is missing: its ids are forgotten")


def _bitmaps(connection: sqlite3.Connection) -> Iterator[Fault]:
    for where, *bitmaps in connection.execute(f"SELECT {_PLACE}, younger, older FROM partitions"):
        try:
            for bitmap in bitmaps:
                BitMap64.deserialize(bitmap)
        except ValueError as error:
            yield Fault("partition", where, f"no bitmap: {error}")


def _totals(connection: sqlite3.Connection) -> Iterator[Fault]:
    told = connection.execute("SELECT letters, size_bytes FROM dead_letter_totals").fetchall()
    counted = connection.execute("SELECT count(*), coalesce(sum(size_bytes), 0) FROM dead_letters").fetchall()
    if told != counted:
        yield Fault("dead letters", "totals", f"{told} are told, and {counted} are there")


def _state_within(text: str) -> PartitionState | None:
    """The metadata of a commit in a row of progress, without other data that its source keeps beside it."""
    try:
        parts = loads(text)
    except ValueError:
        return None
    states = (state_of(part) for part in parts if isinstance(part, str)) if isinstance(parts, list) else ()
    return next((state for state in states if state is not None), None)
