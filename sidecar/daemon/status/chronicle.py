"""Log lines about lasting conditions: one at the begin, one at the end, and one a minute meanwhile. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import structlog

from sidecar.core.pipeline.status import PipelineStatus
from sidecar.core.records import TopicPartition, group_label
from sidecar.ops.health import DEGRADED, HEALTHY, KINDS, STARTING, STOPPED, Health, Problem, in_order, judge

SUMMARY_EVERY_S = 60.0
OVER_S, FLAPPING_OVER_S = 5.0, 60.0
"""Time after which a condition that is absent counts as over; the longer time is for one that has returned within it
before."""
GROUPS_NAMED_MAX = 10
_LEVELS = {HEALTHY: "info", STARTING: "info", DEGRADED: "warning", STOPPED: "error"}
_FAILED = ("failed", "unanswered", "busy", "halt")

log = structlog.get_logger()


class Spells:
    """Start times of conditions for the log; one that returns at once was never over."""

    def __init__(self) -> None:
        self.since_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}
        self._ended_s: dict[str, float] = {}

    def look(self, present: Collection[str], now_s: float) -> dict[str, float]:
        """Set the present conditions; return those that are over, with their durations in seconds."""
        for kind in present:
            self.since_s.setdefault(kind, now_s)
            self._seen_s[kind] = now_s
        over = [kind for kind, seen_s in self._seen_s.items() if now_s - seen_s >= self._patience_s(kind)]
        self._ended_s |= dict.fromkeys(over, now_s)
        return {kind: self._seen_s.pop(kind) - self.since_s.pop(kind) for kind in over}

    def _patience_s(self, kind: str) -> float:
        flaps = self.since_s[kind] - self._ended_s.get(kind, float("-inf")) < FLAPPING_OVER_S
        return FLAPPING_OVER_S if flaps else OVER_S


class Chronicle:
    """Logs changes of health, stops of the intake, and outages that continue."""

    def __init__(self) -> None:
        self._health = Health(STARTING)
        self._problems: dict[str, Problem] = {}
        self._troubled, self._stopped = Spells(), Spells()
        self._summary_at_s = 0.0
        self._failed = 0
        self._unusable, self._unusable_at_s = 0, 0.0

    def health(self, problems: Iterable[Problem], now_s: float) -> None:
        """Take the present problems; log a line if the word of health or the worst problem's kind has changed."""
        by_kind = {problem.kind: problem for problem in reversed(in_order(list(problems)))}
        self._problems |= by_kind
        for kind in self._troubled.look(by_kind, now_s):
            self._problems.pop(kind, None)
        if "starting" not in by_kind:  # which never returns
            self._problems.pop("starting", None)
        before, now = self._health, judge(self._problems.values())
        self._health = now
        if (before.state, before.kind) != (now.state, now.kind):
            fields = {"reason": now.reason, "next_step": now.next_step} if now.reason else {}
            _tell("health.changed", _level(now.kind, now.state), state=now.state, before=before.state, **fields)

    def intake(self, stops: Mapping[str, str], lasting: Collection[str], now_s: float) -> None:
        """Take the reasons for which nothing is read at present.

        Args:
            stops: A word and a sentence for each reason.
            lasting: The reasons to log: memory that is full for a moment is not among them.
            now_s: Monotonic time.
        """
        known = set(self._stopped.since_s)
        still = [word for word in stops if word in lasting or word in known]
        for word, seconds in self._stopped.look(still, now_s).items():
            log.info("intake.resumed", reason=word, seconds=round(seconds, 3))
        for word in [word for word in lasting if word not in known]:
            _tell("intake.stopped", _level(word, KINDS[word].state), reason=word, detail=stops[word])

    def ids_unusable(self, tp: TopicPartition, why: str, count: int, now_s: float) -> None:
        """Log that further ids cannot be compared, at most once a minute."""
        self._unusable += count
        if now_s >= self._unusable_at_s:
            log.warning("ids.unusable", **tp.fields(), reason=why, count=self._unusable)
            self._unusable, self._unusable_at_s = 0, now_s + SUMMARY_EVERY_S

    def outage(self, now: PipelineStatus, now_s: float) -> None:
        """Log a line a minute while sends to any group fail."""
        failing = now.failing
        if not failing:
            self._summary_at_s = 0.0
        elif not self._summary_at_s:
            self._summary_at_s, self._failed = now_s + SUMMARY_EVERY_S, _failed(now)
        elif now_s >= self._summary_at_s:
            self._summary_at_s += SUMMARY_EVERY_S
            before, self._failed = self._failed, _failed(now)
            log.warning(
                "outage.continued", groups=[group_label(group.name) for group in failing[:GROUPS_NAMED_MAX]],
                count=len(failing), failed_sends=self._failed - before,
                batches_waiting=now.retries_waiting, reason=failing[0].reason,
            )  # fmt: skip


def _level(kind: str, state: str) -> str:
    """The level of a log line: an orderly stop is not an error, since it needs no action."""
    return "info" if kind == "draining" else _LEVELS[state]


def _tell(event: str, level: str, **fields: object) -> None:
    getattr(log, level)(event, **fields)


def _failed(now: PipelineStatus) -> int:
    return sum(count for (_, verdict), count in now.sends.items() if verdict in _FAILED)
