"""Message ids between core and state: restored off the main loop, journalled before a commit, sorted periodically.

The core does not have a partition yet while its ids are being restored: its messages wait here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

import structlog
from typing_extensions import override

from sidecar.core.effects import CommitItem
from sidecar.core.pipeline.commit_order import SettledIds
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.core.windows.dedup import KEY_BYTES
from sidecar.daemon.taken import EVERY_GENERATION, Give, NoIdKeeper, TakenPartition, overdue
from sidecar.errors import SidecarError
from sidecar.ops.health import Problem, problem
from sidecar.ops.snapshot import IdsStatus
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sources.base import Assignment
from sidecar.state.interface import IdSegment, NoStoredIds, PartitionSnapshot, StoredIds

SORTED_BYTES = 12
"""Maximum memory of a sorted id."""
FILED_MIN, FILED_MAX = 1_024, 1 << 18
"""Number of a partition's ids that are put into a file at once."""
SORTERS = 4
"""Limit of partitions that are restored or sorted at once, so a large partition does not delay small ones."""
FILES_MAX = 12
"""Number of files above which they are merged when a partition was restored."""
RETRY_S = 1.0
LOOK_EVERY_S = 1.0
CLOSE_S = 0.5

log = structlog.get_logger()


@dataclass(slots=True)
class _Kept:
    """An owned partition."""

    number: int
    """Number of its taking."""
    unsorted: int = 0
    """Number of ids given to the journal since the last sorting."""
    sorting: bool = False
    unfiled: bool = False
    """Whether its ids could not be put into files."""

    def tell_filed(self, tp: TopicPartition, problem: str) -> None:
        """Log that its ids could not be put into files, or that they could again."""
        if problem:
            log.warning("ids.not_sorted", **tp.fields(), reason=problem)
        elif self.unfiled:
            log.info("ids.sorted", **tp.fields())
        self.unfiled = bool(problem)


class IdJournal:
    """Writes ids before the commits that settle them; for the writer's thread."""

    def __init__(self, stored: NoStoredIds) -> None:
        self._stored = stored
        self._dropped: dict[TopicPartition, int] = {}
        """Generations below are dropped."""

    def begin_partition(self, tp: TopicPartition, *, resumed: bool) -> None:
        """Begin with a partition; drop its ids unless resumed: an operator's reset replays, a recreated topic is new.

        Raises:
            StateError: The ids could not be dropped.
        """
        self._dropped.pop(tp, None)
        if not resumed:
            self._stored.drop_before(tp, EVERY_GENERATION)

    def write(self, segments: Sequence[SettledIds]) -> str:
        """Make ids durable; return the reason for a failure, otherwise an empty text."""
        try:
            self._stored.append(
                [IdSegment(settled.tp, settled.generation, settled.ids.tobytes()) for settled in segments]
            )
            for tp, generation in {(segment.tp, segment.generation - 1) for segment in segments}:
                if generation > self._dropped.get(tp, 0):
                    self._stored.drop_before(tp, generation)
                    self._dropped[tp] = generation
        except SidecarError as error:
            return str(error)
        return ""


class Sorter:
    """Sorts ids on its own threads: that may take seconds, and commits wait for the writer."""

    def __init__(self, stored: NoStoredIds, inbox: Inbox) -> None:
        self._stored = stored
        self._inbox = inbox
        self._worker = Worker("sorter", SORTERS)

    def sort(
        self, tp: TopicPartition, sorted_: Callable[[StoredIds | None, str, float], object], *, merge: bool
    ) -> None:
        """Sort a partition's ids, from any thread; the inbox gets a call with them, or with None and a reason."""

        def job() -> None:
            stored, reason = None, ""
            try:
                stored = self._stored.sort(tp, merge=merge)
            except Exception as error:  # noqa: BLE001  # the partition waits for an answer, and is tried again
                reason = str(error) if isinstance(error, SidecarError) else f"{type(error).__name__}: {error}"
            self._inbox.put(partial(sorted_, stored, reason))

        self._worker.do(job)

    def look(self, changed: Callable[[set[TopicPartition], float], object]) -> None:
        """Begin to look for partitions whose ids other programs have changed; the inbox gets a call with them."""

        def job() -> None:
            tps = set()
            with suppress(SidecarError):  # the folder is gone, which is reported anyway
                tps = self._stored.changed()
            self._inbox.put(partial(changed, tps))

        self._worker.do(job)

    def close(self) -> None:
        self._stored.stop_sorting()
        self._worker.close(CLOSE_S)


