"""A landing zone in tests: batches to land, what a reader gets, and calls to the disk that fail or end the process."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyroaring import BitMap64

from sidecar import files
from sidecar.core.messages.tags import TagFilter
from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Fragment, Header, TopicPartition
from sidecar.storage import Root, storage_of
from sidecar.zone import Entry, Tail, read
from sidecar.zone.entry import PartitionId
from sidecar.zone.layout import manifest_folder
from sidecar.zone.retention import Retention
from sidecar.zone.rows import SEPARATOR, RowFramer, pack
from sidecar.zone.writer import Format, ZoneWriter
from tests.support.messages import ListColumns, tags_of

TP = TopicPartition("orders", 0)
KEEP = Retention(age_ms=86_400_000, bytes_max=1 << 40)
TAGS = ("b", None, "a", "b", "c", "a")
CHANGES = ("open", "pwrite", "fsync", "rename", "link", "ftruncate", "unlink", "mkdir", "rmdir")
"""What changes a disk; to open a file for reading does not."""


def framer() -> RowFramer:
    """Rows of messages of tests; each tag is a group."""
    return RowFramer(ListColumns(), tags_of, TagFilter().groups)


class Sent(NamedTuple):
    """A message as it was produced and as it has to arrive."""

    offset: int
    key: bytes | None
    value: bytes | None
    tag: str | None = "paid"
    headers: Sequence[Header] = (("tag", b"paid"), ("trace", None))
    timestamp_ms: int | None = 1_700_000_000_123


def message(offset: int) -> Sent:
    """A message of some offset, always the same: null and empty keys and values, bytes, line feeds, NUL."""
    values = (None, b"", b"\n\x00\xff", b"value %d" % offset, b"x" * 300)
    return Sent(offset, (None, b"", b"k%d" % offset)[offset % 3], values[offset % 5])


def part(
    messages: Sequence[Sent],
    group: str = "paid",
    *,
    scope: str = "s",
    tp: TopicPartition = TP,
    groups: Sequence[str] | None = None,
) -> Part:
    """A part of one fragment; its rows have the part's group, or groups of their own."""
    rows = [
        pack(m.timestamp_ms, m.key, m.value, (m.tag.encode(),) if m.tag is not None else (), m.headers, own.encode())
        for m, own in zip(messages, groups or [""] * len(messages), strict=True)
    ]
    offsets = [m.offset for m in messages]
    data = SEPARATOR.join(rows)
    return Part(
        tp,
        scope,
        group,
        offsets[0],
        offsets[-1],
        [Fragment(array("q", offsets), data)],
        len(rows),
        len(data) + 1,
        Intent(1, offsets[0], offsets[-1]),
    )


def batch(first: int, count: int = 3, group: str = "paid", *, scope: str = "s", tp: TopicPartition = TP) -> Batch:
    """A batch of one part with consecutive offsets."""
    return Batch(1, group, [part([message(i) for i in range(first, first + count)], group, scope=scope, tp=tp)])


def joined(first: int = 0, tags: tuple[str | None, ...] = TAGS, *, group_of: str = "group-") -> Batch:
    """A batch as a sink gets it that joins groups: a part of the one group, whose rows have groups of their own."""
    rows = [Sent(first + i, None, b"v", tag) for i, tag in enumerate(tags)]
    groups = ["" if tag is None else f"{group_of}{tag}" for tag in tags]
    return Batch(1, "", [part(rows, "", groups=groups)])


def writer(root: Root, name: str = "a", **options: Any) -> ZoneWriter:
    """A writer that removes nothing, unless the options say otherwise."""
    return ZoneWriter(root, name, **{"retention": KEEP, **options})


def segment_path(root: Path, name: str, seq: int) -> Path:
    """The file with a line of a writer."""
    return root / storage_of(root).lines(manifest_folder(name)).name(seq)


