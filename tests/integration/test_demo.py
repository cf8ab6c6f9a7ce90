"""`sidecar demo` as a person runs it: its books, its exit code, and what it leaves behind when it ends or is ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import spawn, tail, wait_until

DEMO = [sys.executable, "-m", "sidecar", "demo", "--messages"]
PATIENCE_S = 120.0


def processes(folder: Path) -> dict[int, str]:
    """Ids and command lines of living processes that name the folder: broker, receiver and daemon all do."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # ended meanwhile
            continue
        if str(folder) in line:
            found[int(path.parent.name)] = line
    return found


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    """The folder for temporary files that a demo gets."""
    folder = tmp_path / "temp"
    folder.mkdir()
    return folder


@pytest.fixture
def running(tmp_path: Path, temp: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A demo in mid-flow: the daemon is at work."""
    with (tmp_path / "out").open("wb") as out:
        demo = spawn([*DEMO, "200000"], out, env={"TMPDIR": str(temp)})
    log = tmp_path / "out"
    try:
        wait_until(lambda: "delivered" in log.read_text(), 60, "the flow begins", detail=lambda: tail(log))
        assert len(processes(temp)) == 3
        yield demo
    finally:
        demo.kill()
        demo.wait()


def test_the_books_balance(tmp_path: Path, temp: Path) -> None:
    """A whole demo ends with 0 and the books of all its messages, and leaves neither a process nor a file."""
    out = tmp_path / "out"
    with out.open("wb") as file:
        demo = spawn([*DEMO, "20000"], file, env={"TMPDIR": str(temp), "COLUMNS": "40"})
    wait_until(lambda: demo.poll() is not None, PATIENCE_S, "the demo ends", detail=lambda: tail(out))
    said = out.read_text()
    assert demo.returncode == 0, said
    assert said.splitlines()[-1] == "lost 0, delivered twice 0: the books balance"
    numbers = {name: int(text.replace(",", "")) for name, text in re.findall(r"^(\w[\w -]*?) +([\d,]+)\b", said, re.M)}
    ends = ("delivered", "duplicates dropped", "filtered", "dead-lettered")
    assert numbers["produced"] == numbers["consumed"] == sum(numbers[end] for end in ends) == 20_000
    assert all(numbers[end] for end in ends)
    assert "kill -9" in said
    assert "\x1b" not in said
    assert (processes(temp), list(temp.iterdir())) == ({}, [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_it(running: subprocess.Popen[bytes], temp: Path, number: signal.Signals) -> None:
    """However a demo is ended, its three processes end and its folder goes."""
    os.kill(running.pid, number)
    running.wait(60)
    wait_until(lambda: not processes(temp), 15, "its processes end", detail=lambda: processes(temp))
    wait_until(lambda: not list(temp.iterdir()), 15, "its folder goes", detail=lambda: list(temp.rglob("*")))


def test_a_dead_child_is_told(running: subprocess.Popen[bytes], tmp_path: Path, temp: Path) -> None:
    """When the receiver dies, the demo does not wait for ever: it says so and ends with another code than 0."""
    (receiver,) = [pid for pid, line in processes(temp).items() if "receiver.py" in line]
    os.kill(receiver, signal.SIGKILL)
    wait_until(lambda: running.poll() is not None, PATIENCE_S, "the demo ends", detail=lambda: tail(tmp_path / "out"))
    assert running.returncode == 69
    assert "the receiver ended with exit code -9" in (tmp_path / "out").read_text()
    assert (processes(temp), list(temp.iterdir())) == ({}, [])


@pytest.mark.parametrize("count", ["999", "200001", "many"])
def test_a_wrong_number_is_a_usage_error(count: str) -> None:
    """What the mock broker cannot hold, and what is no number, is refused before anything starts."""
    ran = subprocess.run([*DEMO, count], capture_output=True, text=True, check=False)
    assert ran.returncode == 64
    assert "--messages" in ran.stderr
