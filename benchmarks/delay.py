"""What messages cost that are held in a `DelayStore`: to put, to keep, to start with, and to read out.

Beside it, with the same messages and in turns: two tables in SQLite, one with an index on the due time and one whose
key is in its order, a commit for each batch; and the form of the first design, a log of each hour with an index of
linked entries and a head for each second, which is never made durable. Each measurement has a process of its own that
is killed at its end. Times are of its CPU unless they are called wall; putting includes the close. Values are random,
and each is an object of its own. Files are in the system's folder for temporary ones; the page cache is warm. On the
right is what a figure shall keep to; bytes are those of all files beyond the values.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.delay_linked import Linked
from sidecar.delay.database import WRITTEN_BYTES
from sidecar.delay.rows import HOUR_MS
from sidecar.delay.store import DelayStore

T = TypeVar("T")
Batch = tuple[list[int], list[bytes]]
BATCH, VALUE_BYTES = 500, 200
BEGIN_MS = 1_800_000_000_000 // HOUR_MS * HOUR_MS
SPAN_MS = 30 * 24 * HOUR_MS
SECONDS = {1: 100_000, 3_600: 1_000_000}
"""Messages that are due in so many seconds."""
INDEXED = "CREATE TABLE held (position INTEGER PRIMARY KEY, due INTEGER, value BLOB); CREATE INDEX by_due ON held (due)"
ORDERED = "CREATE TABLE held (position INTEGER PRIMARY KEY, value BLOB)"


class Inserts(NamedTuple):
    """What it took to put messages."""

    per_second: float
    longest_ms: float
    """Of the calls for one batch, on the wall."""
    bytes_each: float
    files: int


class Calls:
    """Milliseconds of calls, of CPU and on the wall."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def timed(self, call: Callable[..., T], *args: object) -> T:
        """What the call returns."""
        cpu, wall = time.process_time(), time.perf_counter()
        result = call(*args)
        self.cpu.append((time.process_time() - cpu) * 1e3)
        self.wall.append((time.perf_counter() - wall) * 1e3)
        return result

    def __str__(self) -> str:
        return (
            f"{sum(self.cpu) / 1e3:.3f} s in {len(self.cpu):,}, median {statistics.median(self.cpu):.2f} ms,"
            f" longest {max(self.cpu):.1f} ms, wall {max(self.wall):.1f} ms"
        )


def batches(messages: int, span_ms: int) -> Iterator[Batch]:
    """Due times and values of messages, 500 at a time."""
    some = random.Random(1)
    for at in range(0, messages, BATCH):
        size = min(BATCH, messages - at)
        raw = os.urandom(size * VALUE_BYTES)
        values = [raw[begin : begin + VALUE_BYTES] for begin in range(0, len(raw), VALUE_BYTES)]
        yield [BEGIN_MS + int(some.random() * span_ms) for _ in range(size)], values


