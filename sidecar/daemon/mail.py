"""Dispatch of messages from other threads to the main thread's objects. Decides nothing."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from typing import Any

from sidecar import threads
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.daemon.committer import Committer, StepEnded
from sidecar.daemon.delays.absent import Receive
from sidecar.daemon.feed import Feed
from sidecar.daemon.ids import IdKeeper, IdsChanged, IdsSorted
from sidecar.daemon.record import LoopRecord
from sidecar.daemon.snapshots import Snapped, Snapshots
from sidecar.runtime.dead_letters import LettersStored
from sidecar.runtime.ledger_worker import ClaimAnswered
from sidecar.runtime.worker import Answered

TAKE_S = 0.05
"""Approximate limit of one `take`: restores fill the inbox as fast as it is emptied."""


class Mail:
    """Dispatches the inbox; only for the main thread.

    Args:
        pipeline: Gets answers, claims and dead letters.
        committer: Gets the ends of a commit's steps.
        ids: Gets changes of ids by other programs.
        snapshots: Get the results of writes.
        receivers: Handle the messages of the parts that are configured, by their kind.
    """

    def __init__(
        self,
        inbox: queue.SimpleQueue[Any],
        pipeline: Pipeline,
        record: LoopRecord,
        committer: Committer,
        ids: IdKeeper,
        feed: Feed,
        snapshots: Snapshots,
        receivers: Mapping[type, Receive],
    ) -> None:
        self._inbox = inbox
        self._pipeline = pipeline
        self._record = record
        self._committer = committer
        self._ids = ids
        self._feed = feed
        self._snapshots = snapshots
        self._receivers = receivers

    def take(self, timeout_s: float = 0.0) -> None:
        """Dispatch the inbox's messages, waiting this long for the first; the next call continues with the rest."""
        threads.check()
        now_s = time.monotonic()
        now_ms, until_s = now_s * 1000, now_s + timeout_s + TAKE_S
        while time.monotonic() < until_s:
            try:
                event = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
            except queue.Empty:
                return
            timeout_s = 0.0
            self._take(event, now_ms)

    def _take(self, event: Any, now_ms: float) -> None:
        match event:
            case Answered(batch_id, answer):
                self._record.send_seconds.observe(answer.elapsed_ms / 1000)
                self._pipeline.answered(batch_id, answer, now_ms, time.time_ns() // 1_000_000)
            case ClaimAnswered(number, verdicts):
                self._pipeline.claimed(number, verdicts, now_ms)
            case LettersStored(token, reason, letters):
                self._record.letters_stored(token, reason, letters, now_ms / 1000)
                self._pipeline.stored(token, ok=not reason, now_ms=now_ms)
            case Snapped():
                self._snapshots.ended(event)
            case StepEnded():
                self._committer.ended(event)
            case IdsChanged():
                self._ids.changed(event)
            case IdsSorted():
                self._feed.sorted(event)
            case _:
                self._receivers[type(event)](event, now_ms)
