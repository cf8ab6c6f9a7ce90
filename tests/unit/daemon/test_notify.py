"""What systemd hears over its socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.daemon.lifecycle import Notifier


@pytest.fixture(params=["file", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """An address as systemd gives it, and the socket behind it."""
    name = str(tmp_path / "notify") if request.param == "file" else f"@sidecar-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        heard.settimeout(5)
        yield name, heard


def test_systemd_hears_each_step(listener: tuple[str, socket.socket]) -> None:
    """Ready, status, watchdog and stopping arrive as systemd reads them, a status on one line."""
    name, heard = listener
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready()
    notifier.status("12 partitions,\nlag 5 caf\udce9")
    notifier.watchdog()
    notifier.stopping()
    assert [heard.recv(1024) for _ in range(4)] == [
        b"READY=1",
        b"STATUS=12 partitions, lag 5 caf?",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


@pytest.mark.parametrize("path", ["", "/nowhere/notify", "@sidecar-nobody-listens", "relative"])
def test_nobody_listening_is_no_error(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without systemd, or with its socket gone, the daemon does not notice, and makes nothing in its place."""
    monkeypatch.chdir(tmp_path)
    notifier = Notifier({"NOTIFY_SOCKET": path})
    notifier.ready()
    notifier.status("fine")
    assert list(tmp_path.iterdir()) == []


def test_who_listens_later_hears_what_comes_then(tmp_path: Path) -> None:
    """What was said to nobody is gone, and is no reason to say no more."""
    path = tmp_path / "notify"
    notifier = Notifier({"NOTIFY_SOCKET": str(path)})
    notifier.ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(5)
        notifier.watchdog()
        assert heard.recv(1024) == b"WATCHDOG=1"


def test_a_full_socket_never_blocks(listener: tuple[str, socket.socket]) -> None:
    """When systemd does not read, the main loop goes on."""
    notifier = Notifier({"NOTIFY_SOCKET": listener[0]})
    for _ in range(5_000):
        notifier.watchdog()
    assert listener[1].recv(64) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_interval_is_half_of_what_is_allowed(environ: dict[str, str], seconds: float | None) -> None:
    """Only a watchdog meant for this process counts, and it is fed twice as often as it must."""
    assert Notifier(environ).watchdog_seconds == seconds
