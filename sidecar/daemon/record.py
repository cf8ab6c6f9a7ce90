"""What the main loop met since the start, and what goes wrong at present, told to the log. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import structlog

from sidecar.core.records import TopicPartition
from sidecar.ops.health import Problem
from sidecar.ops.snapshot import Stopwatch
from sidecar.state.interface import Damage

OVERDUE_S = 10.0
"""What has waited for so long is a problem."""
TOLD_S = 300.0
"""For so long after the last one, dead letters and damages are a problem."""

log = structlog.get_logger()


class CommitRecord:
    """Counts and times commits, and knows which partitions wait for one since when."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds = Stopwatch()
        self._since_s: dict[TopicPartition, float] = {}
        """Partitions with a commit that was asked for and not acknowledged; a retry does not begin anew."""
        self._failing: dict[str, str] = {}
        """Kinds of problems that commits met, each with its last reason; the newest kind is the last."""

    def begun(self, tps: Iterable[TopicPartition], now_s: float) -> None:
        """These are to be committed."""
        for tp in tps:
            self._since_s.setdefault(tp, now_s)

    def ended(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """A commit ended. How long it takes to fail says nothing about how long a commit takes."""
        if not results:
            return
        self.forget([tp for tp, ok in results.items() if ok])
        good = all(results.values())
        self.counts["ok" if good else "failed"] += 1
        if good:
            self.seconds.observe(elapsed_s)
            if not self._since_s:
                self._recovered()

    def failed(self, reason: str, fields: Mapping[str, object]) -> None:
        """The broker, or what stands for it, did not take one."""
        self._failing.pop("commit", None)
        self._failing["commit"] = reason
        log.warning("commit.failed", **{**fields, "reason": reason})

    def ids_failed(self, reason: str) -> None:
        """The message ids that one settles could not be stored; from any thread."""
        self._failing.pop("ids", None)
        self._failing["ids"] = f"message ids cannot be stored: {reason}"
        log.error("ids.not_stored", reason=reason)

    def _recovered(self) -> None:
        failed, self._failing = self._failing, {}
        if "commit" in failed:
            log.info("commit.recovered")
        if "ids" in failed:
            log.info("ids.stored")

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Nothing of these is to be committed any more."""
        for tp in tps:
            self._since_s.pop(tp, None)

    def problems(self, now_s: float) -> Iterator[Problem]:
        """The commits that have waited for longer than `OVERDUE_S`."""
        late = [tp for tp, since_s in self._since_s.items() if now_s - since_s >= OVERDUE_S]
        if late:
            kind, reason = next(reversed(list(self._failing.items())), ("commit", "no answer"))
            others = f" and {len(late) - 1} more" if len(late) > 1 else ""
            yield Problem(kind, f"{min(late)}{others} could not be committed for {OVERDUE_S:.0f} s: {reason}")


class Record:
    """Of one daemon, written on its main thread."""

    def __init__(self) -> None:
        self.commits = CommitRecord()
        self.rebalances: Counter[str] = Counter()
        self.snapshots: Counter[str] = Counter()
        self.send_seconds = Stopwatch()
        self.waits_for = "the broker"
        """What the start waits for; empty once it is over."""
        self._assigned = False
        self._snapshot_failed = ""
        self._damaged: tuple[float, str] | None = None
        """When stored things were found damaged last, and what of them."""
        self._unstored: dict[int, tuple[float, str]] = {}
        """Dead letters that could not be stored, by token: since when, and why."""

    def joined(self) -> None:
        """What the start waited for is there."""
        self.waits_for = ""

    def assigned(self) -> None:
        """The group gave us partitions, or told that there are none for us."""
        self._assigned = True

    def snapped(self, reason: str) -> None:
        """A snapshot was written, or not: the reason is empty when it was."""
        self.snapshots["failed" if reason else "ok"] += 1
        before, self._snapshot_failed = self._snapshot_failed, reason
        if reason:
            log.error("snapshot.failed", reason=reason)
        elif before:
            log.info("snapshot.saved")

    def damaged(self, damages: Collection[Damage], now_s: float) -> None:
        """Something stored could not be used."""
        for damage in damages:
            self._damaged = now_s, f"{damage.what} ({damage.where}): {damage.reason}; {damage.outcome}"

    def letters_stored(self, token: int, reason: str, count: int, now_s: float) -> None:
        """So many dead letters are durable, or not: the reason is empty when they are."""
        if reason:
            self._unstored[token] = self._unstored.get(token, (now_s,))[0], reason
            log.error("dead_letters.not_stored", count=count, reason=reason)
        elif self._unstored.pop(token, None) and not self._unstored:
            log.info("dead_letters.stored")

    def problems(self, now_s: float, *, storing_letters: bool) -> Iterator[Problem]:
        """What goes wrong at present.

        Args:
            now_s: Monotonic time.
            storing_letters: Whether any dead letter is on its way to its store.
        """
        if not self._assigned:
            what = f"waits for {self.waits_for}" if self.waits_for else "no partition is assigned yet"
            yield Problem("starting", what)
        yield from self.commits.problems(now_s)
        if not storing_letters:
            self._unstored.clear()
        for since_s, reason in self._unstored.values():
            if now_s - since_s >= OVERDUE_S:
                yield Problem("dead_letters_store", f"dead letters cannot be stored: {reason}")
                break
        if self._snapshot_failed:
            yield Problem("state", f"the state file cannot be written: {self._snapshot_failed}")
        if self._damaged is not None and now_s - self._damaged[0] < TOLD_S:
            yield Problem("state_damaged", f"stored data was damaged or lost: {self._damaged[1]}")
