"""Signals as a question that a main loop asks. What a stop means is decided by whoever asks."""

from __future__ import annotations

import os
import signal
from types import FrameType

from sidecar.errors import EXIT_OK


class Signals:
    """SIGTERM and SIGINT: the first asks for a stop, the second ends the process at once, as a crash would.

    Until `stop_asked` is called there is nothing to stop in order: then the first one ends it, with exit code 0.
    """

    def __init__(self) -> None:
        self._asked = self._heard = False

    def install(self) -> None:
        """Take over both signals; only on the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._heard:
            os._exit(EXIT_OK)
        if self._asked:
            os._exit(128 + number)
        self._asked = True

    def stop_asked(self) -> bool:
        """Whether to stop; from the first question on, a signal waits to be heard."""
        self._heard = True
        return self._asked
