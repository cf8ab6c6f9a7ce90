"""Runs the command with a thrower: on SIGUSR1 an exception is raised in the thread of a name, wherever it stands.

`python -m tests.support.throwing NAME run -c FILE`. A thread that waits in C raises it when the wait ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time


class UnexpectedError(Exception):
    """No code knows it."""


def main() -> None:
    """Run the command."""
    name = sys.argv.pop(1)
    read, write = os.pipe()
    signal.signal(signal.SIGUSR1, lambda *_: os.write(write, b"!"))

    def throw() -> None:
        os.read(read, 1)
        while True:  # a thread that is dead or not begun yet gets nothing
            for thread in threading.enumerate():
                if thread.name == name and thread.ident is not None:
                    error = ctypes.py_object(UnexpectedError)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)
                    return
            time.sleep(0.01)

    threading.Thread(target=throw, name="thrower", daemon=True).start()
    from sidecar.cli import main as command

    command()


if __name__ == "__main__":
    main()
