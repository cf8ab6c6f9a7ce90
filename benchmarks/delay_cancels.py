"""Cancelling held messages by their names: python -m benchmarks.delay_cancels [MESSAGES] [HOURS].

Puts messages with names, due within some hours, into a `PartitionStore`, opens it anew, and cancels some: how long each
search takes, its longest step, during which the main thread of a daemon does nothing else, and the memory. Times are of
the CPU, because other programs may use it too.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from benchmarks.delay import in_child
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import NAME_HEADER
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.headers import pack_headers
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import HOUR_MS, Held

MESSAGES, HOURS = 1_000_000, 720
VALUE = bytes(150)
START_MS = 500_000 * HOUR_MS
AT_ONCE = 500
SEARCHED = (1, 500, 5_000)
ALL = 1 << 62


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def _rows(first: int, hours: int, random: Random, *, is_named: bool) -> list[Held]:
    dues = [START_MS + random.randrange(hours * HOUR_MS) for _ in range(AT_ONCE)]
    header = NAME_HEADER if is_named else "another-header--"
    return [
        Held(
            due << SEQUENCE_BITS,
            origin,
            0,
            START_MS,
            NO_TAGS,
            b"key",
            pack_headers([("tag", b"paid"), (header, b"order-%d" % origin)]),
            VALUE,
        )
        for origin, due in enumerate(dues, first)
    ]


def fill(path: Path, messages: int, hours: int, is_named: bool) -> float:
    """Put messages; return how many in a second of CPU time, without that for making them."""
    store = PartitionStore(path)
    number, random, cpu_s = store.number(b"p"), Random(1), 0.0
    for first in range(0, messages, AT_ONCE):
        rows = _rows(first, hours, random, is_named=is_named)
        began = time.process_time()
        store.put(number, rows)
        store.writes.sync()
        cpu_s += time.process_time() - began
    store.close()
    return messages / cpu_s


def search(store: PartitionStore, what: str, names: dict[bytes, int]) -> None:
    """Cancel, and print what it took."""
    before, began, longest_s, ended = _rss_mib(), time.process_time(), 0.0, 0
    steps: Iterator[int] = map(len, store.cancel_named(store.number(b"p"), 0, names))
    while True:
        step = time.process_time()
        count = next(steps, -1)
        longest_s = max(longest_s, time.process_time() - step)
        if count < 0:
            break
        ended += count
    more = _rss_mib() - before
    took_ms = (time.process_time() - began) * 1e3
    print(
        f"{what:<32} {took_ms:8.1f} ms, longest step {longest_s * 1e3:5.1f} ms, {ended} cancelled, {more:.0f} MiB more"
    )


def main(messages: int = MESSAGES, hours: int = HOURS) -> None:
    """Measure."""
    random = Random(2)
    for is_named in (False, True):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            path = Path(folder) / "delay"
            rate, _ = in_child(fill, path, messages, hours, is_named)
            nbytes = sum(each.stat().st_size for each in path.rglob("*") if each.is_file()) / messages
            began = time.perf_counter()
            store = PartitionStore(path)
            opened_ms = (time.perf_counter() - began) * 1e3
            print(f"{messages} messages in {hours} hours, {'with' if is_named else 'without'} names")
            print(f"put: {rate:,.0f} a CPU second; {nbytes:.1f} bytes of disk each; start: {opened_ms:.0f} ms")
            search(store, "first search, after a start", {b"unknown": ALL})
            for count in SEARCHED:
                names = {b"order-%d" % random.randrange(messages): ALL for _ in range(count)}
                search(store, f"{count} names", names)
            store.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
