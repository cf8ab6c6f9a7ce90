"""Limits log lines of repeated failures: one at the beginning, one a minute, one at the end. Logs nothing itself."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import structlog
from structlog.typing import EventDict

MINUTE_S = 60.0
LINES_MAX = 10
"""Limit of subjects of one event whose beginning, or whose end, is logged within a minute."""
SUBJECTS_MAX = 1_000
SUBJECT_FIELDS = ("group", "topic", "partition", "broker", "what")

FAILURES: dict[str, str] = {
    "commit.failed": "commit.recovered",
    "dead_letters.not_stored": "dead_letters.stored",
    "group.failed": "group.recovered",
    "ids.not_loaded": "ids.loaded",
    "ids.not_sorted": "ids.sorted",
    "ids.not_stored": "ids.stored",
    "kafka.failed": "kafka.recovered",
    "ledger.failed": "ledger.recovered",
    "memory.not_saved": "memory.saved",
    "native.ended": "",
    "offset.out_of_range": "",
    "partition.reloaded": "",
    "rocketmq.failed": "rocketmq.recovered",
    "snapshot.failed": "snapshot.saved",
}
"""Events that repeat while a failure lasts, each with the event of its end.

Callers log each failure, and the end after each series of failures; this module decides which lines are written.
"""
_ENDS = {end: failure for failure, end in FAILURES.items() if end}


@dataclass(slots=True)
class _Subject:
    """A subject that fails or failed, for example a group."""

    is_open: bool = False
    since_s: float = 0.0
    told_s: float = float("-inf")
    """Time of the last line about its failure."""


class _Outage:
    """State of one event."""

    def __init__(self) -> None:
        self.subjects: OrderedDict[Hashable, _Subject] = OrderedDict()
        self.told_s = self._minute_s = float("-inf")
        self.failures = 0
        self._begun = self._ended = 0
        """Numbers of lines within the minute."""

    def failed(self, subject: Hashable, now_s: float) -> dict[str, Any] | None:
        """Fields to add to the line; None if it is to be held back."""
        state = self._find(subject, now_s)
        self.failures += 1
        begins = not state.is_open
        if begins:
            state.is_open, state.since_s = True, now_s
        if begins and now_s - state.told_s >= MINUTE_S and self._begun < LINES_MAX:
            self._begun += 1
        elif now_s - self.told_s < MINUTE_S:
            return None
        state.told_s = self.told_s = now_s
        failures, self.failures = self.failures, 0
        others = sum(other.is_open for other in self.subjects.values()) - 1
        return ({"failures": failures} if failures > 1 else {}) | ({"others": others} if others else {})

    def ended(self, subject: Hashable | None, now_s: float) -> dict[str, Any] | None:
        """Fields to add to the line of the end, for all subjects if none is named; None if it is to be held back."""
        if subject is None:
            ending = [state for state in self.subjects.values() if state.is_open]
        else:
            ending = [state for state in [self.subjects.get(subject)] if state is not None and state.is_open]
        if not ending:
            return {}
        for state in ending:
            state.is_open = False
        since_s = min(state.since_s for state in ending)
        if self._ended >= LINES_MAX or max(state.told_s for state in ending) < since_s:
            return None  # its beginning was held back
        self._ended += 1
        return {"seconds": round(now_s - since_s, 3)}

    def _find(self, subject: Hashable, now_s: float) -> _Subject:
        if now_s - self._minute_s >= MINUTE_S:
            self._minute_s, self._begun, self._ended = now_s, 0, 0
        state = self.subjects.setdefault(subject, _Subject())
        self.subjects.move_to_end(subject)
        if len(self.subjects) > SUBJECTS_MAX:
            self.subjects.popitem(last=False)
        return state


class Outages:
    """Passes, of each event of `FAILURES`, one line when a subject begins to fail, one a minute, and one at its end.

    A subject that fails again within a minute continues its outage. Lines that pass have the `failures` since the
    previous line and the number of `others` that fail; the line at the end has `seconds`. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Outage] = {event: _Outage() for event in FAILURES}

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        """Act as a structlog processor."""
        name = str(event.get("event"))
        failure = name if name in FAILURES else _ENDS.get(name)
        if failure is None:
            return event
        subject = tuple(event.get(field) for field in SUBJECT_FIELDS)
        key = hash(subject)  # texts may have any size
        with self._lock:
            now_s, outage = self._clock(), self._known[failure]
            if name in FAILURES:
                added = outage.failed(key, now_s)
            else:
                added = outage.ended(key if any(value is not None for value in subject) else None, now_s)
        if added is None:
            raise structlog.DropEvent
        for field, value in added.items():
            event.setdefault(field, value)
        return event
