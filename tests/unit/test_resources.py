"""Errors that come from a limit of the system: told as such, with the limit's name, and no others are."""

from __future__ import annotations

import errno
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.errors import StateError
from sidecar.resources import shortage
from tests.support.jars import ROOT


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "no more threads can be started"),
        (MemoryError(), "no more memory is available"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "no more memory is available"),
        (ValueError("Failed to create thread: Resource temporarily unavailable (11)"), "no more threads"),
    ],
    ids=["files", "threads", "memory", "memory of a call", "threads of a client"],
)
def test_a_shortage_is_told_by_its_limit(error: Exception, says: str) -> None:
    """Also where it is the cause of another error; the exit code is 71, and there is something to do."""
    outer = StateError("state folder: cannot lock it")
    outer.__cause__ = error
    for one in (error, outer):
        found = shortage(one)
        assert found is not None
        assert says in str(found)
        assert found.exit_code == 71
        assert found.hint.startswith("raise")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "No such file"),
        BlockingIOError(errno.EAGAIN, "again"),
        KeyError(),
        sqlite3.OperationalError("unable to open database file"),
    ],
)
def test_other_errors_are_no_shortage(error: Exception) -> None:
    """A file that is missing, a lock that is held and a mistake of ours are told as they are."""
    assert shortage(error) is None


CONFIG = """\
source: {{kafka: {{bootstrap_servers: "localhost:1", group_id: g, topics: [t], start_timeout: 100ms}}}}
sink: {{console: {{}}}}
admin: {{listen: "127.0.0.1:0"}}
state: {{dir: {folder}}}
"""


@pytest.mark.parametrize("limit", [6, 7, 8, 10, 12])
def test_a_daemon_with_too_few_files_says_so(limit: int, tmp_path: Path) -> None:
    """Wherever it runs out of descriptors at its start, it ends with 71 and the limit's name and value."""
    (tmp_path / "c.yaml").write_text(CONFIG.format(folder=tmp_path / "state"))

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    command = [sys.executable, "-m", "sidecar", "run", "-c", str(tmp_path / "c.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=few, timeout=60)
    assert done.returncode == 71, done.stderr
    assert f"the limit is {limit} (ulimit -n)" in done.stderr
    assert "LimitNOFILE=" in done.stderr


def test_a_daemon_with_too_little_address_space_says_so(tmp_path: Path) -> None:
    """Where no thread can be started any more it ends with 71, and names the limits that are set."""
    (tmp_path / "c.yaml").write_text(CONFIG.format(folder=tmp_path / "state"))

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (140 << 20, 140 << 20))

    command = [sys.executable, "-m", "sidecar", "run", "-c", str(tmp_path / "c.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=little, timeout=60)
    assert done.returncode == 71, done.stderr
    assert f"{(140 << 20) // 1024} (ulimit -v, KiB of address space)" in done.stderr
