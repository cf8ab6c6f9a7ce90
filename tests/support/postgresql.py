"""A real PostgreSQL as a process; it may be stopped, killed and started again. Knows no ledger."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from tests.support.jars import postgresql_server
from tests.support.kafka import unique
from tests.support.process import free_ports, spawn, tail, wait_until

USER = "sidecar"
PASSWORD = "pass:word'/ @"
_START_TIMEOUT_S = 180.0


class Database:
    """A server that runs, perhaps not ours.

    Args:
        url: Of a database that may be written to.
        password: Of its user.
    """

    def __init__(self, url: str, password: str = "") -> None:
        self.url = url
        self.password = password

    def connect(self) -> psycopg.Connection[Any]:
        """A connection."""
        more: dict[str, Any] = {"password": self.password} if self.password else {}
        return psycopg.connect(self.url, autocommit=True, **more)

    def schema(self) -> str:
        """The URL with an empty schema of its own, so that tests have tables of their own."""
        name = unique("ledger").replace("-", "_")
        with self.connect() as db:
            db.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}{'&' if '?' in self.url else '?'}options=-csearch_path%3D{name}"

    def delay_section(self, url: str = "") -> dict[str, Any]:
        """The section `delay` with this database; in a schema of its own, unless a URL is given."""
        place = {"url": url or self.schema()}
        password = {"password": self.password} if self.password else {}
        return {"store": "postgresql", "postgresql": place | password}


class PostgresqlServer(Database):
    """A server of its own, started with the block. Its data is in a folder of its own: root may not run it."""

    def __init__(self) -> None:
        (self._port,) = free_ports(1)
        super().__init__(f"postgresql://{USER}@127.0.0.1:{self._port}/postgres", PASSWORD)
        self._folder = Path(tempfile.mkdtemp(prefix="sidecar-postgresql-", dir="/tmp"))
        self._server = postgresql_server()
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            # Copied, since what root has unpacked may stand where nobody else can look.
            self._server = Path(shutil.copytree(self._server, self._folder / "server"))
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": ()}
            shutil.chown(self._folder, "nobody", "nogroup")

    def __enter__(self) -> PostgresqlServer:
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data = str(self._folder / "data")
        command = [str(self._server / "bin" / "initdb"), "-D", data, "-U", USER, "-A", "scram-sha-256", "-E", "UTF8"]
        command += ["--no-locale", f"--pwfile={secret}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._as)
        assert done.returncode == 0, done.stdout + done.stderr
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            error.add_note(tail(self._folder / "log"))
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 50,
        }
        command = [str(self._server / "bin" / "postgres"), "-D", str(self._folder / "data")]
        command += [f"--{name}={value}" for name, value in options.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = spawn(command, log, cwd="/", **self._as)
        wait_until(self._answers, _START_TIMEOUT_S, "PostgreSQL answers", detail=lambda: tail(self._folder / "log"))

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), self.connect() as db:
            return db.execute("SELECT 1").fetchone() == (1,)
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT drops all connections, SIGQUIT is a crash."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(30)
