"""What glibc's allocator is told and asked; other C libraries are left alone. Standard library only."""

from __future__ import annotations

import ctypes

LARGE_BYTES = 512 << 10
"""Blocks from here on are pages of their own, which go back to the kernel when they are freed."""
KEPT_BYTES = 4 << 20
"""So much free memory at its end the heap keeps."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def give_back_large() -> None:
    """Have the kernel get back each large block that is freed, from now on.

    By itself glibc takes the first block of 16 MiB that is freed for a sign that such blocks are needed all the time:
    from then on they come from the heap, where small blocks between them keep their memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def allocated_bytes() -> int:
    """What the process has allocated; 0 where its C library cannot tell (glibc before 2.33)."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
