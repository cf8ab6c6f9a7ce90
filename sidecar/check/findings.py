"""Findings, and running all checks side by side. Knows no subject of a check."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from sidecar import threads
from sidecar.errors import EXIT_CANNOT_CREATE, EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_OK, EXIT_UNAVAILABLE, SidecarError

TOTAL_S = 12.0
"""Limit of all checks together, also if nothing answers."""
WORST_FIRST = (EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_CANNOT_CREATE, EXIT_UNAVAILABLE)


class Finding(NamedTuple):
    """A condition that holds or does not."""

    subject: str
    text: str
    cure: str = ""
    """The remedy; empty if the condition holds."""
    exit_code: int = EXIT_OK

    @property
    def ok(self) -> bool:
        return self.exit_code == EXIT_OK


Look: TypeAlias = Callable[[], Iterable[Finding]]


class Check(NamedTuple):
    """A function that examines one subject, on a thread of its own."""

    subject: str
    look: Look


def failed(subject: str, error: SidecarError) -> Finding:
    """The finding for an error that the daemon would end with."""
    return Finding(subject, str(error), error.hint, error.exit_code)


def gather(
    checks: Sequence[Check], total_s: float = TOTAL_S, unexpected: Callable[[str, Exception], Finding] | None = None
) -> list[Finding]:
    """Run all checks at once; return their findings up to the deadline, in the order of the checks.

    Args:
        total_s: The deadline, in seconds.
        unexpected: Makes a finding of the subject and an error that is a bug, which is raised without it.
    """
    runs = [_Run(check, unexpected) for check in checks]
    for run in runs:
        run.start()
    deadline_s = time.monotonic() + total_s
    return [finding for run in runs for finding in run.found(deadline_s, total_s)]


def exit_code(findings: Iterable[Finding]) -> int:
    """The exit code of the process: 0, or that of the problem to be solved first."""
    codes = {finding.exit_code for finding in findings} - {EXIT_OK}
    return next((code for code in WORST_FIRST if code in codes), max(codes, default=EXIT_OK))


class _Run:
    """A check on its thread, which does not delay the end of the process."""

    def __init__(self, check: Check, unexpected: Callable[[str, Exception], Finding] | None) -> None:
        self._check = check
        self._unexpected = unexpected
        self._found: list[Finding] = []
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threads.start(self._run, f"check {self._check.subject}")

    def _run(self) -> None:
        try:
            for finding in self._check.look():
                self._found.append(finding)
        except SidecarError as error:
            self._found.append(failed(self._check.subject, error))
        except Exception as error:  # noqa: BLE001
            self._error = error

    def found(self, deadline_s: float, total_s: float) -> Iterator[Finding]:
        """The findings up to the deadline; raises what a bug in the check raised."""
        assert self._thread is not None
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        is_late = self._thread.is_alive()
        yield from tuple(self._found)
        if is_late:
            text = f"no answer within {total_s:g} s"
            yield Finding(self._check.subject, text, "check the network and the name server", EXIT_UNAVAILABLE)
        if self._error is None:
            return
        if self._unexpected is None:
            raise self._error
        yield self._unexpected(self._check.subject, self._error)
