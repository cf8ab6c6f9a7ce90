"""What the start of an owner costs that holds delayed messages in a changelog: with its local files, and without them.

The changelog is a file that is written and read by this program: what a broker and its client cost is not included. A
process puts the messages, is killed, and others start in its place: with its files, with those of the next, without.
Times are of the whole process unless they are called wall; the page cache is warm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.delay import SPAN_MS, batches, in_child, line
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.records import RecordLineage
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.takeover import Start, Takeover
from sidecar.delay.rows import Held

TP, NAME, LINEAGE, STORE = TopicPartition("t", 0), b"t0", RecordLineage(1, 2), 7
EVERY = 1_000
"""Records from one entry of the index to the next."""
_HEAD = struct.Struct("<II")
_NO_VALUE = (1 << 32) - 1


class Log:
    """A changelog in a file, and its `Restorer`; see `Appender` for its other side.

    Args:
        path: The file.
        index: Bytes of the file at every thousandth record.
        end: Number of records.
    """

    def __init__(self, path: Path, index: Sequence[int] = (), end: int = 0) -> None:
        self.index, self.end = list(index), end
        self._file = path.open("ab", buffering=1 << 20)

    def open(self, tp: TopicPartition) -> int:  # noqa: ARG002
        """The id."""
        return STORE

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:  # noqa: ARG002
        """Append entries; return the offset of the last one."""
        for key, value in entries:
            if self.end % EVERY == 0:
                self.index.append(self._file.tell())
            self._file.write(_HEAD.pack(len(key), _NO_VALUE if value is None else len(value)) + key + (value or b""))
            self.end += 1
        return self.end - 1

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:  # noqa: ARG002
        """Records of the file."""
        self.flush()
        with Path(self._file.name).open("rb", buffering=1 << 20) as file:
            file.seek(self.index[begin // EVERY])
            records: list[ChangelogRecord] = []
            for offset in range(begin // EVERY * EVERY, end):
                key_bytes, value_bytes = _HEAD.unpack(file.read(_HEAD.size))
                key, value = file.read(key_bytes), None if value_bytes == _NO_VALUE else file.read(value_bytes)
                if offset >= begin:
                    records.append(ChangelogRecord(offset, key, value))
                if len(records) == EVERY:
                    yield records
                    records = []
            yield records

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.flush()


class Appender:
    """The `Changelog` of a process; what is appended is acknowledged at once."""

    broken = waiting = ""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._acknowledged: list[tuple[Callable[[int], None] | None, int]] = []

    def append(
        self, tp: TopicPartition, entries: Sequence[ChangelogEntry], done: Callable[[int], None] | None = None
    ) -> None:
        """Append entries."""
        self._acknowledged.append((done, self._log.append(tp, entries)))

    def serve(self, timeout_s: float = 0.0) -> None:  # noqa: ARG002
        """Acknowledge."""
        acknowledged, self._acknowledged = self._acknowledged, []
        for done, offset in acknowledged:
            if done is not None:
                done(offset)

    def close(self) -> None:
        """Nothing is open."""


class Left(NamedTuple):
    """What a process left."""

    places: Sequence[int]
    end: int
    epoch: int


class Started(NamedTuple):
    """What a start took."""

    cpu_s: float
    wall_s: float
    read: int
    held: int
    left: Left


def take_over(store: ChangelogStore, log: Log, epoch: int) -> tuple[int, int, int]:
    """Take the partition over; its number, the new epoch, and the number of records that were read."""
    number, note = store.begin_partition(NAME)
    begun = [number]

    def adopt(rows: list[Held], is_anew: bool) -> None:
        if is_anew and note is not None:
            begun.append(store.begin_anew(NAME, begun[-1]))
        store.adopt(begun[-1], rows)
        tend(store)

    start = Start(Stores(STORE if epoch else 0, (), epoch), LINEAGE, 0, 1 << 60, 0)
    taken_over = Takeover(log, TP, start, adopt, note).run()
    store.own(NAME, begun[-1], TP, LINEAGE, taken_over)
    return begun[-1], taken_over.epoch, taken_over.read


def tend(store: ChangelogStore) -> None:
    """What the main loop and the writer's thread do."""
    store.writes.poll()
    job = store.writes.begin_sync()
    if job is not None:
        job.run()
        store.writes.ended_sync(job, None)


def put(folder: Path, messages: int) -> Left:
    """Put messages, and end without an end."""
    log = Log(folder / "changelog")
    store = ChangelogStore(LocalCache(folder / "cache"), Appender(log))
    number, epoch, _ = take_over(store, log, 0)
    store.keep(number, b"", 0, 0)
    store.committed(number, 0)
    origin = 0
    for dues, values in batches(messages, SPAN_MS):
        origin += len(dues)
        columns = zip(dues, values, strict=True)
        store.put(
            number, [Held(due << SEQUENCE_BITS, origin, 0, None, NO_TAGS, None, b"", value) for due, value in columns]
        )
        tend(store)
    log.flush()
    return Left(log.index, log.end, epoch)


def started(folder: Path, left: Left) -> Started:
    """What a start takes, up to the first commit; the process leaves its files behind that."""
    log = Log(folder / "changelog", left.places, left.end)
    cpu, wall = time.process_time(), time.perf_counter()
    store = ChangelogStore(LocalCache(folder / "cache"), Appender(log))
    number, epoch, read = take_over(store, log, left.epoch)
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    store.keep(number, b"", 0, 0)
    store.committed(number, 0)
    for _ in range(3):
        tend(store)
    log.flush()
    return Started(cpu_s, wall_s, read, store.rows.held(number), Left(log.index, log.end, epoch))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay_restart", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="held at the start")
    args = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        left, _ = in_child(put, folder, args.messages)
        log_mib = sum(path.stat().st_size for path in (folder / "cache").glob("rows/*.log")) / (1 << 20)
        for what, bound in (
            (f"with the local files, {log_mib:.0f} MiB of log", "< 0.2 s"),
            ("with those of the next", "< 0.2 s"),
            ("without them", ""),
        ):
            if what == "without them":
                shutil.rmtree(folder / "cache")
            result, grown = in_child(started, folder, left)
            assert result.held == args.messages
            left = result.left
            figure = f"{result.cpu_s:.3f} s, wall {result.wall_s:.3f} s, {result.read:,} records read, +{grown:.0f} MiB"
            line(f"{args.messages:,}, {what}", figure, bound)


if __name__ == "__main__":
    main()
