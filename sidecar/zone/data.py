"""Data files: rows to Arrow or Parquet bytes, and back with the requested columns and rows. Writes no file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from sidecar.errors import ZoneError
from sidecar.storage import Root, Storage, StorageError, storage_of
from sidecar.zone.columns import ROWS_MAX
from sidecar.zone.entry import DamagedLineError, Entry, PartitionId, document, entry_of
from sidecar.zone.index import Wanted, spans_of
from sidecar.zone.layout import data_folder
from sidecar.zone.schema import SCHEMA

DOCUMENT: Final = b"sidecar"
"""Key of the schema's metadata under which the entry is kept, so that a damaged manifest line can be restored."""


def encode(batches: Sequence[pa.RecordBatch], entry: Entry) -> pa.Buffer:
    """The bytes of a data file of the entry's format, compressed with zstd."""
    schema = SCHEMA.with_metadata({DOCUMENT: orjson.dumps(document(entry))})
    out = pa.BufferOutputStream()
    if entry.format == "parquet":
        with pq.ParquetWriter(out, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(out, schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return out.getvalue()


def read(
    root: Root,
    entry: Entry,
    columns: Sequence[str] | None = None,
    drop: Mapping[PartitionId, BitMap64] | None = None,
    *,
    groups: Collection[str] | None = None,
    tags: Collection[str | None] | None = None,
    rows_max: int = ROWS_MAX,
) -> Iterator[pa.RecordBatch]:
    """The rows of an entry in their order, as record batches of the chosen fields of `SCHEMA`.

    Args:
        columns: Names in the wanted order, None for all; only these are decompressed.
        drop: Offsets that are left out, by topic, scope and partition.
        groups: Wanted groups; None for all.
        tags: Wanted tags, None among them for rows without a tag; None for all. With both, rows that have one of each.
        rows_max: Limit of rows in a batch; Spark's own limit is 10,000.

    Raises:
        ZoneError: The file is gone, or is not byte for byte the one of the entry.
    """
    data = _checked(storage_of(root), entry)
    selected = list(SCHEMA.names if columns is None else columns)
    wanted = Wanted.of(groups, tags)
    dropping = [part for part in entry.parts if drop and drop.get(entry.covers[part.cover].place)]
    # Even without any column, a column must be read: rows are counted by it.
    also = ["offset"] * bool(dropping or not selected) + [name for name, _ in wanted.by_column()]
    needed = [*selected, *(name for name in also if name not in selected)]
    try:
        for begin, batch in _stretches(*_blocks(data, entry, needed), entry, wanted):
            kept = _without(batch, begin, entry, drop) if drop and dropping else batch
            chosen = wanted.keep(kept).select(selected).replace_schema_metadata(None)
            yield from (chosen.slice(start, rows_max) for start in range(0, chosen.num_rows, rows_max))
    except (pa.ArrowInvalid, OSError) as error:  # the entry was restored from a file that was damaged already
        raise ZoneError(f"landing zone: {entry.file} cannot be read: {error}", hint=_DAMAGED) from error


_GONE = "It was removed by hand, or read without a registered consumer: retention removes what all consumers have read"
_DAMAGED = "Restore the file from a copy of the zone; its rows are nowhere else"


def _checked(zone: Storage, entry: Entry) -> bytes:
    try:
        data = zone.read(entry.file)
    except StorageError:
        raise
    except OSError as error:
        raise ZoneError(f"landing zone: {entry.file} cannot be read: {error}", hint=_DAMAGED) from error
    if data is None:
        raise ZoneError(f"landing zone: {entry.file} is missing", hint=_GONE)
    if crc32(data) != entry.crc:
        raise ZoneError(
            f"landing zone: {entry.file} is damaged: its checksum differs from that of its line", hint=_DAMAGED
        )
    return data


def _blocks(data: bytes, entry: Entry, columns: list[str]) -> tuple[int, Callable[[int], pa.RecordBatch]]:
    """The number of blocks of a file, and a function that decompresses one."""
    source = pa.BufferReader(data)
    if entry.format != "parquet":
        fields = [SCHEMA.get_field_index(name) for name in columns]
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
        return reader.num_record_batches, reader.get_batch
    file = pq.ParquetFile(source)

    def take(number: int) -> pa.RecordBatch:
        return file.read_row_group(number, columns, use_threads=False).combine_chunks().to_batches()[0]

    return file.num_row_groups, take


def _stretches(
    count: int, take: Callable[[int], pa.RecordBatch], entry: Entry, wanted: Wanted
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches that have all wanted rows of a file, each with the number of its first row in the file."""
    if not wanted.everything:
        for one in wanted.stretches(entry.index):
            batch = take(one.block) if one.block < count else None
            if batch is None or batch.num_rows != one.rows:
                raise ZoneError(f"landing zone: {entry.file} does not have the rows of its index", hint=_DAMAGED)
            yield one.begin + one.start, batch.slice(one.start, one.stop - one.start)
        return
    row = 0
    for number in range(count):
        batch = take(number)
        yield row, batch
        row += batch.num_rows
    if row != entry.rows:
        raise ZoneError(f"landing zone: {entry.file} has {row} rows instead of {entry.rows}", hint=_DAMAGED)


def _without(batch: pa.RecordBatch, begin: int, entry: Entry, drop: Mapping[PartitionId, BitMap64]) -> pa.RecordBatch:
    """The batch, whose first row is row `begin` of the entry, without the rows whose offsets are to be dropped."""
    kept: list[pa.RecordBatch] = []
    row = 0
    for part in entry.parts:
        start, stop = max(row - begin, 0), min(row + part.rows - begin, batch.num_rows)
        row += part.rows
        if start >= stop:
            continue
        piece = batch.slice(start, stop - start)
        unwanted = drop.get(entry.covers[part.cover].place)
        if unwanted:
            offsets: Any = piece.column("offset")
            twice = pc.is_in(offsets, value_set=pa.array(BitMap64(offsets.to_pylist()) & unwanted, pa.int64()))
            piece = piece.filter(pc.invert(twice))
        kept.append(piece)
    joined = pa.Table.from_batches(kept, batch.schema).combine_chunks().to_batches()
    return joined[0] if joined else batch.slice(0, 0)


def entry_in(zone: Storage, file: str) -> Entry | None:
    """The entry that a data file carries; None if the file is incomplete.

    Args:
        file: The name, which the entry must have too.

    Raises:
        StorageError: The store does not answer, so the file may be complete.
    """
    try:
        data = zone.read(file) or b""
        source = pa.BufferReader(data)
        schema = pq.read_schema(source) if file.endswith(".parquet") else pa.ipc.open_file(source).schema
        entry = entry_of(orjson.loads((schema.metadata or {})[DOCUMENT]), len(data), crc32(data))
        spans_of(entry.index)
    except StorageError:
        raise
    except (OSError, pa.ArrowInvalid, KeyError, DamagedLineError, ValueError):
        return None
    return entry if entry.file == file else None


def find_entry(zone: Storage, writer: str, seq: int) -> Entry | None:
    """The entry of a number whose line was certainly written; None without exactly one complete data file.

    An object store may have several, from failed attempts: then it is unknown which one the line named.
    """
    names = (name for name in zone.files(data_folder(writer)) if name.rpartition("/")[2].startswith(f"{seq:012d}-"))
    made = [entry for name in names if (entry := entry_in(zone, name)) and (entry.writer, entry.seq) == (writer, seq)]
    return made[0] if len(made) == 1 else None
