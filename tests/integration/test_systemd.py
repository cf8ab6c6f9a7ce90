"""The systemd units are valid, locked down, and what the daemon's starts speaks the notify protocol."""

from __future__ import annotations

import configparser
import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.cli.spark import spark
from sidecar.errors import (
    EXIT_CANNOT_CREATE,
    EXIT_CONFIG,
    EXIT_INTERNAL,
    EXIT_NO_PERMISSION,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
)
from tests.support.jars import ROOT
from tests.support.kafka import Broker
from tests.support.process import Daemon, wait_until

UNIT = ROOT / "systemd" / "consumer-sidecar@.service"
SPARK_UNIT = ROOT / "systemd" / "consumer-sidecar-spark@.service"
DROP_IN = ROOT / "systemd" / "override.conf.example"
INGEST = ROOT / "systemd" / "ingest.conf.example"
UNITS = pytest.mark.parametrize("path", [UNIT, SPARK_UNIT], ids=["daemon", "spark"])
EXPOSURE_MAX = 1.5
DRAIN_TIMEOUT_S = 20
SINCE_254 = ("RestartSteps", "RestartMaxDelaySec")


def service(path: Path, drop_in: Path | None = None) -> configparser.SectionProxy:
    """The unit's `[Service]` section; of a repeated key the last line."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read([path, *([drop_in] if drop_in else [])])
    return parser["Service"]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `systemd-analyze`.

    Raises:
        RuntimeError: It is not installed.
    """
    program = shutil.which("systemd-analyze")
    if program is None:
        raise RuntimeError("systemd-analyze is missing; install it with: apt-get install systemd")
    return subprocess.run([program, "--no-pager", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("path", "drop_in"), [(UNIT, None), (UNIT, DROP_IN), (SPARK_UNIT, None), (SPARK_UNIT, INGEST)])
def test_systemd_understands_every_line(tmp_path: Path, path: Path, drop_in: Path | None) -> None:
    """`systemd-analyze verify` has nothing to say about a unit, with an example drop-in or without."""
    unit = tmp_path / path.name.replace("@", "@orders")
    unit.write_text(path.read_text().replace("/opt/consumer-sidecar/bin/sidecar", "/bin/true"))
    if drop_in:
        (tmp_path / f"{unit.name}.d").mkdir()
        shutil.copy(drop_in, tmp_path / f"{unit.name}.d" / "override.conf")
    said = analyze("verify", "--man=no", str(unit)).stderr.splitlines()
    mine = [line for line in said if str(tmp_path) in line or unit.name in line]
    assert [line for line in mine if not any(key in line for key in SINCE_254)] == []


@UNITS
def test_the_exposure_is_small(path: Path) -> None:
    """`systemd-analyze security` rates the unit at 1.5 or less, without a running systemd."""
    done = analyze("security", "--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", str(path))
    assert "Overall exposure level" in done.stdout, done.stderr
    exposure = float(done.stdout.split("Overall exposure level")[1].split(":")[1].split()[0])
    assert exposure <= EXPOSURE_MAX, done.stdout
    assert done.returncode == 0


@UNITS
def test_exit_codes_that_a_person_must_cure_end_the_restarts(path: Path) -> None:
    """Usage, credentials and configuration are not tried again; what heals by itself is."""
    final = {int(code) for code in service(path)["RestartPreventExitStatus"].split()}
    assert service(path)["Restart"] == "always"
    assert final == {EXIT_USAGE, EXIT_NO_PERMISSION, EXIT_CONFIG}
    assert not final & {EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_CANNOT_CREATE}


@UNITS
def test_the_drain_ends_before_systemd_loses_patience(path: Path) -> None:
    """Stopping takes `drain_timeout` and a commit; systemd waits longer than that, and tells the main process alone."""
    assert int(service(path)["TimeoutStopSec"]) >= DRAIN_TIMEOUT_S + 10
    assert service(path)["KillMode"] == "mixed"


@pytest.mark.parametrize(("drop_in", "job"), [(None, "run"), (INGEST, "ingest")])
def test_the_unit_starts_a_job_of_the_program(drop_in: Path | None, job: str) -> None:
    """A drop-in chooses the job; the folder is that of the daemon with the same name."""
    found = service(SPARK_UNIT, drop_in)
    assert found["Environment"].split()[0] == f"JOB={job}"
    assert found["ExecStart"].split()[1:] == ["spark", "${JOB}", "-c", "/etc/sidecar/%i.yaml"]
    assert job in spark.commands
    assert found["StateDirectory"] == service(UNIT)["StateDirectory"]


@contextlib.contextmanager
def notify_socket(folder: Path) -> Iterator[socket.socket]:
    """What systemd listens on for a service of `Type=notify`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "notify"))
        sock.settimeout(0)
        yield sock


def test_the_daemon_tells_systemd_that_it_is_ready_lives_and_stops(
    kafka: Broker, topic: str, group: str, tmp_path: Path
) -> None:
    """`READY=1` comes at the start, `WATCHDOG=1` goes on while it runs, `STOPPING=1` comes with SIGTERM."""
    config = {
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap, "group_id": group, "topics": [topic]}},
        "tags": {"from": {"header": "tag"}},
        "sink": {"http": {"url": "http://127.0.0.1:9/ingest"}},
    }
    said: list[str] = []
    with notify_socket(tmp_path) as sock:

        def count(word: str) -> int:
            with contextlib.suppress(BlockingIOError):
                while True:
                    said.extend(sock.recv(65_536).decode().splitlines())
            return said.count(word)

        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        with Daemon(tmp_path, config, env=env) as daemon:
            wait_until(lambda: count("READY=1"), 20, "READY=1", detail=daemon.log_tail)
            books = "STATUS=0 consumed, 0 delivered, 0 in flight, lag "
            told = lambda: count("") or any(line.startswith(books) for line in said)  # noqa: E731
            wait_until(told, 20, "the books on a line", detail=daemon.log_tail)
            wait_until(lambda: count("WATCHDOG=1") >= 3, 20, "three signs of life", detail=daemon.log_tail)
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait(0)
            assert count("STOPPING=1")
