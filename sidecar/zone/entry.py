"""A manifest's lines: what one landed batch is, and how that is written and checked. No file is touched here."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import orjson
from pyroaring import BitMap64

VERSION: Final = 1
"""Of the layout; a reader refuses lines of another one."""
PartitionId: TypeAlias = tuple[str, str, int]
"""Topic, scope and partition: within it an offset is one message, for ever."""


class Cover(NamedTuple):
    """The offsets of one partition that a batch has.

    The scope is part of the identity: a topic made again, or an operator's reset, repeats offsets in a new scope, and
    those rows are no duplicates.
    """

    topic: str
    scope: str
    partition: int
    bitmap: bytes
    """Portable 64-bit Roaring."""

    @property
    def place(self) -> PartitionId:
        """What the offsets count within."""
        return self.topic, self.scope, self.partition

    def offsets(self) -> BitMap64:
        """The offsets."""
        return BitMap64.deserialize(self.bitmap)


class PartRows(NamedTuple):
    """A part's share of a batch: the next `rows` rows, all of `Entry.covers[cover]`."""

    name: str
    rows: int
    cover: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A landed batch, as its manifest line says. It can be pickled, and holds all that `read` needs."""

    writer: str
    seq: int
    """0, 1, 2, … for each writer, without a gap."""
    file: str
    """Below the zone's root, with slashes."""
    group: str
    """As the column of this name has it."""
    rows: int
    bytes: int
    """Of the file."""
    crc: int
    """CRC-32 of the file."""
    before: int
    """Bytes that this writer landed before this entry."""
    at_ms: int
    """When it was landed, milliseconds since the epoch by the writer's clock; nothing is ordered by it."""
    parts: tuple[PartRows, ...]
    """In the order of the rows."""
    covers: tuple[Cover, ...]

    @property
    def format(self) -> str:
        """``arrow`` or ``parquet``."""
        return self.file.rpartition(".")[2]


class DamagedLineError(ValueError):
    """A line that is not what was written."""


def digest_of(group: str, name: str) -> bytes:
    """16 bytes that stand for a part of a group (as `Entry.group` has it)."""
    return hashlib.blake2b(f"{group}\n{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def document(entry: Entry) -> dict[str, Any]:
    """The entry as a data file carries it: all but size and sum, which are known when the file is written."""
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
    }


def entry_of(fields: Any, size: int, crc: int) -> Entry:
    """The entry of a document.

    Args:
        fields: What JSON gave.
        size: Of the data file, in bytes.
        crc: CRC-32 of the data file.

    Raises:
        DamagedLineError: It is no such document, or of another version.
    """
    try:
        if fields["v"] != VERSION:
            raise DamagedLineError(f"is of layout version {fields['v']}, and this program knows {VERSION}")
        return Entry(
            fields["writer"], fields["seq"], fields["file"], fields["group"], fields["rows"], size, crc,
            fields["before"], fields["at"], tuple(PartRows(*part) for part in fields["parts"]),
            tuple(map(_cover, fields["offsets"])),
        )  # fmt: skip
    except (KeyError, TypeError, binascii.Error) as error:
        raise DamagedLineError("is no entry") from error


def _cover(fields: Iterable[Any]) -> Cover:
    topic, scope, partition, text = fields
    return Cover(topic, scope, partition, base64.b64decode(text, validate=True))


def line_of(entry: Entry) -> bytes:
    """The manifest line of an entry, without the line feed that makes it visible; always the same bytes."""
    body = orjson.dumps({**document(entry), "bytes": entry.bytes, "crc": entry.crc})
    return b"%08x %s" % (crc32(body), body)


def parse(line: bytes) -> Entry:
    """The entry of a whole line, without its line feed.

    Raises:
        DamagedLineError: Its sum is wrong, or it is of another version.
    """
    body = line[9:]
    if line[:9] != b"%08x " % crc32(body):
        raise DamagedLineError("has a wrong checksum")
    try:
        fields = orjson.loads(body)
        size, crc = fields["bytes"], fields["crc"]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedLineError("is no entry") from error
    return entry_of(fields, size, crc)
