"""The form of the first design for held messages, for `benchmarks.delay`: a log of each hour, with a linked index.

Entries point at the one before in their second, heads at the last of each second. Nothing is ever made durable.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from sidecar.delay.rows import HOUR_MS


class Linked:
    """Messages by hour.

    Args:
        folder: Gets three files for each hour.
    """

    ENTRY = struct.Struct("<QIIQqQQ")  # offset, size, number in the second, number, that before, due time, mask
    HEAD = struct.Struct("<qq")  # number of the second's last entry, how many there are
    RECORD = struct.Struct("<IIQQQ")  # size, checksum, position, origin, mask

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hours: dict[int, tuple[list[int], list[bytes], bytearray, bytearray]] = {}
        """By hour: bytes and messages, records, entries, heads."""

    def put(self, batch: tuple[list[int], list[bytes]]) -> None:
        """Put messages; an hour is appended to its files 256 at a time."""
        for due_ms, value in zip(*batch, strict=True):
            hour, rest_ms = divmod(due_ms, HOUR_MS)
            if hour not in self._hours:
                self._hours[hour] = [0, 0], [], bytearray(), bytearray(self.HEAD.pack(-1, 0)) * 3_600
            totals, log, index, heads = self._hours[hour]
            at, number = totals
            before, local = self.HEAD.unpack_from(heads, rest_ms // 1_000 * self.HEAD.size)
            log.append(self.RECORD.pack(len(value), zlib.crc32(value), due_ms << 20 | number, 0, 0) + value)
            index += self.ENTRY.pack(at, len(log[-1]), local, number, before, due_ms, 0)
            self.HEAD.pack_into(heads, rest_ms // 1_000 * self.HEAD.size, number, local + 1)
            totals[:] = at + len(log[-1]), number + 1
            if len(log) == 256:
                self._flush(hour)

    def _flush(self, hour: int) -> None:
        _, log, index, _ = self._hours[hour]
        for name, data in (("log", b"".join(log)), ("index", index)):
            with (self._folder / f"{hour}.{name}").open("ab", buffering=0) as file:
                file.write(data)
        log.clear()
        index.clear()

    def close(self) -> None:
        """Write the rest, and the heads."""
        for hour, (_, _, _, heads) in self._hours.items():
            self._flush(hour)
            (self._folder / f"{hour}.heads").write_bytes(heads)

    @classmethod
    def second(cls, folder: Path, hour: int, second: int) -> list[tuple[int, int, bytes]]:
        """Due times, numbers and values of the messages of a second, in order."""
        heads, index, log = ((folder / f"{hour}.{name}").read_bytes() for name in ("heads", "index", "log"))
        found, number = [], cls.HEAD.unpack_from(heads, second * cls.HEAD.size)[0]
        while number >= 0:
            at, size, _, _, before, due_ms, _ = cls.ENTRY.unpack_from(index, number * cls.ENTRY.size)
            found.append((due_ms, number, log[at + cls.RECORD.size : at + size]))
            number = before
        return sorted(found)
