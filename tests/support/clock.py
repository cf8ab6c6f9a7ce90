"""Another clock for a program: one that a test sets while it runs, or libfaketime. Starts nothing.

libfaketime is fetched by pip into `.cache` at its first use.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.jars import ROOT, locked
from tests.support.with_clock import AHEAD

_PACKAGE = "libfaketime==3.0.1"
"""Its wheel has the library built, for Linux on x86_64."""


class Clock:
    """The clocks of a daemon, which may be set while it runs.

    Args:
        path: A file, made here; `tests.support.with_clock` follows it.
        wall_s: Seconds by which the wall clock is ahead.
    """

    def __init__(self, path: Path, wall_s: float = 0.0) -> None:
        self.path = path
        self.wall_s = wall_s
        """Seconds by which the wall clock is ahead of this host's."""
        self._monotonic_s = 0.0
        self._write()

    @property
    def program(self) -> tuple[str, ...]:
        """What `Daemon` starts with these clocks."""
        return ("tests.support.with_clock", str(self.path))

    @property
    def now_ms(self) -> int:
        """What the wall clock shows, in milliseconds since the epoch."""
        return (time.time_ns() + round(self.wall_s * 1e9)) // 1_000_000

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; how long things last is as before."""
        self.wall_s += seconds
        self._write()

    def go_on(self, seconds: float) -> None:
        """Let time pass: both clocks go on."""
        self._monotonic_s += seconds
        self.step(seconds)

    def _write(self) -> None:
        ahead = AHEAD.pack(round(self.wall_s * 1e9), round(self._monotonic_s * 1e9))
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.write(ahead)


def shifted(seconds: float) -> Mapping[str, str]:
    """The environment of a program whose clock is so far ahead, or behind; how long it waits is as ever.

    Raises:
        RuntimeError: pip could not fetch the library.
    """
    return {
        "LD_PRELOAD": str(_library()),
        "FAKETIME": f"{seconds:+.0f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DISABLE_SHM": "1",
    }


def _library() -> Path:
    folder = ROOT / ".cache" / "libfaketime"
    with locked(folder.parent / "libfaketime.lock"):
        if not (found := list(folder.rglob("libfaketime.so.1"))):
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), _PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = list(folder.rglob("libfaketime.so.1"))
            if done.returncode or not found:
                raise RuntimeError(f"pip could not fetch {_PACKAGE}: {done.stderr[-2000:]}")
    return found[0]
