"""The receivers in `examples/receivers` as processes: what each needs is fetched and built once, in `.cache`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.jars import ROOT, executable, locked
from tests.support.process import free_ports, spawn, tail, wait_until

EXAMPLES = ROOT / "examples" / "receivers"
CACHE = ROOT / ".cache" / "receivers"
WAIT_S = 60


class Example(NamedTuple):
    """How one is started."""

    command: Callable[[Path, int], list[str]]
    """The command, for its folder and a port."""
    build: tuple[str, ...] = ()
    """Run once in a copy of its folder."""
    needs: tuple[str, ...] = ()
    """Programs."""
    is_in_postgresql: bool = False


EXAMPLES_BY_NAME = {
    "flask_sqlite.py": Example(
        lambda folder, port: [sys.executable, "-m", "flask", "--app", "flask_sqlite", "run", "--port", str(port)]
    ),
    "fastapi_postgresql.py": Example(
        lambda folder, port: [sys.executable, "-m", "uvicorn", "fastapi_postgresql:app", "--port", str(port)],
        is_in_postgresql=True,
    ),
    "express": Example(
        lambda folder, port: ["node", "receiver.js"],
        ("npm", "install", "--silent", "--no-audit", "--no-fund"),
        ("npm",),
    ),
    "go": Example(
        lambda folder, port: [str(folder / "receiver")],
        ("go", "build", "-o", "receiver", "."),
        ("go",),
        is_in_postgresql=True,
    ),
    "spring": Example(
        lambda folder, port: [executable("java"), "-Xmx256m", "-jar", str(folder / "target" / "receiver-1.jar")],
        ("mvn", "-q", "-B", "package"),
        ("java", "mvn"),
    ),
}


def built(name: str) -> Path:
    """The folder from which an example runs; its name follows the content of the example.

    Raises:
        RuntimeError: A program is missing, or the build failed.
    """
    source, example = EXAMPLES / name, EXAMPLES_BY_NAME[name]
    if not source.is_dir():
        return EXAMPLES
    files = sorted(path for path in source.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    with locked(CACHE / "lock"):
        if not folder.is_dir():
            if missing := [program for program in example.needs if shutil.which(program) is None]:
                raise RuntimeError(f"the example {name} needs {missing[0]!r}, which is not installed")
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(source, partial)
            # Where npm cannot fetch a built package of SQLite, it builds one with the headers beside node.
            env = {**os.environ, "npm_config_nodedir": str(Path(shutil.which("node") or "/usr/bin/node").parents[1])}
            done = subprocess.run(example.build, cwd=partial, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                raise RuntimeError(f"the example {name} was not built: {(done.stdout + done.stderr)[-4000:]}")
            partial.rename(folder)
    return folder


class Running:
    """An example that runs: `url`, and its process."""

    def __init__(self, name: str, folder: Path, database: str) -> None:
        (port,) = free_ports(1)
        home, example = built(name), EXAMPLES_BY_NAME[name]
        self.log = folder / "log"
        env = {**os.environ, "PORT": str(port), "DB": database or str(folder / "orders.db")}
        with self.log.open("ab") as log:
            self.process = spawn(example.command(home, port), log, cwd=home, env=env)
        self.base = f"http://127.0.0.1:{port}"
        self.url = f"{self.base}/ingest"
        wait_until(self._answers, WAIT_S, f"{name} answers", detail=lambda: tail(self.log))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.count() is not None
        return False

    def count(self) -> tuple[int, int]:
        """Rows that it has, and different ones."""
        with urllib.request.urlopen(f"{self.base}/count", timeout=10) as answer:
            told = json.load(answer)
        return told["rows"], told["distinct"]

    def kill9(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(name: str, folder: Path, database: str = "") -> Iterator[Running]:
    """An example, killed at the end.

    Args:
        name: Its name in `EXAMPLES_BY_NAME`.
        folder: For its log and its data.
        database: The URL of PostgreSQL, for one that needs it.
    """
    one = Running(name, folder, database)
    try:
        yield one
    finally:
        one.kill9()
