"""Checks run side by side within a time limit, and their findings decide the exit code."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator

import pytest

from sidecar.check.findings import Check, Finding, exit_code, gather
from sidecar.cli.file.check import _show
from sidecar.errors import StateError

GOOD = Finding("a", "there")


def test_findings_come_in_the_order_of_the_checks() -> None:
    """The second check is done first, and is told second."""
    done = threading.Event()

    def slow() -> Iterator[Finding]:
        assert done.wait(10)
        yield Finding("slow", "there")

    def quick() -> Iterator[Finding]:
        yield Finding("quick", "there")
        done.set()

    found = gather([Check("slow", slow), Check("quick", quick)])
    assert [finding.subject for finding in found] == ["slow", "quick"]


def test_a_check_that_hangs_is_told_as_such() -> None:
    """All of them together take no longer than the limit; what was found before stays."""
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield GOOD
        never.wait(60)

    begun_s = time.monotonic()
    found = gather([Check("one", hangs), Check("two", hangs)], total_s=0.3)
    assert time.monotonic() - begun_s < 5
    assert [(finding.subject, finding.exit_code) for finding in found] == [("a", 0), ("one", 69), ("a", 0), ("two", 69)]
    assert found[1].text == "no answer within 0.3 s"


def test_an_error_of_the_daemon_is_a_finding() -> None:
    """Its text, cure and exit code are those that the daemon would end with."""

    def refused() -> Iterator[Finding]:
        yield GOOD
        raise StateError("no room", hint="make room")

    assert gather([Check("folder", refused)]) == [GOOD, Finding("folder", "no room", "make room", 73)]


def test_a_bug_in_a_check_is_no_finding() -> None:
    """It is raised, so that it is reported as any other bug."""

    def broken() -> Iterator[Finding]:
        yield GOOD
        raise KeyError("x")

    with pytest.raises(KeyError):
        gather([Check("folder", broken)])


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 69], 69), ([69, 73], 73), ([73, 77, 69], 77), ([69, 77, 78], 78), ([], 0)]
)
def test_the_worst_finding_is_the_exit_code(codes: list[int], code: int) -> None:
    """First what a person must change: the file, then rights, then the folder, then what is away."""
    assert exit_code(Finding("a", "b", "c", one) for one in codes) == code


@pytest.mark.parametrize(("encoding", "good", "bad"), [("utf-8", "✓", "✗"), ("ascii", "ok  ", "FAIL")])
def test_a_finding_is_marked_as_the_terminal_can_show_it(
    monkeypatch: pytest.MonkeyPatch, encoding: str, good: str, bad: str
) -> None:
    """With words where it has no such characters; a cure is on a line of its own."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    monkeypatch.setattr("sys.stdout", out)
    _show(GOOD)
    _show(Finding("b", "gone", "make it", 69))
    assert out.buffer.getvalue().decode(encoding) == (f"{good} a: there\n{bad} b: gone\n  Try: make it\n")