class IdKeeper(NoIdKeeper):
    """The ids of all partitions of this process; only for the main thread."""

    def __init__(
        self, pipeline: Pipeline, stored: NoStoredIds, writer: Worker, inbox: Inbox, memory_bytes: int
    ) -> None:
        super().__init__(stored, writer)
        self._journal = IdJournal(stored)
        self._sorter = Sorter(stored, inbox)
        self._pipeline = pipeline
        self._inbox = inbox
        self._memory_bytes = memory_bytes
        self._kept: dict[TopicPartition, _Kept] = {}
        self._number = 0
        self._look_at_s = 0.0

    @override
    def close(self) -> None:
        self._sorter.close()

    # Restoring

    @override
    def take_partition(self, assignment: Assignment, known: PartitionSnapshot | None, then: Give) -> bool:
        self._number += 1
        self._kept[assignment.tp] = _Kept(self._number)
        taken = self.loading[assignment.tp] = TakenPartition(assignment, known, self._number, time.monotonic(), then)
        self._restore(taken)
        return False

    def _restore(self, taken: TakenPartition) -> None:
        taken.retry_at_s = None
        tp, resumed = taken.assignment.tp, taken.assignment.resumed
        sorted_ = partial(self._sorted, tp, taken.number)

        def write() -> None:
            try:
                self._journal.begin_partition(tp, resumed=resumed)
            except SidecarError as error:
                self._inbox.put(partial(sorted_, None, str(error)))
            else:
                self._sorter.sort(tp, sorted_, merge=False)

        self._writer.do(write)

    def _sorted(self, tp: TopicPartition, number: int, stored: StoredIds | None, reason: str, _: float) -> None:
        """Take the result of a sorter of this taking; give the core the partition that waited for it."""
        kept = self._kept.get(tp)
        if kept is None or kept.number != number:
            return
        taken = self.loading.get(tp)
        kept.sorting = False
        if stored is None:
            if taken is None:
                kept.tell_filed(tp, reason)
            else:
                taken.retry_at_s, taken.failed = time.monotonic() + RETRY_S, reason
                log.error("ids.not_loaded", **tp.fields(), reason=reason)
            return
        kept.tell_filed(tp, stored.problem)
        if taken is None:
            self._pipeline.install_ids(tp, stored.runs)
            return
        del self.loading[tp]
        self._restored(taken, stored)
        if sum(map(len, stored.runs.values())) > FILES_MAX:
            self._sort(tp, kept, merge=True)
        taken.then(taken)

    def _sort(self, tp: TopicPartition, kept: _Kept, *, merge: bool) -> None:
        kept.sorting = True
        self._sorter.sort(tp, partial(self._sorted, tp, kept.number), merge=merge)

    def _restored(self, taken: TakenPartition, stored: StoredIds) -> None:
        tp = taken.assignment.tp
        now_ms, wall_ms = time.monotonic() * 1000, time.time_ns() // 1_000_000
        begun = {generation: now_ms - max(0, wall_ms - at_ms) for generation, at_ms in stored.begun_at_ms.items()}
        self._pipeline.limit_ids(self._memory_bytes // 4 // KEY_BYTES)
        count = self._pipeline.restore_ids(tp, stored.runs, begun, now_ms, taken.assignment.state.seen - 1)
        log.info("ids.loaded", **tp.fields(), count=count, seconds=round(time.monotonic() - taken.since_s, 3))

    @override
    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self.loading.pop(tp, None)
            self._kept.pop(tp, None)

    @override
    def tend(self, now_s: float) -> None:
        for taken in self.loading.values():
            if taken.retry_at_s is not None and now_s >= taken.retry_at_s:
                self._restore(taken)
        if self._number and now_s >= self._look_at_s:
            self._look_at_s = inf
            self._sorter.look(self._changed)

    def _changed(self, tps: set[TopicPartition], _: float) -> None:
        """Have changed files repaired, unless the whole folder is gone; look-ups use the mapped files meanwhile."""
        self._look_at_s = time.monotonic() + LOOK_EVERY_S
        if self._pipeline.state_lost:
            return
        for tp in tps & self._kept.keys() - self.loading.keys():
            if not self._kept[tp].sorting:
                self._sort(tp, self._kept[tp], merge=False)

    @override
    def problems(self, now_s: float) -> Iterator[Problem]:
        if late := overdue(self.loading, now_s):
            failed = next((taken.failed for taken in self.loading.values() if taken.failed), "")
            loading = problem("ids_loading", late=late)
            yield problem("ids_loading", "failed", late=late, reason=failed) if failed else loading

    # Journalling

    @override
    def write(self, segments: Sequence[SettledIds]) -> str:
        return self._journal.write(segments)

    @override
    def count(self, settled: Iterable[CommitItem | SettledIds]) -> None:
        for each in settled:
            kept = self._kept.get(each.tp)
            if kept is None or each.ids is None:
                continue
            kept.unsorted += len(each.ids)
            share = self._memory_bytes // 2 // SORTED_BYTES // len(self._kept)
            if kept.unsorted >= max(FILED_MIN, min(FILED_MAX, share)) and not kept.sorting:
                kept.unsorted = 0
                self._sort(each.tp, kept, merge=True)

    # The rest

    @override
    def status(self, now_s: float, unusable: int = 0) -> IdsStatus:
        found = self._pipeline.remembered_ids()
        return IdsStatus(
            remembered=found.remembered,
            memory_bytes=found.memory_bytes,
            file_bytes=found.file_bytes,
            oldest_seconds=0.0 if found.begun_ms is None else max(0.0, now_s - found.begun_ms / 1000),
            rotations=found.rotations,
            loading=len(self.loading),
            unusable=unusable,
        )
