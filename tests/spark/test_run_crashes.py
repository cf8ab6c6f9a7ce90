"""A driver that ends between any two changes of its files: tasks, commits and books as Spark calls them. No Spark."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sidecar.config.model import Settings
from sidecar.spark.run.deliver import Task
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.pinned import latest_batch, open_checkpoint
from sidecar.spark.run.progress import RunProgress
from sidecar.spark.run.task import ARROW_COLUMNS, runs
from sidecar.spark.run.writer import RangeWriter, TaskReport
from sidecar.state.store import Store
from tests.support.landing import Disk, ProcessDied, disk
from tests.support.receiver import Receiver
from tests.support.spark.deliveries import dead_letters
from tests.support.spark.tasks import TP, Message, batches, begin, deliver, make_settings, plan_of, progress_of

BATCHES, MESSAGES = 3, 60
STEP = 7
"""Every seventh change is one that a life ends at; each of them was tried once."""


def messages(batch: int) -> list[Message]:
    """Every seventh has the id of an earlier one, every 23rd is poison."""
    offsets = range(batch * MESSAGES, (batch + 1) * MESSAGES)
    ids = (offset if offset % 7 else offset // 2 for offset in offsets)
    return [(o, f"id-{id_}", b"poison" if o % 23 == 5 else b"%d" % o) for o, id_ in zip(offsets, ids, strict=True)]


def live(settings: Settings, root: Path, state: Store) -> RunProgress:
    """All micro-batches from the pending one on, in the order in which Spark does it."""
    query, folder = root / "query", RunFolder(root / "sidecar")
    checkpoint = open_checkpoint([query], folder.path, settings, "cluster")
    plan = plan_of(settings, folder.path, checkpoint)
    progress = progress_of(settings, folder, query, state)
    writer = RangeWriter(plan)
    for batch in range(latest_batch(query, "commits") + 1, BATCHES):
        again = batch == latest_batch(query, "offsets")
        begin(query, batch, "offsets")
        task = Task(TP, checkpoint.scope("id"), checkpoint.ids_scope("id"), batch, str(int(again)), again)
        outcome = deliver(plan, task, ARROW_COLUMNS, runs(batches(messages(batch)), TP))
        writer.commit([TaskReport(outcome)], batch)
        begin(query, batch, "commits")
        progress.heard([{"batchId": batch, "sources": [], "observedMetrics": {"sidecar_ranges": {"rows": 1}}}])
        progress.settle()
    progress.settle(last=True)
    return progress


def outcome_of(root: Path, deaths: list[int]) -> tuple[int, Counter[Any], Counter[Any]]:
    """The changes to the disk in the last of these lives, the rows that arrived, and the dead letters."""
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        settings = make_settings(
            receiver.url, dedup={"by": {"header": "tag"}}, tags={"from": "topic"}, batch={"max_messages": 10}
        )
        for at in deaths:
            with closing(Store(root / "state")) as state, suppress(ProcessDied), disk(Disk(at, death=True)) as seen:
                assert live(settings, root, state).latest().problems == ()
        bodies: dict[str, bytes] = {}
        for headers, body in zip(receiver.headers, receiver.bodies, strict=True):
            assert bodies.setdefault(headers["idempotency-key"], body) == body
        return len(seen.calls), Counter(receiver.rows()), dead_letters(root / "state")


def test_wherever_a_driver_ends_the_next_one_goes_on(tmp_path: Path) -> None:
    """Each message arrives once, a name stands for the same bytes ever after, and each dead letter is stored once."""
    changes, rows, letters = outcome_of(tmp_path / "whole", [0])
    assert changes > 100 and set(rows.values()) == set(letters.values()) == {1}
    assert len(letters) == sum(value == b"poison" for b in range(BATCHES) for _, _, value in messages(b))
    for at in range(1, changes + 1, STEP):
        second = 1 + at * 5 % changes
        found = outcome_of(tmp_path / str(at), [at, second, 0])
        assert found[1:] == (rows, letters), f"ended before change {at}, then before change {second}"
