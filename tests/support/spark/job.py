"""`sidecar spark run` or `ingest` as a process of its own, to be started, stopped and killed with all its children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from sidecar.errors import EXIT_UNAVAILABLE
from tests.support.jars import ROOT
from tests.support.process import spawn, tail, wait_until, write_config
from tests.support.spark.session import MASTER, write_defaults


class SparkJob:
    """A driver of its own, with its JVM and workers in one process group.

    Args:
        folder: Holds configuration, log, checkpoint and state.
        config: The configuration; what is missing of `spark`, `state`, `admin` and `log` is filled in.
        master: Cores and attempts.
        once: Whether it takes what is there and ends.
        jars: Whether Spark has its connector.
        command: `run` or `ingest`.
        reader: Who reads Kafka.
        submit: By `spark-submit`, which is told the master, instead of `sidecar spark`.
        env: Added to the environment.
        properties: Added to Spark's.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        master: str = MASTER,
        once: bool = True,
        jars: bool = True,
        command: str = "run",
        reader: str = "connector",
        submit: bool = False,
        env: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.state = folder / "spark-state"
        filled = {
            "spark": {"checkpoint": str(folder / "checkpoint"), "reader": reader}
            | ({} if submit else {"master": master}),
            "state": {"dir": str(self.state)},
            "admin": {"listen": "off"},
            "log": {"format": "json"},
        }
        self.log_path = folder / "spark.log"
        defaults = write_defaults(folder / "conf", jars=jars, more=properties, by_python=not submit)
        self._env = {**defaults, **(env or {})}
        self._file = write_config(folder / "spark.yaml", {**filled, **config})
        if submit:
            application = ROOT / "sidecar" / "spark" / command / "__main__.py"
            started = [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                "--master",
                master,
                str(application),
            ]
        else:
            started = [sys.executable, "-m", "sidecar", "spark", command]
        self._command = ["setsid", *started, "-c", str(self._file), *["--once"] * once]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SparkJob:
        self._start()
        return self

    def _start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = spawn(self._command, log, env=self._env)

    def supervise(self) -> bool:
        """As a supervisor does, start it again when it ended with 69: Spark gives a Python worker 10 s to start."""
        assert self.process is not None
        code = self.process.poll()
        assert code in (None, EXIT_UNAVAILABLE, -signal.SIGKILL), self.log_tail()
        if code == EXIT_UNAVAILABLE:
            self._start()
        return True

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its workers."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM to the driver alone."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 240.0) -> int:
        """The exit code, once it has ended."""
        assert self.process is not None
        poll = self.process.poll
        wait_until(lambda: poll() is not None, timeout_s, "the job ends", detail=self.log_tail)
        return int(self.process.returncode)

    def run(self, timeout_s: float = 240.0) -> int:
        """Start, wait for the end, give the exit code back."""
        with self:
            return self.wait(timeout_s)

    def log_tail(self) -> str:
        """The end of the log, for a failure message."""
        return tail(self.log_path, lines=60)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log events of this name so far, of all lives."""
        found = []
        for line in self.log_path.read_bytes().splitlines() if self.log_path.exists() else ():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                found += [event] * (isinstance(event, dict) and event.get("event") == name)
        return found
