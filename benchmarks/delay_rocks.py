"""What held messages of several partitions cost in RocksDB, beside the daemon's store on a local disk.

The proof of a mechanism: put, take and keep as `PartitionStore` has them, each durable by the job of another thread. A
row's key is its partition and position, so what is due next is the first row from a partition's cursor on, and what is
ended is one range. Each write is atomic: rows, and a note of what an hour gained, its next sequence number, and the
origins that are known. The library holds the interpreter's lock while it writes, and not while it flushes its log.

Each measurement has a process of its own. Ratios are of CPU seconds, RocksDB to the store: below 1 RocksDB is cheaper.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import struct
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, Protocol

from pyroaring import BitMap64
from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch

from benchmarks.delay import BATCH, BEGIN_MS, SPAN_MS, VALUE_BYTES, Calls, in_child, line
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.blocks import NO_TIMESTAMP, Held
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.interface import Row
from sidecar.delay.partitions import PartitionStore

TAGS = bytes(12)
STATE = bytes(200)
MEMORY_BYTES, CACHE_BYTES, BLOCK_BYTES = 16 << 20, 8 << 20, 16 << 10
NOTES_MAX = 256
"""Notes of a partition that a start adds up, at most."""
KEY = struct.Struct(">cHQ")
"""Kind, partition, position of a row or number of a note."""
ROW = struct.Struct("<QQ12s")
"""Origin, timestamp, entry of the tags; the value follows."""
HOUR = struct.Struct("<IiI")
"""Hour, messages that it gained, next sequence number."""


class _Partition:
    def __init__(self) -> None:
        self.cursor = self.watermark = self.mark = 0
        self.hours = Counter[int]()
        self.sequences = Counter[int]()
        self.known = BitMap64()
        self.taken = deque[int]()
        self.first_note = self.notes = 0


class RowStore:
    """Held messages in RocksDB, with what `measured` needs."""

    def __init__(self, folder: Path) -> None:
        options, table = Options(raw_mode=True), BlockBasedOptions()
        options.create_if_missing(True)  # noqa: FBT003
        options.set_compression_type(DBCompressionType.none())
        options.set_write_buffer_size(MEMORY_BYTES)
        table.set_block_cache(Cache(CACHE_BYTES))
        table.set_block_size(BLOCK_BYTES)
        options.set_block_based_table_factory(table)
        self._rows = Rdict(str(folder / "rows"), options)
        self._partitions: list[_Partition] = []
        self._unsynced: int | None = None

    def number(self, _: bytes) -> int:
        self._partitions.append(_Partition())
        return len(self._partitions) - 1

    def put(self, number: int, rows: Sequence[Row]) -> list[int]:
        partition, batch, gained = self._partitions[number], WriteBatch(raw_mode=True), Counter[int]()
        put, sequences, positions = batch.put, partition.sequences, list[int]()
        floor, first = (partition.mark >> SEQUENCE_BITS) + 1, b"r" + number.to_bytes(2, "big")
        for due_ms, origin, _, stamp, tags, _, _, value in rows:
            due_ms = max(floor, due_ms)
            hour = due_ms // HOUR_MS
            position = due_ms << SEQUENCE_BITS | sequences[hour]
            sequences[hour] += 1
            gained[hour] += 1
            put(first + position.to_bytes(8, "big"), ROW.pack(origin, stamp, tags) + (value or b""))
            positions.append(position)
        self._note(number, batch, gained, BitMap64(row[1] for row in rows))
        self._rows.write(batch)
        lowest = min(positions)
        self._unsynced = lowest if self._unsynced is None else min(self._unsynced, lowest)
        return positions

    def _note(self, number: int, batch: WriteBatch, gained: Counter[int], origins: BitMap64) -> None:
        partition = self._partitions[number]
        partition.known |= origins
        for hour, count in gained.items():
            partition.hours[hour] += count
        end = KEY.pack(b"c", number, partition.notes)
        if partition.notes - partition.first_note >= NOTES_MAX:  # one note in the place of all
            batch.delete_range(KEY.pack(b"c", number, partition.first_note), end)
            gained, origins = +partition.hours, partition.known
            partition.first_note = partition.notes
        packed = [HOUR.pack(hour, count, partition.sequences[hour]) for hour, count in gained.items()]
        batch.put(end, b"".join([len(packed).to_bytes(4, "little"), *packed, origins.serialize()]))
        partition.notes += 1

    def take(self, number: int, until: int, limit: int, nbytes: int) -> list[Held]:
        partition, taken = self._partitions[number], list[Held]()
        first, cursor = b"r" + number.to_bytes(2, "big"), self._rows.iter()
        cursor.seek(first + partition.cursor.to_bytes(8, "big"))
        until = until if self._unsynced is None else min(until, self._unsynced)
        while cursor.valid() and len(taken) < limit and nbytes > 0:
            key, value = cursor.key(), cursor.value()
            position = int.from_bytes(key[3:], "big")
            if not key.startswith(first) or position >= until:
                break
            origin, stamp, tags = ROW.unpack_from(value)
            fields = position, origin, 0, number, stamp, tags, None, b"", value[ROW.size :]
            taken.append(tuple.__new__(Held, fields))
            partition.taken.append(position)
            nbytes -= len(value)
            cursor.next()
        if taken:
            partition.cursor, partition.mark = taken[-1].position + 1, taken[-1].position
        return taken

    def keep(self, number: int, state: bytes, watermark: int, seen: int) -> None:
        partition, batch, gained = self._partitions[number], WriteBatch(raw_mode=True), Counter[int]()
        while partition.taken and partition.taken[0] < watermark:
            gained[(partition.taken.popleft() >> SEQUENCE_BITS) // HOUR_MS] -= 1
        batch.delete_range(KEY.pack(b"r", number, partition.watermark), KEY.pack(b"r", number, watermark))
        batch.put(b"p" + number.to_bytes(2, "big"), struct.pack("<QQ", watermark, seen) + state)
        self._note(number, batch, gained, BitMap64())
        self._rows.write(batch)
        partition.watermark = watermark

    def sync(self) -> None:
        self._rows.flush_wal(True)  # noqa: FBT003
        self._unsynced = None

    def close(self) -> None:
        self._rows.close()


class _Store(Protocol):
    def number(self, name: bytes, /) -> int: ...
    def put(self, number: int, rows: Sequence[Row], /) -> Sequence[int]: ...
    def take(self, number: int, until: int, limit: int, nbytes: int, /) -> Sequence[Held]: ...
    def keep(self, number: int, state: bytes, watermark: int, seen: int, /) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Cost(NamedTuple):
    """CPU seconds, and the longest call in milliseconds of CPU."""

    put: float
    longest_put: float
    take: float
    longest_take: float


def batches(messages: int) -> Iterator[list[Row]]:
    """Rows, 500 at a time."""
    some = random.Random(1)
    for first in range(0, messages, BATCH):
        raw = os.urandom(BATCH * VALUE_BYTES)
        yield [
            (
                BEGIN_MS + int(some.random() * SPAN_MS), first + at, 0, NO_TIMESTAMP, TAGS, None, b"",
                raw[at * VALUE_BYTES : (at + 1) * VALUE_BYTES],
            )
            for at in range(BATCH)
        ]  # fmt: skip


def measured(opened: Callable[[Path], _Store], messages: int, partitions: int, taken: int) -> Cost:
    """Put messages in turns of the partitions; take and end some, 500 of each partition at a time."""
    with tempfile.TemporaryDirectory() as folder:
        store, puts, takes = opened(Path(folder)), Calls(), Calls()
        numbers = [store.number(b"%d" % each) for each in range(partitions)]
        turns = cycle(numbers)

        def put(rows: list[Row]) -> None:
            store.put(next(turns), rows)
            store.sync()

        def take() -> int:
            count = 0
            for number in numbers:
                if held := store.take(number, BEGIN_MS + SPAN_MS << SEQUENCE_BITS, BATCH, 1 << 30):
                    store.keep(number, STATE, held[-1].position + 1, held[-1].position)
                    count += len(held)
            store.sync()
            return count

        for rows in batches(messages):
            puts.timed(put, rows)
        while taken > 0:
            taken -= takes.timed(take)
        store.close()
    return Cost(sum(puts.cpu) / 1e3, max(puts.cpu), sum(takes.cpu) / 1e3, max(takes.cpu))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay_rocks", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for partitions in (1, 16):
        work = (measured, RowStore, args.messages, partitions, args.messages // 2)
        pairs = [(in_child(*work), in_child(measured, PartitionStore, *work[2:])) for _ in range(args.rounds)]
        for place, (what, per) in enumerate((("put", args.messages), ("take and keep", args.messages // 2))):
            ratios = sorted(rocks[2 * place] / store[2 * place] for (rocks, _), (store, _) in pairs)
            rates = (per / statistics.median(cost[2 * place] for cost, _ in each) for each in zip(*pairs, strict=True))
            longest = (max(cost[2 * place + 1] for cost, _ in each) for each in zip(*pairs, strict=True))
            figure = "{:>9,.0f} and {:,.0f} a CPU second, longest {:.0f} and {:.0f} ms".format(*rates, *longest)
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            line(f"{what}, {partitions} partitions", f"{figure}, ratio {ratio}")
        grown = (statistics.median(mib for _, mib in each) for each in zip(*pairs, strict=True))
        line("memory", "{:>9.0f} and {:.0f} MiB".format(*grown))


if __name__ == "__main__":
    main()
