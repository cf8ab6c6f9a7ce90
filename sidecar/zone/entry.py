"""Lines of a manifest: the description of a landed batch, its form and its check. Accesses no file."""

from __future__ import annotations

import base64
import builtins
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import orjson
from pyroaring import BitMap64

from sidecar.core.json_text import typed
from sidecar.core.snapshots import bitmap_of

VERSION = 1
PartitionId: TypeAlias = tuple[str, str, int]
"""Topic, scope and partition: within it an offset identifies one message forever."""


class Cover(NamedTuple):
    """A batch's offsets of one partition.

    The scope is part of the identity: a recreated topic, or an operator's reset, repeats offsets in a new scope, and
    those rows are no duplicates.
    """

    topic: str
    scope: str
    partition: int
    bitmap: bytes
    """A 64-bit Roaring bitmap in the portable form."""

    @property
    def place(self) -> PartitionId:
        """The partition within which an offset identifies one message."""
        return self.topic, self.scope, self.partition

    def offsets(self) -> BitMap64:
        """The offsets."""
        return bitmap_of(self.bitmap)


class PartRows(NamedTuple):
    """A part's share of a batch: the next `rows` rows, all of `Entry.covers[cover]`."""

    name: str
    rows: int
    cover: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A landed batch, with the content of its manifest line. It can be pickled, and has all that `read` needs."""

    writer: str
    seq: int
    """Sequence number: 0, 1, 2, … for each writer, without a gap."""
    file: str
    """Path below the zone's root, with slashes."""
    group: str
    """The group of its parts; each row has a group of its own."""
    rows: int
    bytes: int
    """Size of the file in bytes."""
    crc: int
    """CRC-32 of the file."""
    before: int
    """Bytes that this writer landed before this entry."""
    at_ms: int
    """Time of landing, milliseconds since the epoch by the writer's clock; nothing is ordered by it."""
    parts: tuple[PartRows, ...]
    """Parts in the order of the rows."""
    covers: tuple[Cover, ...]
    index: builtins.bytes
    """Places of groups and tags, see `sidecar.zone.index`; empty where nobody needs them."""

    @property
    def format(self) -> str:
        return self.file.rpartition(".")[2]


class DamagedLineError(ValueError):
    """A line that is not as it was written."""


def digest_of(group: str, name: str) -> bytes:
    """Hash of a part of a group (in the form of `Entry.group`), 16 bytes."""
    return hashlib.blake2b(f"{group}\n{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def document(entry: Entry) -> dict[str, Any]:
    """The entry in the form of a data file: all except size and checksum, which are known only after writing."""
    return {
        "v": VERSION,
        "writer": entry.writer,
        "seq": entry.seq,
        "file": entry.file,
        "group": entry.group,
        "rows": entry.rows,
        "before": entry.before,
        "at": entry.at_ms,
        "parts": [list(part) for part in entry.parts],
        "offsets": [[*cover.place, base64.b64encode(cover.bitmap).decode()] for cover in entry.covers],
        "index": base64.b64encode(entry.index).decode(),
    }


def entry_of(fields: Any, size: int, crc: int) -> Entry:
    """The entry of a document.

    Args:
        size: Size of the data file in bytes.
        crc: CRC-32 of the data file.
    """
    try:
        if fields["v"] != VERSION:
            raise DamagedLineError(f"is of layout version {fields['v']}, and this program knows {VERSION}")
        covers = tuple(map(_cover, fields["offsets"]))
        parts = tuple(_part(part, len(covers)) for part in fields["parts"])
        writer, file, group = (typed(str, fields[name]) for name in ("writer", "file", "group"))
        seq, rows, before, at_ms = (typed(int, fields[name]) for name in ("seq", "rows", "before", "at"))
        index = base64.b64decode(fields["index"], validate=True)
    except DamagedLineError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedLineError("is no entry") from error
    return Entry(writer, seq, file, group, rows, size, crc, before, at_ms, parts, covers, index)


def _part(fields: Iterable[Any], covers: int) -> PartRows:
    name, rows, cover = fields
    if not 0 <= typed(int, cover) < covers:
        raise ValueError(f"there is no cover {cover}")
    return PartRows(typed(str, name), typed(int, rows), cover)


def _cover(fields: Iterable[Any]) -> Cover:
    topic, scope, partition, text = fields
    bitmap = base64.b64decode(text, validate=True)
    return Cover(typed(str, topic), typed(str, scope), typed(int, partition), bitmap)


def line_of(entry: Entry) -> bytes:
    """The manifest line of an entry, without the line feed that makes it visible; always the same bytes."""
    body = orjson.dumps({**document(entry), "bytes": entry.bytes, "crc": entry.crc})
    return b"%08x %s" % (crc32(body), body)


def parse(line: bytes) -> Entry:
    """The entry of a complete line, without its line feed."""
    body = line[9:]
    if line[:9] != b"%08x " % crc32(body):
        raise DamagedLineError("has a wrong checksum")
    try:
        fields = orjson.loads(body)
        size, crc = typed(int, fields["bytes"]), typed(int, fields["crc"])
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedLineError("is no entry") from error
    return entry_of(fields, size, crc)
