"""`sidecar demo` over HTTP as a person runs it: its books, its exit code, what it leaves behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.demo import Demo
from tests.support.process import wait_until

PATIENCE_S = 120.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Demo]:
    """A demo in mid-flow: the daemon is at work."""
    with Demo(tmp_path, "--messages", "200000", "--sink", "http") as demo:
        demo.await_said("delivered", 60)
        wait_until(lambda: len(demo.processes()) == 3, 60, "broker, receiver and daemon")
        yield demo


def test_the_books_balance(tmp_path: Path) -> None:
    """Without Java a demo ends with 0 and the books over HTTP, says what is skipped, and leaves no process or file."""
    with Demo(tmp_path, "--messages", "20000", java=str(tmp_path)) as demo:
        code = demo.wait(PATIENCE_S)
    said, numbers = demo.said(), demo.numbers()
    assert code == 0, said
    assert "\nlost 0, delivered twice 0: the books balance\n" in said
    ends = ("delivered", "duplicates dropped", "filtered", "dead-lettered")
    assert numbers["produced"] == numbers["consumed"] == sum(numbers[end] for end in ends) == 20_000
    assert all(numbers[end] for end in ends)
    assert "kill -9" in said
    assert "\nskipped   Java is missing" in said
    assert "\x1b" not in said
    assert (demo.processes(), list(demo.temp.iterdir())) == ({}, [])


@pytest.mark.proof
def test_the_books_balance_on_rocketmq(tmp_path: Path) -> None:
    """With `--source rocketmq` it starts a real node and ends it, and leaves nothing behind."""
    with Demo(tmp_path, "--messages", "10000", "--sink", "http", "--source", "rocketmq") as demo:
        code = demo.wait(PATIENCE_S)
    said, numbers = demo.said(), demo.numbers()
    assert code == 0, said
    assert "\nlost 0, delivered twice 0: the books balance\n" in said
    assert numbers["produced"] == numbers["consumed"] == 10_000
    assert (demo.processes(), list(demo.temp.iterdir())) == ({}, [])


@pytest.mark.proof
def test_delayed_messages_are_shown(tmp_path: Path) -> None:
    """With `--delay` messages are due within seconds; none is early, and the books balance after the kill."""
    with Demo(tmp_path, "--messages", "10000", "--delay") as demo:
        code = demo.wait(PATIENCE_S)
    said = demo.said()
    assert code == 0, said
    assert "\nlost 0, delivered twice 0: the books balance\n" in said
    assert "none early; half at most" in " ".join(said.split())


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.proof) for number in (signal.SIGTERM, signal.SIGINT))],
)
def test_nothing_outlives_it(running: Demo, number: signal.Signals) -> None:
    """However a demo is ended, its three processes end and its folder goes."""
    running.signal(number)
    running.wait(60)
    assert running.leaves_nothing(15)


def test_a_dead_child_is_told(running: Demo) -> None:
    """When the receiver dies, the demo does not wait for ever: it says so and ends with another code than 0."""
    (receiver,) = [pid for pid, line in running.processes().items() if "receiver.py" in line]
    os.kill(receiver, signal.SIGKILL)
    assert running.wait(PATIENCE_S) == 69
    assert "the receiver ended with exit code -9" in running.said()
    assert (running.processes(), list(running.temp.iterdir())) == ({}, [])


@pytest.mark.parametrize("count", ["999", "200001", "many"])
def test_a_wrong_number_is_a_usage_error(count: str) -> None:
    """What the mock broker cannot hold, and what is no number, is refused before anything starts."""
    command = [sys.executable, "-m", "sidecar", "demo", "--messages", count]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 64
    assert "--messages" in ran.stderr
