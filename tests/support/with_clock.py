"""`python -m tests.support.with_clock FILE …`: `sidecar …` with the clocks that a `Clock` sets while it runs.

Only what Python reads by the module `time` is moved: `datetime.now`, and so the times in log and status, are not, nor
is librdkafka, nor how long anything sleeps.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path

AHEAD = struct.Struct("=qq")
"""Nanoseconds by which the wall clock and the monotonic clock are ahead."""


def move_clocks(path: Path) -> None:
    """Make the clocks of this process follow the file."""
    with path.open("rb") as file:
        ahead = mmap.mmap(file.fileno(), AHEAD.size, access=mmap.ACCESS_READ)
    wall_ns, monotonic_ns = time.time_ns, time.monotonic_ns

    def moved_wall_ns() -> int:
        return wall_ns() + int(AHEAD.unpack_from(ahead)[0])

    def moved_monotonic_ns() -> int:
        return monotonic_ns() + int(AHEAD.unpack_from(ahead)[1])

    time.time_ns, time.time = moved_wall_ns, lambda: moved_wall_ns() / 1e9
    time.monotonic_ns, time.monotonic = moved_monotonic_ns, lambda: moved_monotonic_ns() / 1e9


if __name__ == "__main__":
    move_clocks(Path(sys.argv.pop(1)))
    from sidecar.cli import main

    main()
