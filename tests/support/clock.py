"""Another clock for a program: libfaketime, fetched by pip into `.cache` at its first use. Starts nothing."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.jars import ROOT

_PACKAGE = "libfaketime==3.0.1"
"""Its wheel has the library built, for Linux on x86_64."""


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
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "libfaketime.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (found := list(folder.rglob("libfaketime.so.1"))):
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), _PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = list(folder.rglob("libfaketime.so.1"))
            if done.returncode or not found:
                raise RuntimeError(f"pip could not fetch {_PACKAGE}: {done.stderr[-2000:]}")
    return found[0]
