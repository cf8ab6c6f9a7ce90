"""The demo's processes: started, watched, ended, and killed with the demo in any case. Knows no message.

Every wait raises `UnavailableError` if the process ends, or if the time is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import sidecar
from sidecar.errors import UnavailableError

STOP_S = 30.0
ANSWER_S = 30.0
TAIL_LINES = 15
_PORTS = range(20_000, 32_000)
"""Below the kernel's range for outgoing connections: no process takes a port between finding and using it."""
_PR_SET_PDEATHSIG = 1


class Child:
    """A Python process with its output in a file.

    Args:
        name: Name in messages, and of its log file.
        pipes: Whether stdin and stdout are pipes to here; such a process must end when its stdin does.
        env: Its environment; None for that of the demo.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        pipes: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        package = str(Path(sidecar.__file__).parents[1])
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else log,
                stderr=log,
                text=True,
                # Imports the same package as here, whatever the current folder contains.
                env={**(os.environ if env is None else env), "PYTHONSAFEPATH": "1", "PYTHONPATH": package},
                # Only the demo gets Ctrl-C, and ends the others in its own order. A separate group is killed as a
                # whole: a JVM with the Python process that started it.
                start_new_session=True,
                preexec_fn=None if pipes else die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        if not self.running:
            raise self.failed(f"ended with exit code {self.process.returncode}")

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise self.failed(f"ended with exit code {self.process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise self.failed(f"was not ready within {timeout_s:g} s")
            time.sleep(0.05)

    def ask(self, command: Any) -> dict[str, Any]:
        """Write a line of JSON and read one."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise self.failed("ended") from error
        return self.hear()

    def hear(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Read a line of JSON; like `ask` without a command."""
        assert self.process.stdout
        readable, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            raise self.failed("ended" if readable else f"said nothing for {timeout_s:g} s")
        return cast("dict[str, Any]", json.loads(line))

    def failed(self, what: str) -> UnavailableError:
        """An error that shows the end of the log."""
        return UnavailableError(f"the {self.name} {what}; its log ends with:\n{self.tail()}")

    def tail(self) -> str:
        """The end of the log, indented."""
        lines = self.log.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (nothing)"

    def kill(self) -> None:
        """Send SIGKILL to its group, and wait for the end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):  # the process did not read its input
                    pipe.close()

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        self.process.terminate()
        self.finish(STOP_S)

    def finish(self, timeout_s: float) -> None:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise self.failed(f"did not end within {timeout_s:g} s") from error
        if code:
            raise self.failed(f"ended with exit code {code}")


def free_port() -> int:
    """A loopback port without a listener."""
    while True:
        with socket.socket() as sock:
            port = random.choice(_PORTS)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def listens(port: int) -> bool:
    """Whether a process accepts connections on a loopback port."""
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
