"""Signals as a flag that a main loop reads. The caller decides what a stop means."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from sidecar.errors import EXIT_OK


class Signals:
    """Handles SIGTERM and SIGINT: the first requests a stop, the second ends the process at once, like a crash.

    Before the first call of `stop_asked` there is nothing to stop in order: until then, the first signal ends the
    process with exit code 0. SIGHUP requests a reload, or a stop from a terminal that is closed.
    """

    def __init__(self) -> None:
        self._asked = self._heard = self._changed = False

    def install(self) -> None:
        """Take over the signals; only on the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, self._on_signal if sys.stderr.isatty() else self._on_change)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._heard:
            os._exit(EXIT_OK)
        if self._asked:
            os._exit(128 + number)
        self._asked = True

    def _on_change(self, _number: int, _: FrameType | None) -> None:
        self._changed = True

    def reload_asked(self) -> bool:
        """Whether to read the configuration again; each request is reported once."""
        changed, self._changed = self._changed, False
        return changed

    def stop_asked(self) -> bool:
        """Whether to stop; after the first call, signals only set this flag."""
        self._heard = True
        return self._asked
