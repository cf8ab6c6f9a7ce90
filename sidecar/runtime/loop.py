"""Drives a pipeline of the core: makes the inbox's calls, lets it step, and performs its effects by a table."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import structlog

from sidecar import threads
from sidecar.core.delivery.delivery import DeliveryPipeline
from sidecar.core.effects import Report
from sidecar.runtime.worker import Call

Perform: TypeAlias = Callable[[Any], object]
"""Performs an effect, or begins to: its end goes to the inbox."""

TAKE_S = 0.05
"""Approximate limit of one `take`: restores fill the inbox as fast as it is emptied."""

log = structlog.get_logger()


class PipelineLoop:
    """One pipeline and its inbox; only for the thread that owns both.

    Args:
        performers: One for each effect of the pipeline.
    """

    def __init__(
        self, pipeline: DeliveryPipeline, inbox: queue.SimpleQueue[Call], performers: Mapping[type, Perform]
    ) -> None:
        missing = [effect.__name__ for effect in pipeline.EFFECTS if effect not in performers]
        assert not missing, f"no performer of {', '.join(missing)}"
        self._pipeline = pipeline
        self._inbox = inbox
        self._performers = performers

    def take(self, timeout_s: float = 0.0) -> None:
        """Make the inbox's calls, waiting this long for the first; the next `take` continues with the rest.

        Raises:
            ThreadFailedError: A background thread failed.
        """
        threads.check()
        until_s = time.monotonic() + timeout_s + TAKE_S
        while time.monotonic() < until_s:
            try:
                call = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
            except queue.Empty:
                return
            timeout_s = 0.0
            call(time.monotonic() * 1000)

    def step(self, now_ms: float) -> bool:
        """Let the pipeline step, and perform its effects; return whether there were any."""
        effects = self._pipeline.step(now_ms)
        for effect in effects:
            self._performers[type(effect)](effect)
        return bool(effects)


def write_report(report: Report) -> None:
    """Write a log event of the core."""
    getattr(log, report.level)(report.event, **report.fields)
