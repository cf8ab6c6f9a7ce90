"""One file of sorted message ids: written once, completely or not at all, then mapped. Knows no meaning of the ids.

A page of sizes and checksums, then the filter, the index and the keys of a `SortedRun`, in the memory layout of a
little-endian machine. So nothing is loaded: a file is checked completely, and mapped.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from sidecar import files
from sidecar.core.windows.idruns import Keys, RunSizes, SortedRun, merged

_HEAD = struct.Struct("<8sQQQQ")
"""Magic, bytes of the filter, bytes of the index, bytes of the keys, bytes of the checksums at the end."""
_MAGIC = b"SCIDS\0\0\1"
_DATA_AT = 4_096
_BLOCK = 1 << 20
LOADED_BYTES_MAX = 128 << 10
"""Files up to here are read, not mapped: each rebalance may leave one, and one that is mapped has a descriptor."""
_FILTER_BYTES_MIN = 8
_SUM = struct.Struct("<Q")
_INDEX_END = struct.Struct("<I4x")
"""The last entry of the index, which is the number of keys, and padding so that the keys begin at a multiple of 8."""


class DamagedIdsError(Exception):
    """The file is not as it was written; the text has the reason."""


class StoppedError(Exception):
    """The writing of the file was stopped."""


class Look(NamedTuple):
    """Identity and version of a file."""

    device: int
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def at(cls, place: Path | int) -> Look | None:
        """The look of a path or a descriptor; None if nothing is there; raises `OSError` if it cannot be read."""
        try:
            stat = os.stat(place)  # noqa: PTH116  # a third of the time that Path.stat takes
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


class MappedRun(SortedRun):
    """A run in a mapped file, whose bytes stay as long as nobody changes or truncates the file itself."""

    def __init__(
        self,
        keys: Keys,
        index: NDArray[np.uint32],
        filter: NDArray[np.uint8],  # noqa: A002
        look: Look | None,
        total: int,
    ) -> None:
        super().__init__(keys, index, filter)
        self.look, self.total = look, total


def write(path: Path, runs: Sequence[Keys], stopped: Callable[[], bool]) -> None:
    """Write rising keys, durable but for the file's name; raises `OSError` or `StoppedError` and leaves no file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write(fd, runs, stopped)
        os.fsync(fd)
    except BaseException:
        files.remove(path)
        raise
    finally:
        os.close(fd)


def _write(fd: int, runs: Sequence[Keys], stopped: Callable[[], bool]) -> None:
    _, index_bits, filter_bits = RunSizes.of(sum(map(len, runs)))
    filter_bytes, index_bytes = 1 << (filter_bits - 3), (4 << index_bits) + _INDEX_END.size
    bits, starts = _DATA_AT, _DATA_AT + filter_bytes
    keys = keys_at = starts + index_bytes
    for piece in merged(runs):
        if stopped():
            raise StoppedError
        bits = files.write_at(fd, piece.bits.data, bits)
        starts = files.write_at(fd, piece.starts.view(np.uint8).data, starts)
        keys = files.write_at(fd, piece.keys.view(np.uint8).data, keys)
    files.write_at(fd, _INDEX_END.pack((keys - keys_at) // 8), starts)
    sums = b"".join(_SUM.pack(total) for total in _sums(fd, keys))
    head = _HEAD.pack(_MAGIC, filter_bytes, index_bytes, keys - keys_at, len(sums))
    files.write_at(fd, sums, keys)
    files.write_at(fd, head + _SUM.pack(xxhash.xxh3_64_intdigest(head + sums)), 0)


def _sums(fd: int, end: int) -> list[int]:
    """Checksums of the blocks from the filter to `end`."""
    sums = []
    buffer = bytearray(_BLOCK)
    for start in range(_DATA_AT, end, _BLOCK):
        view = memoryview(buffer)[: min(_BLOCK, end - start)]
        if os.preadv(fd, [view], start) != len(view):
            raise DamagedIdsError("shorter than it was")
        sums.append(xxhash.xxh3_64_intdigest(view))
    return sums


def open_run(path: Path) -> MappedRun:
    """Check a file and map it; raises `DamagedIdsError`, or `OSError` if it cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(fd, _HEAD.size + _SUM.size, 0)
        if len(head) != _HEAD.size + _SUM.size or not head.startswith(_MAGIC):
            raise DamagedIdsError("no file of message ids")
        _, filter_bytes, index_bytes, key_bytes, sum_bytes = _HEAD.unpack_from(head)
        end = _DATA_AT + filter_bytes + index_bytes + key_bytes
        if os.fstat(fd).st_size != end + sum_bytes:
            raise DamagedIdsError("not as long as it was")
        sums = os.pread(fd, sum_bytes, end)
        (total,) = _SUM.unpack_from(head, _HEAD.size)
        if total != xxhash.xxh3_64_intdigest(head[: _HEAD.size] + sums):
            raise DamagedIdsError("checksum of its head")
        look = Look.at(fd)
        for number, block in enumerate(_sums(fd, end)):
            if _SUM.unpack_from(sums, number * _SUM.size) != (block,):
                raise DamagedIdsError(f"checksum of block {number}")
        mapped = _map(fd)
    finally:
        os.close(fd)
    # Sizes that `_write` makes of some number of keys, which may be higher than theirs: two runs can have the same key.
    entries = index_bytes // 4 - 2
    are_powers = filter_bytes.bit_count() == entries.bit_count() == 1 and filter_bytes >= _FILTER_BYTES_MIN
    if not (are_powers and entries > 1 and index_bytes % 4 == key_bytes % 8 == 0 < key_bytes):
        raise DamagedIdsError("its sizes do not fit to each other")
    keys_at = _DATA_AT + filter_bytes + index_bytes
    return MappedRun(
        np.frombuffer(mapped, np.uint64, key_bytes // 8, keys_at),
        np.frombuffer(mapped, np.uint32, index_bytes // 4 - 1, _DATA_AT + filter_bytes),
        np.frombuffer(mapped, np.uint8, filter_bytes, _DATA_AT),
        look,
        total,
    )


def keys_in(path: Path) -> int:
    """The number of keys by the file's header; its checksums are not verified.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    return int(_HEAD.unpack(head)[3]) // 8 if len(head) == _HEAD.size else 0


def _map(fd: int) -> mmap.mmap | bytes:
    if (size := os.fstat(fd).st_size) <= LOADED_BYTES_MAX:
        return os.pread(fd, size, 0)
    if sys.version_info >= (3, 13):  # otherwise each file takes a descriptor as long as it is mapped
        mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ, trackfd=False)
    else:
        mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return mapped
