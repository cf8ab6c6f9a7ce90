"""Runs the command with a thrower: on SIGUSR1 an exception is raised in the threads of a name, wherever they stand.

`python -m tests.support.throwing NAME run -c FILE`. A thread that waits in C raises it when the wait ends; where some
share their work, the first that takes any. With `+NAME` each thread whose name begins so raises it as its first step.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sidecar import threads

RUNNING = ("writer", "sorter", "sink-deadlines", "history", "admin")
"""Threads that run all the time."""
IDS = {"by": {"header": "id"}}
DELTA: dict[str, Any] = {"path": "TABLE", "maintenance": {"optimize": "1m"}}
KAFKA: dict[str, dict[str, Any]] = {
    "slow-start": {},
    "look-up": {},
    "sender": {},
    "memory": {},
    "dead-letters": {},
    "reload": {},
    "sender-retiring": {},
    "ledger": {"dedup": {**IDS, "ledger": {"sqlite": {}}}},
    "delay": {"delay": {"store": "local"}},
    "restore": {"delay": {"store": "changelog"}},
    "delay-left": {"delay": {"store": "changelog"}},
    "sink-delta": {"sink": {"delta": DELTA}},
    "sink-upkeep": {"sink": {"delta": DELTA}},
}
"""Threads that begin with a cause, and what must be configured for them."""
POSTGRESQL = ("delay-append",)
ROCKETMQ = {"progress": "remoting", "dial": "remoting", "grpc": "grpc", "grpc-call": "grpc"}
"""Those of RocketMQ's clients."""


class UnexpectedError(Exception):
    """No code knows it."""


def fail_at_once(begin: str) -> None:
    """Have threads with such names fail when they start."""
    run = threads._run

    def fails() -> None:
        raise UnexpectedError

    def run_or_fail(target: Callable[[], object], name: str) -> None:
        run(fails if name.startswith(begin) else target, name)

    threads._run = run_or_fail


def main() -> None:
    """Run the command."""
    name = sys.argv.pop(1)
    if name.startswith("+"):
        threads.END_S = 2.0
        fail_at_once(name[1:])
    else:
        throw_on_signal(name)
    from sidecar.cli import main as command

    command()


def throw_on_signal(name: str) -> None:
    """Throw once the signal comes, and such threads are there: `NAME`, or `NAME-0` and so on."""
    read, write = os.pipe()
    signal.signal(signal.SIGUSR1, lambda *_: os.write(write, b"!"))

    def throw() -> None:
        os.read(read, 1)
        error = ctypes.py_object(UnexpectedError)
        thrown = 0
        while not thrown:  # a thread that is dead or not begun yet gets nothing
            time.sleep(0.01)
            for thread in threading.enumerate():
                if thread.ident is not None and re.fullmatch(rf"{name}(-\d+)?", thread.name):
                    thrown += ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)

    threading.Thread(target=throw, name="thrower", daemon=True).start()


if __name__ == "__main__":
    main()
