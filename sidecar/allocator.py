"""Settings and statistics of glibc's allocator; no effect with other C libraries. Standard library only."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

LARGE_BYTES = 512 << 10
"""Size from which blocks are pages of their own, which return to the kernel when they are freed."""
KEPT_BYTES = 4 << 20
"""Free memory that the heap keeps at its end."""
ARENAS = 4
"""Heaps that threads share. By default there are 8 for each processor, and each keeps pages for a few small blocks: in
half an hour of rebalances and outages, those of a daemon with 40 threads grew to 24 MiB, and four of them to 7."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def give_back_large() -> None:
    """Return each large block to the kernel when it is freed, from now on.

    By default, glibc takes the first freed block of 16 MiB as a sign that such blocks are needed all the time: from
    then on they come from the heap, where small blocks between them keep their memory.
    """
    _set({_MMAP_THRESHOLD: LARGE_BYTES, _TRIM_THRESHOLD: KEPT_BYTES})


def share_heaps() -> None:
    """Let threads share `ARENAS` heaps, from now on; call it before they start."""
    _set({_ARENA_MAX: ARENAS})


def _set(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def allocated_bytes() -> int:
    """The bytes that the process has allocated; 0 if its C library does not report them (glibc before 2.33)."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
