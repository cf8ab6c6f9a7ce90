"""Runs the command as root without the right to pass by the rights of files: those of another user are closed to it.

`python -m tests.support.unprivileged run -c FILE`. Another user might not even read the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_CAPBSET_DROP = 24
DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER = 1, 2, 3


def main() -> None:
    """Give the rights up, for good, and run the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    for right in (DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER):
        if libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot give a right up")
    os.execv(sys.executable, [sys.executable, "-m", "sidecar", *sys.argv[1:]])


if __name__ == "__main__":
    main()
