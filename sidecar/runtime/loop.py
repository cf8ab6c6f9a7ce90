"""Drives a pipeline of the core: hands it the inbox's mail, lets it step, and performs its effects, each by a table."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import structlog

from sidecar import threads
from sidecar.core.delivery.delivery import DeliveryPipeline
from sidecar.core.effects import Report

Perform: TypeAlias = Callable[[Any], object]
"""Performs an effect, or begins to: its end goes to the inbox."""
Receive: TypeAlias = Callable[[Any, float], object]
"""Handles a message of the inbox, at this time in monotonic milliseconds."""

TAKE_S = 0.05
"""Approximate limit of one `take`: restores fill the inbox as fast as it is emptied."""

log = structlog.get_logger()


class PipelineLoop:
    """One pipeline and its inbox; only for the thread that owns both.

    Args:
        performers: One for each effect of the pipeline.
        receivers: One for each kind of message that threads put into the inbox.
    """

    def __init__(
        self,
        pipeline: DeliveryPipeline,
        inbox: queue.SimpleQueue[Any],
        performers: Mapping[type, Perform],
        receivers: Mapping[type, Receive],
    ) -> None:
        missing = [effect.__name__ for effect in pipeline.EFFECTS if effect not in performers]
        assert not missing, f"no performer of {', '.join(missing)}"
        self._pipeline = pipeline
        self._inbox = inbox
        self._performers = performers
        self._receivers = receivers

    def take(self, timeout_s: float = 0.0) -> None:
        """Handle the inbox's messages, waiting this long for the first; the next call continues with the rest.

        Raises:
            ThreadFailedError: A background thread failed.
        """
        threads.check()
        until_s = time.monotonic() + timeout_s + TAKE_S
        while time.monotonic() < until_s:
            try:
                mail = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
            except queue.Empty:
                return
            timeout_s = 0.0
            self._receivers[type(mail)](mail, time.monotonic() * 1000)

    def step(self, now_ms: float) -> bool:
        """Let the pipeline step, and perform its effects; return whether there were any."""
        effects = self._pipeline.step(now_ms)
        for effect in effects:
            self._performers[type(effect)](effect)
        return bool(effects)


def write_report(report: Report) -> None:
    """Write a log event of the core."""
    getattr(log, report.level)(report.event, **report.fields)
