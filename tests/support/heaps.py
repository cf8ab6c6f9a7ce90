"""The heaps of a process's threads."""

from __future__ import annotations

from pathlib import Path

_BYTES = 64 << 20


def heaps(pid: int | str = "self") -> int:
    """The number of heaps that glibc made beside the first one; each begins at a multiple of 64 MiB, without a file."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return sum(len(line) == 5 and int(line[0].split("-")[0], 16) % _BYTES == 0 for line in lines)
