"""Runs the command line in a pseudo-terminal of a given width, as a person sees it. Starts no daemon."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress


def in_terminal(columns: int, *arguments: str, rows: int = 50, **environ: str) -> str:
    """What the command prints on a screen of this size, without colors and movements of the cursor."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    size = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "sidecar", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**size, "TERM": "xterm", **environ},
    )
    os.close(theirs)
    printed = bytearray()
    with suppress(OSError):  # EIO: the command has ended
        while data := os.read(ours, 65_536):
            printed += data
    os.close(ours)
    process.wait(60)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode().replace("\r\n", "\n"))
