"""A driver that ends between any two changes of its files: tasks, commits and books as Spark calls them. No Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from sidecar.config import Settings
from sidecar.spark.run.columns import ArrowColumns, runs
from sidecar.spark.run.deliver import Task, deliver
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.frozen import latest_batch, open_checkpoint
from sidecar.spark.run.progress import Progress
from sidecar.spark.run.task import Job
from sidecar.spark.run.writer import Delivered, RangeWriter
from sidecar.state.store import Store
from tests.spark.deliveries import dead_letters
from tests.spark.support import TP, Message, batches, make_settings
from tests.support.receiver import Fault, Receiver, Request

BATCHES, MESSAGES = 3, 60
STEP = 7
"""Every seventh change is one that a life ends at; each of them was tried once."""


class Killed(BaseException):
    """The process ends here."""


class Death:
    """Ends the life that runs in it before one of its changes to the file system, and lets it make none after that.

    Args:
        at: Which change; None for none.
    """

    _NAMES = ("rename", "link", "unlink", "mkdir", "rmdir", "fsync")

    def __init__(self, at: int | None) -> None:
        self._at = at
        self.changes = 0

    def __enter__(self) -> Death:
        self._patch = pytest.MonkeyPatch()
        for name in self._NAMES:
            self._patch.setattr(os, name, self._counted(getattr(os, name)))
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> bool:
        self._patch.undo()
        return kind is Killed

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self._at is not None and self.changes >= self._at:
                raise Killed
            self.changes += 1
            return change(*args, **named)

        return call


class Comparing(Receiver):
    """The receiver, which refuses poison, and remembers names that came with two bodies."""

    def __init__(self) -> None:
        self.bodies_by_key: dict[str, bytes] = {}
        self.differing: list[str] = []
        super().__init__()
        self.fail("refuse", status=400, marker="poison")

    def __enter__(self) -> Comparing:
        return self

    def fault_for(self, request: Request) -> Fault | None:
        """Compare, then go on as ever."""
        key = request.headers["idempotency-key"]
        if self.bodies_by_key.setdefault(key, request.body) != request.body:
            self.differing.append(key)
        return super().fault_for(request)


def messages(batch: int) -> list[Message]:
    """Every seventh has the id of an earlier one, every 23rd is poison."""
    offsets = range(batch * MESSAGES, (batch + 1) * MESSAGES)
    ids = (offset if offset % 7 else offset // 2 for offset in offsets)
    return [(o, f"id-{id_}", b"poison" if o % 23 == 5 else b"%d" % o) for o, id_ in zip(offsets, ids, strict=True)]


def live(settings: Settings, root: Path, state: Store) -> Progress:
    """All micro-batches from the pending one on, in the order in which Spark does it."""
    query, folder = root / "query", RunFolder(root / "sidecar")
    checkpoint = open_checkpoint(query, folder.path, settings, "cluster")
    progress = Progress(settings, folder, query, state)
    writer = RangeWriter(Job(settings, folder.path, checkpoint))
    for batch in range(latest_batch(query, "commits") + 1, BATCHES):
        again = batch == latest_batch(query, "offsets")
        log(query / "offsets", batch)
        task = Task(TP, checkpoint.scope("id"), checkpoint.ids_scope("id"), batch, str(int(again)), again)
        outcome = deliver(settings, folder, task, ArrowColumns(), runs(batches(messages(batch)), TP))
        writer.commit([Delivered(outcome)], batch)
        log(query / "commits", batch)
        progress.heard([{"batchId": batch, "sources": [], "observedMetrics": {"sidecar_ranges": {"rows": 1}}}])
        progress.settle()
    progress.settle(last=True)
    return progress


def log(folder: Path, batch: int) -> None:
    """What Spark writes of a micro-batch, by calls that count as no changes of ours."""
    if not folder.exists():
        folder.mkdir(parents=True)
    (folder / str(batch)).write_text("v1\n{}")


def outcome_of(root: Path, deaths: list[int | None]) -> tuple[int, Counter[Any], Counter[Any]]:
    """The changes of the last of these lives, the rows that arrived, and the dead letters."""
    with Comparing() as receiver:
        settings = make_settings(
            receiver.url, dedup={"by": {"header": "tag"}}, tags={"from": "topic"}, batch={"max_messages": 10}
        )
        for at in deaths:
            state = Store(root / "state")
            with Death(at) as death:
                assert live(settings, root, state).latest().problems == ()
            state.close()
        assert not receiver.differing
        return death.changes, Counter(receiver.rows()), dead_letters(root / "state")


def test_wherever_a_driver_ends_the_next_one_goes_on(tmp_path: Path) -> None:
    """Each message arrives once, each part's bytes stay the same, and each dead letter is stored once."""
    changes, rows, letters = outcome_of(tmp_path / "whole", [None])
    assert changes > 100 and set(rows.values()) == set(letters.values()) == {1}
    assert len(letters) == sum(value == b"poison" for b in range(BATCHES) for _, _, value in messages(b))
    for at in range(0, changes, STEP):
        second = at * 5 % changes
        found = outcome_of(tmp_path / str(at), [at, second, None])
        assert found[1:] == (rows, letters), f"ended before change {at}, then before change {second}"
