"""What a command does whose output cannot be written: a full disk, a closed stream."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.jars import ROOT
from tests.support.letters import configure

SIDECAR = f"{ROOT}/.venv/bin/python -m sidecar"
ENDS = [
    ["--help"],
    ["schema"],
    ["validate", "-c", "orders.yaml"],
    ["msgid", "C0A8016400002A9F0000000000000B5C"],
    ["check", "--json", "-c", "orders.yaml"],
    ["init", "--kafka", "a", "--topics", "t", "--group", "g", "--url", "http://a/", "-o", "-"],
]


def shell(folder: Path, arguments: list[str], redirected: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command with streams as a shell redirects them."""
    line = f'exec {SIDECAR} "$@" {redirected}'
    environ |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return subprocess.run(
        ["sh", "-c", line, "sh", *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirected", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", ENDS, ids=" ".join)
def test_output_that_cannot_be_written_is_an_error(
    tmp_path: Path, arguments: list[str], redirected: str, unbuffered: str
) -> None:
    """The command ends with 74, and says what could not be written."""
    configure(tmp_path)
    ended = shell(tmp_path, arguments, redirected, PYTHONUNBUFFERED=unbuffered)
    reason = "No space left on device" if "full" in redirected else "Bad file descriptor"
    assert ended.stderr.startswith(f"error: cannot write to standard output: {reason}\n"), ended.stderr
    assert ended.returncode == 74


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"), [(["validate", "-c", "orders.yaml"], 0), (["status", "-c", "orders.yaml"], 69), (["x"], 64)]
)
def test_messages_that_cannot_be_written_change_no_outcome(
    tmp_path: Path, arguments: list[str], code: int, redirected: str
) -> None:
    """The exit code is that of what the command did, though nobody can read its messages."""
    configure(tmp_path, admin={"listen": "off"})
    assert shell(tmp_path, arguments, redirected).returncode == code


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", ">&-", "<&- >&- 2>&-"])
def test_a_daemon_needs_no_stream(tmp_path: Path, redirected: str) -> None:
    """It logs to stderr; if nobody can read it, or it has no stdout, it does all the same, and tells how it ended."""
    kafka = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["t"], "start_timeout": "1s"}
    configure(tmp_path, source={"kafka": kafka}, admin={"listen": "off"})
    ended = shell(tmp_path, ["run", "-c", "orders.yaml"], redirected)
    assert (ended.returncode, "bug" in ended.stderr) == (69, False)
    assert (tmp_path / "state" / "state.db").exists()


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """What the program opens later is not what it prints into."""
    program = "with guarded(): print(open('x', 'w').fileno() > 2, file=open('y', 'w'))"
    program = f"from sidecar.cli.shared.output import guarded\n{program}"
    line = f'exec {ROOT}/.venv/bin/python -c "$1" <&- >&- 2>&-'
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    assert subprocess.run(["sh", "-c", line, "sh", program], cwd=tmp_path, env=environ, check=False).returncode == 0
    assert (tmp_path / "y").read_text() == "True\n"


def test_what_the_locale_cannot_write_is_escaped(tmp_path: Path) -> None:
    """A terminal without UTF-8 gets another form of a character, and no error."""
    configure(tmp_path)
    ended = subprocess.run(
        [f"{ROOT}/.venv/bin/python", "-m", "sidecar", "status", "-c", "größe→.yaml"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 78
    assert b"gr\xf6\xdfe\\u2192" in ended.stderr
