"""`sidecar demo` as a process of a test: what it said, and what it started and has not ended."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from types import TracebackType

from tests.support.process import spawn, tail, wait_until


def java(folder: Path, commands: str) -> Path:
    """A home of Java, for JAVA_HOME, whose program is these commands of a shell."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\n{commands}\n")
    program.chmod(0o755)
    return folder


class Demo:
    """A demo, killed when the block ends.

    Args:
        folder: Its output goes there, and its folder for temporary files.
        arguments: Of the command.
        java: Takes the place of JAVA_HOME.
    """

    def __init__(self, folder: Path, *arguments: str, java: str | None = None) -> None:
        self._out, self.temp = folder / "out", folder / "temp"
        self.temp.mkdir()
        env = {"TMPDIR": str(self.temp), "COLUMNS": "40"} | ({} if java is None else {"JAVA_HOME": java})
        with self._out.open("wb") as out:
            self._process = spawn([sys.executable, "-m", "sidecar", "demo", *arguments], out, env=env)

    def __enter__(self) -> Demo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def said(self) -> str:
        """Its output so far."""
        return self._out.read_text()

    def numbers(self) -> dict[str, int]:
        """The numbers of the books by their names; the later one where two books have a name."""
        rows = re.findall(r"^(\w[\w -]*?) +([\d,]+)\b", self.said(), re.MULTILINE)
        return {name: int(text.replace(",", "")) for name, text in rows}

    def await_said(self, text: str, timeout_s: float) -> None:
        """Wait until it says this."""
        wait_until(lambda: text in self.said(), timeout_s, f"the demo says {text!r}", detail=lambda: tail(self._out))

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended."""
        poll = self._process.poll
        wait_until(lambda: poll() is not None, timeout_s, "the demo ends", detail=lambda: tail(self._out))
        return int(self._process.returncode)

    def processes(self) -> dict[int, str]:
        """Ids and command lines of living processes that name its folder: all that it starts do."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:  # ended meanwhile
                continue
            if str(self.temp) in line:
                found[int(path.parent.name)] = line
        return found

    def leaves_nothing(self, timeout_s: float) -> bool:
        """Whether its processes and files are gone within so many seconds."""
        wait_until(lambda: not self.processes(), timeout_s, "its processes end", detail=self.processes)
        files = self.temp.rglob
        return wait_until(lambda: not list(files("*")), timeout_s, "its folder goes", detail=lambda: list(files("*")))
