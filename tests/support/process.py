"""Runs programs, above all the daemon, as subprocesses that die with pytest; waits on conditions, never for luck."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML

from sidecar.config.model import Settings
from sidecar.runtime.lane import refusal
from tests.support.jars import ROOT

T = TypeVar("T")

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
# The death signal is sent when the *thread* that forked ends: children come from one that lives as long as pytest.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
# Below the kernel's ephemeral range, so that no client's socket takes the port while its server is down, and apart from
# those of `sidecar demo`. A RocketMQ broker also takes two below and one above.
_PORTS = range(10_002, 20_000, 4)
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_OURS = _PORTS[_WORKER * len(_PORTS) // _WORKERS : (_WORKER + 1) * len(_PORTS) // _WORKERS]
"""A port is bound seconds after it was found, and not while its server is down: no other worker may find it then."""
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on or was given, and that the kernel gives to no outgoing connection."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            sock = stack.enter_context(socket.socket())
            port = random.choice(_OURS)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                if port not in _given:
                    _given.add(port)
                    found.append(port)
        return found


def spawn(
    command: Sequence[str],
    output: IO[bytes],
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    cwd: str | Path = ROOT,
    **user: Any,
) -> subprocess.Popen[bytes]:
    """Start a program that is killed when this process dies, however it dies.

    Args:
        command: Program and arguments.
        output: Takes stderr, and stdout unless `stdout` says otherwise.
        env: Added to this process's environment.
        stdout: As for `subprocess.Popen`.
        cwd: Likewise.
        user: Likewise: `user`, `group`, `extra_groups`.
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            preexec_fn=_die_with_parent,
            **user,
        )

    return _SPAWNER.submit(start).result()


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def wait_until(
    condition: Callable[[], T], timeout_s: float, what: str, *, detail: Callable[[], object] | None = None
) -> T:
    """Ask until the answer is true, and give it back.

    Args:
        condition: Asked every 20 ms; an exception of it ends the waiting.
        timeout_s: Seconds of patience.
        what: What is waited for, as the failure says it.
        detail: Asked once on failure: what else to show.

    Raises:
        AssertionError: The time is over; the last answer is in the message.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            more = f"\n{detail()}" if detail else ""
            raise AssertionError(f"waited {timeout_s:g} s in vain: {what} (last answer: {answer!r}){more}")
        time.sleep(0.02)


def tail(path: Path, *, lines: int = 40) -> str:
    """The last lines of a file for a failure message; empty when there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-lines:])


def last_words(daemon: Daemon, code: int, within_s: float = 30.0) -> str:
    """Start the daemon, which ends with this exit code and without a traceback: the last lines of its log."""
    daemon.start()
    daemon.wait(code, within_s)
    said = tail(daemon.log_path, lines=6)
    assert "Traceback" not in said, said
    return said


def missing(text: str, *words: str) -> list[str]:
    """Which of these a text does not name."""
    return [word for word in words if word not in text]


def write_config(path: Path, config: Mapping[str, Any]) -> Path:
    """Write a configuration as YAML, and give its path back."""
    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(dict(config), file)
    return path


@contextlib.contextmanager
def ended_after(members: Iterable[Daemon]) -> Iterator[None]:
    """None of these daemons runs after the block, whatever happens in it; an error has the ends of their logs."""
    with contextlib.ExitStack() as stack:
        for member in members:
            stack.push(member)
        yield


def http_get(url: str, *, timeout_s: float = 2.0) -> tuple[int, bytes]:
    """Status and body of a GET; status 0 when nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def on_lane(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration, with the way to read Kafka of `SIDECAR_TEST_LANE`: `off`, or `on` where the lane can."""
    kafka, way = config.get("source", {}).get("kafka"), os.environ.get("SIDECAR_TEST_LANE")
    if not way or not isinstance(kafka, Mapping) or "lane" in kafka:
        return config
    try:
        can = not refusal(Settings.model_validate({"state": {"dir": "/nowhere"}, **config}))
    except ValidationError:
        return config
    return {**config, "source": {"kafka": {**kafka, "lane": way if can else "off"}}}


