"""Log lines about what lasts: one when it begins, one at its end, and one a minute meanwhile. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from sidecar.core.delivery import Delivery
from sidecar.core.records import group_label
from sidecar.ops.health import DEGRADED, HEALTHY, KINDS, STARTING, STOPPED, Health

SUMMARY_EVERY_S = 60.0
GROUPS_NAMED_MAX = 10
_LEVELS = {HEALTHY: "info", STARTING: "info", DEGRADED: "warning", STOPPED: "error"}
_FAILED = ("retry", "halt")

log = structlog.get_logger()


class Chronicle:
    """Tells the log of changes of health, of stops of the intake, and of an outage that goes on."""

    def __init__(self) -> None:
        self._health = Health(STARTING)
        self._stopped: dict[str, float] = {}
        self._summary_at_s = 0.0
        self._failed = 0

    def health(self, now: Health) -> None:
        """The health at present; a line when the word or the worst problem's kind has changed."""
        before, self._health = self._health, now
        if (before.state, before.kind) != (now.state, now.kind):
            told = {"reason": now.reason, "next_step": now.next_step} if now.reason else {}
            _tell("health.changed", _LEVELS[now.state], state=now.state, before=before.state, **told)

    def intake(self, stops: Mapping[str, str], lasting: Collection[str], now_s: float) -> None:
        """Why nothing is read at present.

        Args:
            stops: A word and a sentence for each reason.
            lasting: Those that are worth a line: memory that is full for a moment is not.
            now_s: Monotonic time.
        """
        for word in [word for word in self._stopped if word not in stops]:
            log.info("intake.resumed", reason=word, seconds=round(now_s - self._stopped.pop(word), 3))
        for word in [word for word in lasting if word not in self._stopped]:
            self._stopped[word] = now_s
            level = "info" if word == "draining" else _LEVELS[KINDS[word].state]
            _tell("intake.stopped", level, reason=word, detail=stops[word])

    def outage(self, delivery: Delivery, now_s: float) -> None:
        """A line a minute while sends to any group fail."""
        failing = [group for group in delivery.groups.values() if group.failing_since_ms is not None]
        if not failing:
            self._summary_at_s = 0.0
        elif not self._summary_at_s:
            self._summary_at_s, self._failed = now_s + SUMMARY_EVERY_S, _failed(delivery)
        elif now_s >= self._summary_at_s:
            self._summary_at_s += SUMMARY_EVERY_S
            before, self._failed = self._failed, _failed(delivery)
            log.warning(
                "outage.continued", groups=[group_label(group.name) for group in failing[:GROUPS_NAMED_MAX]],
                count=len(failing), failed_sends=self._failed - before, batches_waiting=delivery.waiting,
                reason=failing[0].reason,
            )  # fmt: skip


def _tell(event: str, level: str, **fields: object) -> None:
    getattr(log, level)(event, **fields)


def _failed(delivery: Delivery) -> int:
    return sum(count for (_, verdict), count in delivery.sends.counts().items() if verdict in _FAILED)
