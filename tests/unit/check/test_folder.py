"""The checks of this host: folders, the lock, the admin address."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sidecar.check import folder as checked
from sidecar.check.findings import Finding
from sidecar.check.folder import check_folder, check_state
from sidecar.config.model import Settings
from sidecar.state.folder import StateFolder
from tests.support.process import free_ports, missing


def settings(folder: Path, listen: str = "off") -> Settings:
    """A configuration with this state folder."""
    kafka = {"bootstrap_servers": "h:1", "group_id": "g", "topics": ["t"]}
    more: dict[str, Any] = {"state": {"dir": str(folder)}, "admin": {"listen": listen}}
    return Settings.model_validate({"source": {"kafka": kafka}, "sink": {"console": {}}, **more})


def look(folder: Path, daemon: str = "") -> Finding:
    """What is found of the state folder."""
    (finding,) = check_state(settings(folder), lambda: daemon)
    return finding


def test_a_folder_that_is_there_is_left_as_it_was(tmp_path: Path) -> None:
    """It can be written, and the free space is told."""
    finding = look(tmp_path)
    assert finding.ok
    assert missing(finding.text, "writable", "GB free") == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_not_created(tmp_path: Path) -> None:
    """It will be, at the start."""
    finding = look(tmp_path / "a" / "b")
    assert (finding.ok, finding.text.split(",")[0]) == (True, "will be created")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """Exit 73 where a part of the path is a file."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        finding = look(path)
        assert (finding.exit_code, missing(finding.text + finding.cure, "not a folder", "state.dir")) == (73, [])


def test_a_folder_without_the_right_to_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 73 with the user; the system is asked, since tests may run as root."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    finding = look(tmp_path / "below")
    assert (finding.exit_code, missing(finding.text + finding.cure, str(tmp_path), f"user id {os.geteuid()}")) == (
        73,
        [],
    )


def test_a_read_only_file_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 73, and no word of the user's rights, which would not help."""
    monkeypatch.setattr(checked, "is_read_only", lambda path: path == tmp_path)
    finding = look(tmp_path / "below")
    assert (finding.exit_code, missing(finding.text + finding.cure, str(tmp_path), "read-only", "StateDirectory")) == (
        73,
        [],
    )


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 73 with what is left."""
    monkeypatch.setattr(checked, "_free_bytes", lambda _: 5_000_000)
    finding = look(tmp_path)
    assert (finding.exit_code, missing(finding.text, "only 5 MB are free")) == (73, [])


def test_a_folder_that_another_process_has_is_told(tmp_path: Path) -> None:
    """Exit 73 with the process, and it keeps the folder; afterwards the folder is free."""
    with contextlib.closing(StateFolder(tmp_path)):
        finding = look(tmp_path)
        assert finding.exit_code == 73
        assert missing(finding.text + finding.cure, f"in use by pid {os.getpid()}", "set state.dir") == []
    assert look(tmp_path).ok
    StateFolder(tmp_path).close()


def test_the_daemon_that_has_the_folder_is_named(tmp_path: Path) -> None:
    """That it runs is no problem, and the admin address is its own."""
    (port,) = free_ports(1)
    with contextlib.closing(StateFolder(tmp_path)), socket.create_server(("127.0.0.1", port)):
        (finding,) = check_state(settings(tmp_path, f"127.0.0.1:{port}"), lambda: "the daemon")
    assert (finding.ok, finding.text.endswith("in use by the daemon")) == (True, True)


def test_a_daemon_with_another_folder_is_not_taken_for_ours(tmp_path: Path) -> None:
    """A second process of the group would find its port taken."""
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        folder, listen = check_state(settings(tmp_path, f"127.0.0.1:{port}"), lambda: "the daemon")
    assert "the daemon" not in folder.text
    assert (listen.exit_code, missing(listen.text + listen.cure, "in use", "admin.listen")) == (69, [])


def test_a_free_admin_address_is_told(tmp_path: Path) -> None:
    """Nobody listens there afterwards either."""
    (port,) = free_ports(1)
    _, listen = check_state(settings(tmp_path, f"127.0.0.1:{port}"), lambda: "")
    assert listen == Finding(f"admin.listen 127.0.0.1:{port}", "free")
    socket.create_server(("127.0.0.1", port)).close()


def test_the_folder_of_a_sink_is_looked_at_too(tmp_path: Path) -> None:
    """Its finding names its own key."""
    (tmp_path / "file").touch()
    (finding,) = check_folder("sink.spark", tmp_path / "file", "sink.spark.landing")
    assert (finding.exit_code, finding.cure) == (73, "set sink.spark.landing to a folder")
