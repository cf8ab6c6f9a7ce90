"""Freed memory goes back to the kernel."""

from __future__ import annotations

import subprocess
import sys

from sidecar.allocator import ARENAS

PROGRAM = """
import gc, psutil
from sidecar.allocator import give_back_large
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
    assert resident_mib("give_back_large()") < kept - 16


THREADS = """
import threading
from sidecar.allocator import share_heaps
from tests.support.heaps import heaps
{call}
began, may_end = threading.Barrier(33), threading.Event()
def hold():
    held = bytes(3_000)
    began.wait()
    may_end.wait()
for _ in range(32):
    threading.Thread(target=hold).start()
began.wait()
print(heaps())
may_end.set()
"""


def heaps_of_threads(call: str) -> int:
    """Those of 32 threads."""
    done = subprocess.run([sys.executable, "-c", THREADS.format(call=call)], capture_output=True, check=True)
    return int(done.stdout)


def test_threads_share_few_heaps() -> None:
    """Each keeps pages of its own; by itself glibc makes 8 for each processor."""
    assert heaps_of_threads("share_heaps()") <= ARENAS < heaps_of_threads("")