def entries(root: Root, report: Callable[[str], None] = lambda text: None) -> list[Entry]:
    """All entries of a zone, writer after writer."""
    tail, found = Tail(root, report=report), list[Entry]()
    while polled := tail.poll(5):
        found += [entry for some in polled.values() for entry in some]
    return sorted(found, key=lambda entry: (entry.writer, entry.seq))


def arrived(root: Root, *, dedup: bool = True) -> list[Sent]:
    """What a reader gets, in the order of entries; with `dedup` it drops what an earlier entry has."""
    return list(map(as_sent, rows(root, dedup=dedup)))


def rows(root: Root, *, dedup: bool = True) -> Iterator[dict[str, Any]]:
    """The same with all columns."""
    owned: dict[PartitionId, BitMap64] = {}
    for entry in entries(root):
        drop = {cover.place: cover.offsets() & owned.get(cover.place, BitMap64()) for cover in entry.covers}
        for cover in entry.covers:
            owned[cover.place] = owned.get(cover.place, BitMap64()) | cover.offsets()
        for table in read(root, entry, drop=drop if dedup else None):
            yield from table.to_pylist()


def as_sent(row: dict[str, Any]) -> Sent:
    """A row of the zone's columns as it was produced."""
    assert row["headers"] != [], "no headers are null"
    headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
    at_ms = row["timestamp"] and round(row["timestamp"].timestamp() * 1000)
    return Sent(row["offset"], row["key"], row["value"], row["tag"], headers, at_ms)


class ProcessDied(BaseException):
    """The process ended here, as far as the disk can tell."""


class Disk:
    """Stands for `os` where files change: the n-th change fails or ends the process; a write is then half done.

    Args:
        at: Which change, from 1 on; 0 is none.
        death: Every later call fails too, as there is nobody any more to make it. Else the disk is full just once,
            or, with `lasting`, until `mended`.
        leave: Ends the process in truth, in place of an exception.
    """

    def __init__(
        self, at: int = 0, *, death: bool = False, lasting: bool = False, leave: Callable[[], None] | None = None
    ) -> None:
        self.at, self.death, self.lasting, self.leave = at, death, lasting, leave
        self.calls: list[str] = []
        self.opened: set[int] = set()
        self.mended = self.died = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return real if name not in CHANGES else lambda *args, **options: self._call(name, real, args, options)

    def close(self, fd: int) -> None:
        """As `os.close`, but that a dead process closes nothing by itself."""
        if not self.died:
            self.opened.discard(fd)
            os.close(fd)

    def _call(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        changes = name != "open" or args[1] & os.O_CREAT
        if changes:
            self.calls.append(name)
        count = len(self.calls)
        struck = count == self.at or (0 < self.at < count and (self.death or self.lasting))
        if changes and struck and not self.mended:
            if name == "pwrite" and count == self.at:
                fd, data, at = args
                real(fd, data[: len(data) // 2], at)
            if self.leave:
                self.leave()
            self.died = self.death
            raise ProcessDied if self.death else OSError(errno.ENOSPC, "No space left on device")
        result = real(*args, **options)
        if name == "open":
            self.opened.add(result)
        return result


@contextmanager
def disk(trouble: Disk) -> Iterator[Disk]:
    """Put a disk in the place of the real one; what a dead process held open is closed at the end."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (files, shutil):
            patch.setattr(module, "os", trouble)
        yield trouble
    if trouble.death:
        for fd in trouble.opened:
            os.close(fd)


def main(root: Path, name: str, batches: int, die_at: int, form: Format) -> None:
    """Land batches as a process of its own, that ends itself before its n-th change to the disk (0: never)."""
    with disk(Disk(die_at, leave=lambda: os._exit(9))):
        zone = writer(root, name, format=form)
        for first in range(0, 3 * batches, 3):
            zone.land(batch(first))
            sys.stdout.write(f"{first}\n")
            sys.stdout.flush()
        zone.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "arrow")