def in_child(work: Callable[..., T], *args: object) -> tuple[T, float]:
    """What the function returns in a process of its own, and by how many mebibytes that grew at most."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, work, args))
    process.start()
    theirs.close()
    result: tuple[T, float] = ours.recv()
    process.join()
    return result


def _send(pipe: Connection, work: Callable[..., object], args: Sequence[object]) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts over
    before = _memory_mib("VmRSS")
    pipe.send((work(*args), _memory_mib("VmHWM") - before))
    os._exit(0)


def _memory_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) / 1024


def inserts(folder: Path, some: Iterator[Batch], put: Callable[[Batch], None], close: Callable[[], None]) -> Inserts:
    """What it takes to put all of these."""
    calls, messages = Calls(), 0
    for batch in some:
        calls.timed(put, batch)
        messages += len(batch[0])
    longest_ms = max(calls.wall)
    calls.timed(close)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return Inserts(messages / sum(calls.cpu) * 1e3, longest_ms, sum(sizes) / messages, len(sizes))


def in_store(folder: Path, messages: int, span_ms: int = SPAN_MS, *, one_by_one: bool = False) -> Inserts:
    """Messages in a store, made durable 500 at a time."""
    store = DelayStore(folder)

    def put(batch: Batch) -> None:
        if one_by_one:
            for due_ms, value in zip(*batch, strict=True):
                store.put(due_ms, value)
        else:
            store.put_many(*batch)
        store.sync()

    return inserts(folder, batches(messages, span_ms), put, store.close)


def in_sqlite(folder: Path, messages: int, *, ordered: bool = False) -> Inserts:
    """Messages in SQLite, made durable 500 at a time."""
    db, numbers = sqlite3.connect(folder / "held.db", isolation_level=None), count()
    db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; " + (ORDERED if ordered else INDEXED))

    def put(batch: Batch) -> None:
        rows = zip(*batch, strict=True)
        db.execute("BEGIN")
        if ordered:
            keyed = ((due_ms << 20 | next(numbers) % (1 << 20), value) for due_ms, value in rows)
            db.executemany("INSERT INTO held VALUES (?, ?)", keyed)
        else:
            db.executemany("INSERT INTO held (due, value) VALUES (?, ?)", rows)
        db.execute("COMMIT")

    return inserts(folder, batches(messages, SPAN_MS), put, db.close)


def in_linked(folder: Path, messages: int, span_ms: int = SPAN_MS) -> Inserts:
    """Messages in the form of the first design."""
    linked = Linked(folder)
    return inserts(folder, batches(messages, span_ms), linked.put, linked.close)


def linked_read_out(folder: Path) -> float:
    """CPU seconds to read out one second of the first design."""
    begun = time.process_time()
    assert len(Linked.second(folder, BEGIN_MS // HOUR_MS, 0)) == SECONDS[1]
    return time.process_time() - begun


def read_out(folder: Path, seconds: int) -> dict[str, Calls]:
    """The first seconds of a store that is opened anew, each read out, settled and made durable 500 at a time."""
    store, got = DelayStore(folder), 0
    calls = {name: Calls() for name in ("load", "due", "settle", "sync")}
    messages = calls["load"].timed(store.due, BEGIN_MS, 1)
    for now_ms in range(BEGIN_MS + 999, BEGIN_MS + seconds * 1_000, 1_000):
        messages += calls["due"].timed(store.due, now_ms)
        while messages:
            calls["settle"].timed(store.settle, [message.position for message in messages])
            calls["sync"].timed(store.sync)
            got += len(messages)
            messages = calls["due"].timed(store.due, now_ms)
    assert got == SECONDS[seconds]
    return calls


def started(folder: Path) -> tuple[float, float]:
    """CPU seconds and wall seconds of a start."""
    calls = Calls()
    calls.timed(DelayStore, folder)
    return calls.cpu[0] / 1e3, calls.wall[0] / 1e3


def put_until_killed(folder: Path) -> float:
    """Put messages until the log is nearly as long as it gets; return its mebibytes."""
    store, size = DelayStore(folder), 0
    for batch in batches(WRITTEN_BYTES, SPAN_MS):
        store.put_many(*batch)
        store.sync()
        with suppress(FileNotFoundError):  # it was just replaced
            size = max(path.stat().st_size for path in folder.glob("rows/*.log"))
        if size > WRITTEN_BYTES * 0.99:
            break
    return size / (1 << 20)


def idle(folder: Path) -> tuple[float, int, float]:
    """An hour in which nothing is due: CPU milliseconds of a loop that sleeps as it may, its turns; of 3,600 turns."""
    store, begin_ms, turns, slept = DelayStore(folder), BEGIN_MS - HOUR_MS, 0, Calls()
    now_ms = begin_ms
    while now_ms < BEGIN_MS:
        assert not slept.timed(store.due, now_ms)
        now_ms, turns = slept.timed(store.next_ms) or BEGIN_MS, turns + 1
    begun = time.process_time()
    for now_ms in range(begin_ms, BEGIN_MS, 1_000):
        assert not store.due(now_ms)
        store.next_ms()
    return sum(slept.cpu), turns, (time.process_time() - begun) * 1e3


def line(what: str, figure: str, bound: str = "") -> None:
    """Print a row of the table."""
    print(f"{what:<34} {figure:<92} {bound}".rstrip(), flush=True)


def put_line(what: str, results: Sequence[tuple[Inserts, float]], bound: str = "") -> None:
    """Print what it took to put messages: the medians."""
    columns = zip(*(result for result, _ in results), strict=True)
    rate, longest_ms, size, files = (statistics.median(column) for column in columns)
    beyond, grown = f"{size - VALUE_BYTES:.1f} B beyond", statistics.median(grown for _, grown in results)
    figure = f"{rate:>7,.0f} a CPU second, {beyond}, {files:,.0f} files, +{grown:.0f} MiB"
    line(what, f"{figure}, longest batch {longest_ms:.0f} ms wall", bound)


WAYS: dict[str, tuple[Callable[[Path, int], Inserts], str, str | None]] = {
    "batches of 500": (in_store, ">= 300,000; <= 45 B; <= 100 MB", None),
    "one by one": (partial(in_store, one_by_one=True), ">= 200,000", None),
    "SQLite, index": (in_sqlite, "", ">= 7"),
    "SQLite, key in order": (partial(in_sqlite, ordered=True), "", ">= 7"),
    "first design": (in_linked, "", ""),
}
"""By name: the way, what it shall keep to, and what the ratio of the first to it shall."""


def beside(messages: int, rounds: int) -> None:
    """Print what it takes to put messages in each way, in turns."""
    results: dict[str, list[tuple[Inserts, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, (work, *_) in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                results[name].append(in_child(work, Path(folder), messages))
    for name, (_, bound, ratio_bound) in WAYS.items():
        put_line(f"{messages:,}, {name}", results[name], bound)
        if ratio_bound is not None:
            pairs = zip(results["batches of 500"], results[name], strict=True)
            ratios = sorted(ours.per_second / other.per_second for (ours, _), (other, _) in pairs)
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            line("  ratio of batches of 500 to it", ratio, ratio_bound)


def starts(messages: int, rounds: int) -> None:
    """Print what a start takes, and an idle hour."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put_line(f"{messages:,}, batches of 500", [in_child(in_store, folder, messages)], WAYS["batches of 500"][1])
        closed = [in_child(started, folder) for _ in range(rounds)]
        (slept_ms, turns, turned_ms), _ = in_child(idle, folder)
        killed = [(in_child(put_until_killed, folder), in_child(started, folder)) for _ in range(rounds)]
    size = killed[0][0][0]
    for what, results in (("a close", closed), (f"a kill, {size:.0f} MiB of log", [start for _, start in killed])):
        cpu, wall = (statistics.median(column) for column in zip(*(times for times, _ in results), strict=True))
        grown = statistics.median(grown for _, grown in results)
        line(f"start after {what}", f"{cpu:.3f} s, wall {wall:.3f} s, +{grown:.0f} MiB", "< 0.2 s")
    line("an idle hour", f"{slept_ms:.3f} ms in {turns} turns; {turned_ms:.1f} ms in 3,600 turns", "< 1 ms")


