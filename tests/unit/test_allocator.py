"""Freed memory goes back to the kernel."""

from __future__ import annotations

import subprocess
import sys

from sidecar.allocator import ARENAS

PROGRAM = """
import gc, psutil
from sidecar.allocator import give_back
{call}
blocks, small = [], []
for _ in range(6):
    for _ in range(4):
        blocks.append(b"x" * (16 << 20))
        small += [bytes(600) for _ in range(1000)]
    blocks.clear()
print(psutil.Process().memory_info().rss >> 20)
"""


def resident_mib(call: str) -> int:
    """What a process has that held large blocks among small ones, and let go of the large ones."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(call=call)], capture_output=True, check=True)
    return int(done.stdout)


def test_large_blocks_are_given_back() -> None:
    """All of them, whatever stands between them; by itself glibc keeps some."""
    kept = resident_mib("")
    assert resident_mib("give_back()") < kept - 16


THREADS = """
import threading
from sidecar.allocator import give_back
{call}
began, may_end = threading.Barrier(33), threading.Event()
def hold():
    held = bytes(3_000)
    began.wait()
    may_end.wait()
for _ in range(32):
    threading.Thread(target=hold).start()
began.wait()
starts = [int(line.split("-")[0], 16) for line in open("/proc/self/maps") if len(line.split()) == 5]
print(sum(start % (64 << 20) == 0 for start in starts))
may_end.set()
"""


def heaps(call: str) -> int:
    """The heaps that glibc makes for 32 threads, beside the first; each begins at a multiple of 64 MiB."""
    done = subprocess.run([sys.executable, "-c", THREADS.format(call=call)], capture_output=True, check=True)
    return int(done.stdout)


def test_threads_share_few_heaps() -> None:
    """Each keeps pages of its own; by itself glibc makes 8 for each processor."""
    assert heaps("give_back()") <= ARENAS < heaps("")