class Daemon:
    """`sidecar run` as a process: its own admin port, its log in a file, killed when the block ends.

    Args:
        folder: Holds the configuration file, the log and, unless the configuration names one, the state.
        config: The configuration; `state.dir`, `admin.listen` and a JSON log are filled in where they are missing.
        name: Of the files, when several daemons share the folder.
        env: Added to the environment.
        program: Module and arguments before `run`.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        name: str = "sidecar",
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("sidecar",),
    ) -> None:
        self.log_path = folder / f"{name}.log"
        filled = {
            "state": {"dir": str(folder / f"{name}-state")},
            "admin": {"listen": f"127.0.0.1:{free_ports(1)[0]}"},
            "log": {"format": "json"},
        }
        config = on_lane(config)
        self.config = {**config, **{key: {**value, **config.get(key, {})} for key, value in filled.items()}}
        self.config_path = write_config(folder / f"{name}.yaml", self.config)
        self.admin_url = f"http://{self.config['admin']['listen']}"
        self._env = dict(env or {})
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            error.add_note(self.log_tail())
        if self.running:
            self.kill9()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._process is not None, "the daemon was never started"
        return self._process

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def state_dir(self) -> Path:
        """The state folder of the configuration."""
        return Path(self.config["state"]["dir"])

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start it, once more after it ended; the log is appended to; this is added to its environment."""
        assert not self.running, "the daemon runs already"
        with self.log_path.open("ab") as log:
            command = [sys.executable, "-m", *self._program, "run", "-c", str(self.config_path)]
            self._process = spawn(command, log, env={**self._env, **(env or {})})

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return when `/readyz` answers 200.

        Raises:
            AssertionError: The process ended, or the time is over; the end of the log is in the message.
        """

        def ready() -> bool:
            assert self.running, (
                f"the daemon ended with {self.process.returncode} before it was ready\n{self.log_tail()}"
            )
            return http_get(f"{self.admin_url}/readyz")[0] == 200

        wait_until(ready, timeout_s, "the daemon is ready", detail=self.log_tail)
        kafka = YAML(typ="safe").load(self.config_path)["source"].get("kafka", {})
        if kafka.get("lane") in ("on", "off"):
            assert self.status()["lane"]["used"] == (kafka["lane"] == "on"), self.status()["lane"]

    def status(self) -> dict[str, Any]:
        """The body of `/status`.

        Raises:
            AssertionError: No answer 200.
        """
        code, body = http_get(f"{self.admin_url}/status", timeout_s=5.0)
        assert code == 200, f"/status answered {code}\n{self.log_tail()}"
        return dict(json.loads(body))

    def metrics(self) -> str:
        """The text of `/metrics`."""
        return http_get(f"{self.admin_url}/metrics", timeout_s=5.0)[1].decode()

    def kill9(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.terminate()

    def wait(self, code: int = 0, timeout_s: float = 30.0) -> None:
        """Wait for the end of the process.

        Raises:
            AssertionError: It goes on after `timeout_s`, or ended with another exit code than `code`.
        """
        wait_until(lambda: not self.running, timeout_s, "the daemon ends", detail=self.log_tail)
        assert self.process.returncode == code, f"exit code {self.process.returncode}, not {code}\n{self.log_tail()}"

    def stop(self, timeout_s: float = 30.0) -> None:
        """SIGTERM, and an exit code 0."""
        self.terminate()
        self.wait(0, timeout_s)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log events of all lives, or those called `name`; lines that are not JSON objects are left out."""
        found: list[dict[str, Any]] = []
        if self.log_path.exists():
            for line in self.log_path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and name in (None, event.get("event")):
                        found.append(event)
        return found

    def log_tail(self) -> str:
        """The end of the log, for a failure message."""
        return f"--- end of {self.log_path.name} ---\n{tail(self.log_path)}"
