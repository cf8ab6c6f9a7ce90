"""A standalone Spark cluster of plain processes, and a Connect server on it. What runs there is not decided here."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.support.process import free_ports, http_get, spawn, tail, wait_until
from tests.support.spark.hosts import Host, Hosts
from tests.support.spark.session import QUICK, write_defaults

_DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """A master and workers of one core each; the pip package has no scripts for it, but `spark-class` is enough.

    Each worker has an address of its own, since Spark copies no slow task to a host that has it already.

    Args:
        folder: Holds logs and what executors write.
        workers: How many.
        env: Added to the environment of all, executors and their Python workers too.
        hosts: Hosts of the workers, one each, in place of `workers` on this one.
    """

    def __init__(
        self, folder: Path, *, workers: int = 2, env: Mapping[str, str] | None = None, hosts: Hosts | None = None
    ) -> None:
        import pyspark

        self._folder = folder
        self._hosts = hosts.hosts if hosts else [Host(f"127.0.0.{number + 1}", ()) for number in range(workers)]
        self._address = hosts.address if hosts else "127.0.0.1"
        self._home = Path(pyspark.__file__).parent
        own = {
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
        }
        self._env = {**write_defaults(folder / "conf", jars=False, by_python=False), **own, **(env or {})}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port, self._ui = free_ports(2)
        self.url = f"spark://{self._address}:{self._port}"

    def __enter__(self) -> Cluster:
        try:
            address = ["--host", self._address, "--port", str(self._port), "--webui-port", str(self._ui)]
            self._start("master", "spark-class", f"{_DEPLOY}.master.Master", *address)
            for number, host in enumerate(self._hosts):
                work = self._folder / f"work{number}"
                place = ["--host", host.address, "--webui-port", "0", "--work-dir", str(work)]
                size = ["--cores", "1", "--memory", "1g"]
                worker = [f"{_DEPLOY}.worker.Worker", *place, *size, self.url]
                self._start(f"worker{number}", "spark-class", *worker, host=host)
            wait_until(self._is_up, 240, "all workers are registered", detail=lambda: self.log("worker0"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):  # a worker ends its executors on SIGTERM
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def connect(self) -> str:
        """The address of a Connect server whose driver runs on the cluster."""
        (port,) = free_ports(1)
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.executor.memory": "512m",
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = ["--master", self.url, "--class", server, *options, "spark-internal"]
        self._env["SPARK_DAEMON_MEMORY"] = "1g"  # the Connect server is one of Spark's daemons too
        server_process = self._start("connect", "spark-submit", *command)
        listens = f":{port:04X} "
        wait_until(
            lambda: (
                server_process.poll() is not None
                or listens in Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
            ),
            240,
            "the Connect server listens",
            detail=lambda: self.log("connect"),
        )
        assert server_process.poll() is None, self.log("connect")
        return f"sc://127.0.0.1:{port}"

    def executors_used(self) -> int:
        """How many workers have executors now."""
        return sum(worker["coresused"] > 0 for worker in self._state().get("workers", []))

    def sending(self, port: int) -> list[psutil.Process]:
        """The executors of which a Python worker has a connection to this port of loopback."""
        children = [child for process in self._processes for child in psutil.Process(process.pid).children()]
        return [executor for executor in children if any(_connected(one, port) for one in family(executor))]

    def log(self, name: str) -> str:
        """The end of a process's log, for a failure message."""
        return tail(self._folder / f"{name}.log", lines=60)

    def _start(self, name: str, program: str, *words: str, host: Host | None = None) -> subprocess.Popen[bytes]:
        prefix, own = (host.prefix, {"SPARK_LOCAL_IP": host.address}) if host and host.prefix else ((), {})
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [*prefix, str(self._home / "bin" / program), *words]
            self._processes.append(spawn(command, log, env={**self._env, **own, "SPARK_NO_DAEMONIZE": "1"}))
        return self._processes[-1]

    def _state(self) -> dict[str, list[dict[str, int]]]:
        status, body = http_get(f"http://127.0.0.1:{self._ui}/json/")
        is_json = status == 200 and body.startswith(b"{")  # until the master is whole its page answers for this too
        found: dict[str, list[dict[str, int]]] = json.loads(body) if is_json else {}
        return found

    def _is_up(self) -> bool:
        return self._state().get("aliveworkers") == len(self._hosts)  # type: ignore[comparison-overlap]


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it started; empty when it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _connected(process: psutil.Process, port: int) -> bool:
    """Whether it has a connection to this port, in its own network, which psutil does not look at."""
    folder, sockets = Path(f"/proc/{process.pid}"), set[str]()
    try:
        for descriptor in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets.add(str(descriptor.readlink()))
        lines = [line.split() for name in ("tcp", "tcp6") for line in (folder / "net" / name).read_text().splitlines()]
    except OSError:  # it has ended
        return False
    return any(words[2].endswith(f":{port:04X}") and f"socket:[{words[9]}]" in sockets for words in lines)
