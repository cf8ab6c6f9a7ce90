"""Lands batches: a data file, then the manifest line that makes it visible. Knows no settings and no answers."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias
from zlib import crc32

import pyarrow as pa
from pyroaring import BitMap64

from sidecar.core.parts import Batch, Part
from sidecar.errors import StateError, ZoneError
from sidecar.storage import Root, Storage, storage_of
from sidecar.storage.base import first_of
from sidecar.zone.acks import acknowledged
from sidecar.zone.columns import record_batches
from sidecar.zone.data import encode
from sidecar.zone.entry import Cover, Entry, PartitionId, PartRows, digest_of, line_of
from sidecar.zone.floor import read_floor
from sidecar.zone.index import index_of
from sidecar.zone.layout import data_file, manifest_folder
from sidecar.zone.recovery import Recovery
from sidecar.zone.retention import Retention, collect, who_is_behind
from sidecar.zone.schema import text_of_name

Format: TypeAlias = Literal["arrow", "parquet"]
NAMES_MAX: Final = 65_536
"""Limit of landed parts known by name; readers' `dedup` removes a part that is repeated later."""
COLLECT_EVERY_S: Final = 30.0


class ZoneFullError(Exception):
    """Nothing may be landed before a consumer has read more; the text names it."""


class _PartNames:
    """Landed parts that are known by name; above the limit the oldest are dropped."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._names: dict[bytes, None] = {}
        for entry in entries:
            self.know(entry)

    def know(self, entry: Entry) -> None:
        self._names.update((digest_of(entry.group, part.name), None) for part in entry.parts)
        while len(self._names) > NAMES_MAX:
            del self._names[next(iter(self._names))]

    def fresh(self, parts: Sequence[Part]) -> list[Part]:
        """The parts that are not known, each once."""
        by_name = {digest_of(text_of_name(part.group), part.name): part for part in parts}
        return [part for digest, part in by_name.items() if digest not in self._names]


class _Room:
    """The space for a writer's files under retention, up to its newest entry."""

    def __init__(self, zone: Storage, writer: str, retention: Retention, head: Entry | None) -> None:
        self.head = head
        self._floor = read_floor(zone, writer)
        self._zone = zone
        self._writer = writer
        self._retention = retention
        self._collect_at_s = 0.0

    @property
    def landed(self) -> int:
        """Bytes of all files so far, removed ones included."""
        return self.head.before + self.head.bytes if self.head else self._floor.before

    def make(self, clock_ms: Callable[[], int]) -> None:
        """Remove files as allowed; raise `ZoneFullError` if too much is left."""
        if self.head is None:
            return
        limit = self._retention.bytes_max
        if time.monotonic() >= self._collect_at_s or self.landed - self._floor.before > limit:
            self._floor, more = collect(self._zone, self._writer, self.head, self._retention, clock_ms(), self._floor)
            self._collect_at_s = time.monotonic() + (0 if more else COLLECT_EVERY_S)
        if self.landed - self._floor.before > limit:
            behind = who_is_behind(acknowledged(self._zone), self._writer, self.head.seq)
            raise ZoneFullError(f"the landing zone is full ({limit:,} bytes): {behind}")


