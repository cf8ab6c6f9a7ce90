"""Removes batches that every consumer has read, by age and size, and never anything else. Lands nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.storage import LineLog, Storage
from sidecar.storage.base import first_of
from sidecar.zone.acks import acknowledged
from sidecar.zone.data import find_entry
from sidecar.zone.entry import DamagedLineError, Entry, parse
from sidecar.zone.floor import Floor, read_floor, write_floor
from sidecar.zone.layout import manifest_folder

FILES_MAX: Final = 1_000
"""Limit of files removed at once: a delivery waits for the removal."""
LINES_MIN: Final = 4_096
"""Number of the latest lines that are kept, whatever their age: it bounds the removals after a clock's jump ahead."""


_NONE: Final = Floor()


@dataclass(frozen=True, slots=True)
class Retention:
    """Bounds of retention.

    Args:
        age_ms: Time for which batches are kept after every consumer has read them, and for which a repeated batch is
            recognized.
        bytes_max: Size of one writer's data files. Above it, batches that every consumer has read are removed earlier.
    """

    age_ms: int
    bytes_max: int


def collect(
    zone: Storage, writer: str, head: Entry, retention: Retention, now_ms: int, known: Floor = _NONE
) -> tuple[Floor, bool]:
    """Remove data files and manifest segments of a writer that every consumer has read; its lock must be held.

    Without any consumer nothing is removed. The floor is durable before a file is removed, so a crash leaves at most
    files that the next start removes. Segments outlive their data until all of it is older than `retention.age_ms`,
    because repeated batches are recognized by them.

    Args:
        now_ms: Milliseconds since the epoch.
        known: A floor that was written: an object store may later store an older one, from a request that failed.

    Returns:
        The floor, and whether there may be more to remove.

    Raises:
        OSError: A removal failed; files were removed only as a whole.
        ZoneError: The floor is damaged.
    """
    found, log = read_floor(zone, writer), zone.lines(manifest_folder(writer))
    floor = max(found, known)
    limit = read_by_all(acknowledged(zone), writer)
    landed = head.before + head.bytes
    taken: list[Entry] = []
    for entry in _entries(zone, log, writer, floor.seq + 1, limit):
        over = landed - entry.before > retention.bytes_max
        if len(taken) == FILES_MAX or not (over or now_ms - entry.at_ms > retention.age_ms):
            break
        taken.append(entry)
    if taken:
        floor = floor._replace(seq=taken[-1].seq, before=taken[-1].before + taken[-1].bytes)
    first = _first_kept(zone, log, writer, floor, head.seq, now_ms - retention.age_ms)
    gone = range(floor.first, first, log.segment_lines)
    floor = floor._replace(first=first)
    if floor != found:
        write_floor(zone, writer, floor)
    zone.remove(entry.file for entry in taken)
    log.remove(gone)
    return floor, len(taken) == FILES_MAX


def read_by_all(acks: Mapping[str, Mapping[str, int]], writer: str) -> int:
    """The last sequence number of a writer that every consumer has read; -1 without one, and without consumers."""
    return min((read.get(writer, -1) for read in acks.values()), default=-1)


def who_is_behind(acks: Mapping[str, Mapping[str, int]], writer: str, last: int) -> str:
    """Names the consumers for which a full zone waits, for an operator."""
    if not acks:
        return "no consumer has acknowledged anything yet, so nothing may be removed"
    name = min(acks, key=lambda consumer: acks[consumer].get(writer, -1))
    read = acks[name].get(writer, -1) + 1
    return f"consumer {name} has read {read:,} of {last + 1:,} batches of writer {writer}"


def _entries(zone: Storage, log: LineLog, writer: str, seq: int, last: int) -> Iterator[Entry]:
    """Entries from one number to another; ends early at an unreadable line."""
    lines: list[bytes] = []
    while seq <= last:
        if not lines or seq == first_of(log, seq):
            data = log.read(seq) or b""
            lines = data.split(b"\n")[:-1]
        index = seq - first_of(log, seq)
        entry = _entry(zone, writer, seq, lines[index]) if index < len(lines) else None
        if entry is None:
            return
        yield entry
        seq += 1


def _entry(zone: Storage, writer: str, seq: int, line: bytes) -> Entry | None:
    try:
        entry = parse(line)
    except DamagedLineError:
        return find_entry(zone, writer, seq)
    return entry if entry.seq == seq else find_entry(zone, writer, seq)


def _first_kept(zone: Storage, log: LineLog, writer: str, floor: Floor, last: int, before_ms: int) -> int:
    first, size = floor.first, log.segment_lines
    end = min(floor.seq + 1, first_of(log, last) - max(size, LINES_MIN), first + FILES_MAX * size)
    while first + size <= end:
        newest = next(_entries(zone, log, writer, first + size - 1, first + size - 1), None)
        if newest is not None and newest.at_ms >= before_ms:
            break
        first += size
    return first
