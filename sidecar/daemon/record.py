"""Record of the main loop's events since the start, and of present problems, with their log events. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

import structlog

from sidecar.core.books import Histogram
from sidecar.core.records import TopicPartition
from sidecar.ops.health import Problem, first_of, problem
from sidecar.ops.snapshot import SECONDS_BOUNDS
from sidecar.state.interface import Damage

OVERDUE_S = 10.0
"""Time after which waiting is a problem."""
TOLD_S = 300.0
"""Time for which the last dead letter or damage is a problem."""

IDS, LEDGER, STORE, CHANGELOG, COMMIT = "ids", "ledger", "store", "changelog", "commit"
STEPS = (IDS, LEDGER, STORE, CHANGELOG, COMMIT)
"""The steps of a commit in their order, by the kinds of problems of those that fail or do not end."""

log = structlog.get_logger()


class CommitRecord:
    """Counts and times commits, and knows since when partitions wait for one."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds = Histogram(SECONDS_BOUNDS)
        self._since_s: dict[TopicPartition, float] = {}
        """Partitions whose commit was requested and is not acknowledged, with the time; a retry does not reset it."""
        self._failed: set[str] = set()
        """Kinds of failures that were logged since all was well."""
        self._step = COMMIT
        """The step of a commit that began last."""
        self._cause: tuple[str, str, str] | None = None
        """The last step that failed, its problem and the reason; None if a later step began since."""

    def begun(self, tps: Iterable[TopicPartition], now_s: float) -> None:
        for tp in tps:
            self._since_s.setdefault(tp, now_s)

    def ended(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """Record the end of a commit. The duration counts only if it succeeded."""
        if not results:
            return
        self.forget_partitions([tp for tp, ok in results.items() if ok])
        good = all(results.values())
        self.counts["ok" if good else "failed"] += 1
        if good:
            self.seconds.observe(elapsed_s)
            if not self._since_s:
                self._recovered()

    def began(self, step: str) -> None:
        """Note that a step of a commit began: those before it have succeeded."""
        self._step = step
        if self._cause is not None and STEPS.index(self._cause[0]) < STEPS.index(step):
            self._cause = None

    def blocked(self, step: str, reason: str, kind: str = "") -> None:
        """Note that a step failed, with its kind of problem if its name differs; from any thread."""
        self._cause = step, kind or step, reason

    def failed(self, reason: str, fields: Mapping[str, object]) -> None:
        """Log a commit that the broker, or the source's state file, did not accept."""
        self.blocked(COMMIT, reason, STORE if fields.get("at") == "state" else COMMIT)
        self._failed.add("commit")
        log.warning("commit.failed", **{**fields, "reason": reason})

    def ids_failed(self, reason: str) -> None:
        """Log that the message ids settled by a commit could not be stored; from any thread."""
        self.blocked(IDS, f"message ids cannot be stored: {reason}")
        self._failed.add("ids")
        log.error("ids.not_stored", reason=reason)

    def _recovered(self) -> None:
        failed, self._failed, self._cause = self._failed, set(), None
        if "commit" in failed:
            log.info("commit.recovered")
        if "ids" in failed:
            log.info("ids.stored")

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that have nothing left to commit."""
        for tp in tps:
            self._since_s.pop(tp, None)

    def problems(self, now_s: float) -> Iterator[Problem]:
        """The commits that have waited for longer than `OVERDUE_S`."""
        late = [tp for tp, since_s in self._since_s.items() if now_s - since_s >= OVERDUE_S]
        _, kind, reason = self._cause or (self._step, self._step, "no answer")
        if late and kind != LEDGER:  # which has a problem of its own
            yield problem(kind, late=first_of(late), seconds=OVERDUE_S, reason=reason)


class LoopRecord:
    """The record of one daemon, written on its main thread."""

    def __init__(self) -> None:
        self.commits = CommitRecord()
        self.rebalances: Counter[str] = Counter()
        self.snapshots: Counter[str] = Counter()
        self.send_seconds = Histogram(SECONDS_BOUNDS)
        self.waits_for = "the broker"
        """The step that the start waits for; empty once it is over."""
        self.progressed_s = inf
        """Time of the loop's last round; infinite before the first."""
        self.emptied_s = 0.0
        """Time of the last round that left no arrived message unread."""
        self._assigned = False
        self._snapshot_failed = ""
        self._damaged: tuple[float, str] | None = None
        """Time and description of the last damage found."""
        self._unstored: dict[int, tuple[float, str]] = {}
        """Dead letters that could not be stored, by token: the time since when, and the reason."""

    def joined(self) -> None:
        self.waits_for = ""

    def assigned(self) -> None:
        """Note that the group assigned partitions, or reported that there are none for this member."""
        self._assigned = True

    def snapped(self, reason: str) -> None:
        """Record the end of a snapshot; the reason is empty if it was written."""
        self.snapshots["failed" if reason else "ok"] += 1
        before, self._snapshot_failed = self._snapshot_failed, reason
        if reason:
            log.error("snapshot.failed", reason=reason)
        elif before:
            log.info("snapshot.saved")

    def damaged(self, damages: Collection[Damage], now_s: float) -> None:
        for damage in damages:
            self._damaged = now_s, f"{damage.what} ({damage.where}): {damage.reason}; {damage.outcome}"

    def letters_stored(self, token: int, reason: str, count: int, now_s: float) -> None:
        """Record the end of storing dead letters; the reason is empty if they are durable."""
        if reason:
            self._unstored[token] = self._unstored.get(token, (now_s,))[0], reason
            log.error("dead_letters.not_stored", count=count, reason=reason)
        elif self._unstored.pop(token, None) and not self._unstored:
            log.info("dead_letters.stored")

    def problems(self, now_s: float, *, storing_letters: bool) -> Iterator[Problem]:
        """The present problems at this monotonic time."""
        if not self._assigned:
            waits_for = self.waits_for
            yield problem("starting", what=waits_for) if waits_for else problem("starting", "unassigned")
        yield from self.commits.problems(now_s)
        if not storing_letters:
            self._unstored.clear()
        for since_s, reason in self._unstored.values():
            if now_s - since_s >= OVERDUE_S:
                yield problem("dead_letters_store", reason=reason)
                break
        if self._snapshot_failed:
            yield problem("state", reason=self._snapshot_failed)
        if self._damaged is not None and now_s - self._damaged[0] < TOLD_S:
            yield problem("state_damaged", reason=self._damaged[1])