class ZoneWriter:
    """The one writer of a part of a zone; several sidecars have several parts.

    The steps of a batch, each durable before the next: the data file (in a folder: a hidden name, its own name, its
    folder), the manifest line, and in a folder the line feed that lets readers see it. A failure in between leaves
    nothing visible to readers, and is undone at once, or else before the next batch. In an object store, a line whose
    put failed may be visible, or become so: it is stored before anything else.

    If the manifest is moved or removed meanwhile, nothing is landed, and nothing acknowledged, until it is back.

    Args:
        root: The zone; created if it is missing.
        writer: Name of the writer: always the same for one state folder.
        report: Called once for each repair, with a text.
        clock_ms: Milliseconds since the epoch. Only retention's age depends on it, so a jump moves no row.

    Raises:
        ConfigError: The object store cannot keep two writers apart.
        StateError: Another process writes as this writer.
        ZoneError: The zone is damaged.
        OSError: It cannot be written.
    """

    def __init__(
        self,
        root: Root,
        writer: str,
        *,
        format: Format = "arrow",  # noqa: A002
        retention: Retention,
        report: Callable[[str], None] = lambda text: None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.writer = writer
        self._zone = storage_of(root)
        self._format: Format = format
        self._clock_ms = clock_ms
        self._guard = threading.Lock()
        self._unfinished: Entry | None = None
        """A landing that failed and is not settled."""
        self._log = self._zone.lines(manifest_folder(writer))
        if not self._log.lock():
            raise StateError(
                f"landing zone: another process writes to {self._zone} as {self.writer}",
                hint="Stop that process, or give each sidecar its own state.dir, which has the writer's name",
            )
        self._open = True
        try:
            recovery = Recovery(self._zone, self._log, writer, report)
            recovery.run()
            self._lines, self._seq = recovery.lines, recovery.seq
            self._names = _PartNames(recovery.names)
            self._room = _Room(self._zone, writer, retention, recovery.head)
        except BaseException:
            self._log.unlock()
            raise

    def land(self, batch: Batch) -> Entry | None:
        """Land the parts of a batch that have not landed; return None if all have.

        Raises:
            ZoneFullError: Only unread batches are left to remove.
            ZoneError: The zone is damaged, or its manifest is not where readers look for it.
            OSError: It failed, and nothing is visible; retriable. A closed writer fails in the same way.
        """
        with self._guard:
            if not self._open:
                raise OSError(0, "the landing zone is closed")
            self._check_in_place()  # also for known parts: the manifest may be gone since
            self._settle()
            fresh = self._names.fresh(batch.parts)
            if not any(part.count for part in fresh):
                return None
            self._room.make(self._clock_ms)
            return self._land(Batch(batch.id, batch.group, fresh))

    def close(self) -> None:
        """Release the zone once a delivery under way has ended. Harmless when repeated."""
        with self._guard:
            if self._open:
                self._open = False
                with contextlib.suppress(OSError, ZoneError):
                    self._settle()
                self._lines.close()
                self._log.unlock()

    def _land(self, batch: Batch) -> Entry:
        tables = record_batches(batch.parts, writer=self.writer, sequence=self._seq, batch_id=batch.key)
        entry = self._entry(batch, tables)
        data = encode(tables, entry)
        entry = replace(entry, bytes=len(data), crc=crc32(data))
        self._unfinished = entry
        try:
            self._zone.put(entry.file, memoryview(data))
            self._append(entry)
        except OSError:
            with contextlib.suppress(OSError, ZoneError):  # if this fails, it is repeated before the next batch
                self._settle()
            raise
        self._landed(entry)
        self._check_in_place()
        return entry

    def _landed(self, entry: Entry) -> None:
        self._unfinished = None
        self._room.head, self._seq = entry, entry.seq + 1
        self._names.know(entry)

    def _check_in_place(self) -> None:
        if not self._lines.in_place():
            raise ZoneError(
                f"landing zone: the manifest of writer {self.writer} in {self._zone} was moved, removed or replaced "
                "while it was written",
                hint="Move it back, and intake resumes; if it is lost for good, restart this process",
            )

    def _entry(self, batch: Batch, tables: Sequence[pa.RecordBatch]) -> Entry:
        group, now_ms = text_of_name(batch.group), self._clock_ms()
        parts, covers = _parts_and_covers(batch.parts)
        file = self._zone.new_name(data_file(self.writer, self._seq, group, batch.count, now_ms, self._format))
        index = index_of(tables)
        return Entry(
            self.writer, self._seq, file, group, batch.count, 0, 0, self._room.landed, now_ms, parts, covers, index
        )

    def _append(self, entry: Entry) -> None:
        self._check_in_place()
        if entry.seq == first_of(self._log, entry.seq) and self._lines.end:
            lines = self._log.open(entry.seq)
            self._lines.close()
            self._lines = lines
        self._lines.append(line_of(entry))

    def _settle(self) -> None:
        """Undo a failed landing, the line first, as no line may exist without its data; or else complete it."""
        if self._unfinished is not None:
            if self._lines.settle():
                self._landed(self._unfinished)
            else:
                self._zone.remove([self._unfinished.file])
                self._unfinished = None


def _parts_and_covers(parts: Iterable[Part]) -> tuple[tuple[PartRows, ...], tuple[Cover, ...]]:
    bitmaps: dict[PartitionId, BitMap64] = {}
    named: list[PartRows] = []
    for part in parts:
        origin = part.tp.topic, part.home or part.scope, part.tp.partition
        bitmap = bitmaps.setdefault(origin, BitMap64())
        for fragment in part.fragments:
            bitmap.update(array("Q", fragment.offsets))  # the daemon's arrays are of type q, which pyroaring refuses
        named.append(PartRows(part.name, part.count, list(bitmaps).index(origin)))
    return tuple(named), tuple(Cover(*origin, _serialized(bitmap)) for origin, bitmap in bitmaps.items())


def _serialized(bitmap: BitMap64) -> bytes:
    bitmap.run_optimize()
    return bytes(bitmap.serialize())
