"""Log set-up: events as lines on stderr, limited repetitions, no payloads. Defines no event."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any

import structlog
from structlog.typing import EventDict, Processor

from sidecar.ops.outages import Outages

WINDOW_SECONDS = 10.0
LINES_MAX = 10
"""Limit of lines of one event and subject within a window."""
SUBJECTS_MAX = 1_000
TEXT_CHARS_MAX = 1_000
SUBJECT_FIELDS = ("group", "topic", "partition", "broker", "logger")
_QUIET = {
    "waitress.queue": logging.ERROR,
    "waitress": logging.WARNING,
    "urllib3": logging.ERROR,
    "kafka": logging.ERROR,
}


class RateLimiter:
    """Passes `LINES_MAX` lines of one event and subject per `WINDOW_SECONDS`; the next line has the number held back.

    Thread-safe; remembers at most `SUBJECTS_MAX` subjects.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[int, list[float]] = OrderedDict()
        """By hashes of subjects, whose texts may have any size."""

    def admit(self, *subject: Any) -> int | None:
        """The number of lines held back before this one; None if this one is to be held back too."""
        now, key = self._clock(), hash(subject)
        with self._lock:
            window = self._seen.setdefault(key, [now, 0, 0])
            self._seen.move_to_end(key)
            if len(self._seen) > SUBJECTS_MAX:
                self._seen.popitem(last=False)
            suppressed = 0
            if now - window[0] >= WINDOW_SECONDS:
                suppressed = int(window[2])
                window[:] = [now, 0, 0]
            if window[1] >= LINES_MAX:
                window[2] += 1
                return None
            window[1] += 1
            return suppressed

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        """Act as a structlog processor."""
        suppressed = self.admit(event.get("event"), *(event.get(name) for name in SUBJECT_FIELDS))
        if suppressed is None:
            raise structlog.DropEvent
        if suppressed:
            event["suppressed"] = suppressed
        return event

    def admits(self, record: logging.LogRecord) -> bool:
        """Whether a library's line may be written, by its text before values are filled in."""
        if isinstance(record.msg, dict):  # Sidecar's own: limited already
            return True
        return self.admit(record.name, record.levelno, str(record.msg)) is not None


def configure(format: str = "auto", level: str = "info", stream: IO[str] | None = None) -> None:  # noqa: A002
    """Send all log lines of the process, including those of libraries, to stderr.

    Args:
        format: ``console``, ``json``, or ``auto``: console on a terminal, JSON lines elsewhere.
        level: ``debug``, ``info``, ``warning`` or ``error``.
    """
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    limiter = RateLimiter()
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_payloads,
    ]
    structlog.configure(
        processors=[Outages(), limiter, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.addFilter(limiter.admits)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, _library_line, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(format, out)],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # a closed stderr must not cause more lines on stderr
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, number))


def _renderers(format_: str, out: IO[str]) -> list[Processor]:
    if format_ == "console" or (format_ == "auto" and out.isatty()):
        colors = out.isatty() and "NO_COLOR" not in os.environ
        # Not the default traceback, which prints local variables, and so payloads.
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _library_line(_logger: Any, _method: str, event: EventDict) -> EventDict:
    event["message"] = event.pop("event", "")
    event["event"] = "library.logged"
    return event


def _without_payloads(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace bytes by their length and cut long texts: the content of a message never reaches the log."""
    for name, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[name] = f"<{len(value)} bytes>"
        elif isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
            event[name] = f"{value[:TEXT_CHARS_MAX]}... <{len(value)} characters>"
    return event
