"""The progress of a query on Spark: dead letters of tasks reach the state, and the run is at rest when none is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.books import Books
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import LetterFiles, TwinFiles, books_of
from sidecar.state.interface import StoredLetter
from tests.support.letters import letter
from tests.support.memory_state import MemoryState
from tests.support.spark.tasks import TP, begin, make_settings, progress_of

BOOKS = books_of([]) | {
    "partitions": [[*TP, {"consumed": 3, "delivered": 2, "dead_lettered": 1}]],
}


class Run:
    """A run whose first micro-batch was committed with a dead letter."""

    def __init__(self, root: Path, **change: Any) -> None:
        self.state, self.folder, self.query = MemoryState(), RunFolder(root / "sidecar"), root / "query"
        self.progress = progress_of(make_settings("http://localhost:1/", **change), self.folder, self.query, self.state)
        files = LetterFiles(root / "sidecar" / "letters" / "0", "a")
        files.put([letter(7)])
        self.folder.books.put(0, {**BOOKS, "letters": files.names})
        begin(self.query, 0, "offsets", "commits")
        self.report = {"batchId": 0, "observedMetrics": {"other": {}}, "sources": [], "durationMs": {}}

    @property
    def letters(self) -> list[int]:
        """The offsets of the dead letters in the state."""
        return [each.offset for each in self.state.letters.load(10)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """One without a ledger."""
    return Run(tmp_path)


def test_dead_letters_of_a_micro_batch_reach_the_state(run: Run) -> None:
    """Once it is committed and Spark's report of it is here; its books are entered then, and its file goes."""
    run.progress.settle()
    assert (run.letters, run.progress.latest().totals) == ([], Books())
    run.progress.heard([run.report])
    run.progress.settle()
    totals = run.progress.latest().totals
    assert (run.letters, totals.delivered, totals.dead_lettered) == ([7], 2, 1)
    assert run.folder.books.batches() == []


def test_a_micro_batch_that_is_not_committed_waits(run: Run) -> None:
    """Its tasks may run again."""
    (run.query / "commits" / "0").unlink()
    run.progress.heard([run.report])
    run.progress.settle()
    assert (run.letters, run.folder.books.batches()) == ([], [0])


def test_the_end_waits_for_no_report(run: Run) -> None:
    """Spark sends none any more."""
    run.progress.settle(last=True)
    assert (run.letters, run.progress.latest().totals.delivered) == ([7], 2)


def test_dead_letters_that_find_no_room_wait(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a problem until there is room, and an error at the end."""

    def full(letters: Sequence[StoredLetter]) -> None:
        raise StateError("the disk is full")

    run.progress.heard([run.report])
    with monkeypatch.context() as patch:
        patch.setattr(run.state.letters, "put", full)
        run.progress.settle()
        (problem,) = run.progress.latest().problems
        assert (problem.kind, problem.text) == (
            "dead_letters_store", "dead letters cannot be stored: micro-batch 0: the disk is full"
        )  # fmt: skip
        with pytest.raises(StateError, match="the disk is full"):
            run.progress.settle(last=True)
    run.progress.settle()
    assert (run.letters, run.progress.latest().problems) == ([7], ())


def test_a_micro_batch_of_an_earlier_process_is_in_no_books(tmp_path: Path) -> None:
    """Its dead letters are stored, if that process did not come to it."""
    run = Run(tmp_path)
    after = progress_of(make_settings("http://localhost:1/"), run.folder, run.query, run.state)
    after.settle()
    assert (run.letters, after.latest().totals) == ([7], Books())


def test_a_run_with_a_ledger_is_at_rest_when_no_twin_and_no_letter_of_one_waits(tmp_path: Path) -> None:
    """Letters of twins are put into the state with the next round."""
    progress = Run(
        tmp_path, state={"dir": str(tmp_path)}, dedup={"by": {"json": "$.order"}, "ledger": {"sqlite": {}}}
    ).progress
    twins = TwinFiles(tmp_path / "sidecar")
    assert progress.at_rest
    LetterFiles(twins.letters, "a").put([letter(9)])
    assert not progress.at_rest
    progress.settle()
    assert progress.at_rest
    (tmp_path / "sidecar" / "twins" / "3").write_text("[]")
    assert not progress.at_rest


def test_a_run_without_a_ledger_is_always_at_rest(run: Run) -> None:
    """No message waits for a twin."""
    assert run.progress.at_rest


def test_lag_and_place_are_those_of_the_highest_report(run: Run) -> None:
    """A report that comes late moves nothing back; the lag is unknown where Spark tells no end."""
    tp = TopicPartition("orders", 3)
    for end, latest in ((10, 15), (7, 9)):
        source = {"endOffset": {tp.topic: {"3": end}}, "latestOffset": {tp.topic: {"3": latest}}}
        run.progress.heard([{"batchId": 1, "sources": [source]}])
    run.progress.settle()
    (status,) = run.progress.latest().partitions
    assert (status.watermark, status.position, status.lag) == (10, 10, 5)
    run.progress.heard([{"batchId": 2, "sources": [{"endOffset": {tp.topic: {"3": 11}}}]}])
    run.progress.settle()
    (status,) = run.progress.latest().partitions
    assert (status.watermark, status.lag) == (11, None)


def test_a_query_that_ended_is_a_problem_with_its_reason(run: Run) -> None:
    """With a text of its own if there is none."""
    run.progress.ended("no broker")
    assert [(each.kind, each.text) for each in run.progress.latest().problems] == [("ended", "no broker")]
    run.progress.ended()
    assert [each.text for each in run.progress.latest().problems] == ["the query has ended"]