def read_outs() -> None:
    """Print what it takes to read out a second with many messages, and an hour with very many."""
    for seconds, bound, load_bound in ((1, "< 0.4 s", ""), (3_600, "", "< 0.6 s")):
        with tempfile.TemporaryDirectory() as folder:
            in_child(in_store, Path(folder), SECONDS[seconds], seconds * 1_000)
            calls, grown = in_child(read_out, Path(folder), seconds)
        total = sum(sum(each.cpu) for each in calls.values()) / 1e3
        line(f"{SECONDS[seconds]:,} due in {seconds:,} s", f"{total:.3f} s, +{grown:.0f} MiB", bound)
        for name, each in calls.items():
            line(f"  {name}", f"{each}", load_bound if name == "load" else "< 20 ms")
    with tempfile.TemporaryDirectory() as folder:
        in_child(in_linked, Path(folder), SECONDS[1], 1_000)
        seconds_of_cpu, _ = in_child(linked_read_out, Path(folder))
        line("  first design, 1 s, not settled", f"{seconds_of_cpu:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="held at a start and in an idle hour")
    parser.add_argument("--beside", type=int, default=1_000_000, help="put in each of the ways, if not more than those")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads spin when they begin, which is not the store's cost
    beside(min(args.messages, args.beside), args.rounds)
    read_outs()
    starts(args.messages, args.rounds)


if __name__ == "__main__":
    main()
