"""What a start that failed leaves for the next one. No Spark runs, and no broker."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import pytest

from sidecar.errors import ConfigError, StateError
from sidecar.spark.ranges.shared import write
from sidecar.spark.run.pinned import latest_batch, open_checkpoint, pending_batch
from tests.support.spark.tasks import begin, make_settings

STARTS = (
    "sidecar/first",
    "sidecar/table/first",
    "sidecar/rejects/first",
    "table/sources/0/0",
    "rejects/sources/0/.0.crc",
)
"""Where start offsets are kept, by our source and by Spark's connector."""


class Job(NamedTuple):
    """A job with two queries."""

    root: Path

    @property
    def queries(self) -> list[Path]:
        """Spark's checkpoints."""
        return [self.root / "table", self.root / "rejects"]

    def start(self) -> list[str]:
        """Open the checkpoint; the files with start offsets that are there afterwards."""
        open_checkpoint(self.queries, self.root / "sidecar", make_settings("http://localhost:1/"), "cluster")
        return [name for name in STARTS if (self.root / name).exists()]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """One that has chosen where it starts."""
    job = Job(tmp_path)
    job.start()
    for name in STARTS:
        write(tmp_path / name, b"{}")
    return job


def test_a_start_that_planned_nothing_does_not_count(job: Job) -> None:
    """A daemon may have read on since: the next start begins where the group is by then."""
    assert job.start() == []


@pytest.mark.parametrize("query", [0, 1])
def test_a_start_counts_once_a_micro_batch_is_planned(job: Job, query: int) -> None:
    """Spark's log has only where the first micro-batch ends, and both queries begin at the same offsets."""
    begin(job.queries[query], 0, "offsets")
    assert job.start() == list(STARTS)


def test_a_start_that_cannot_be_forgotten_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of before would be used silently."""
    monkeypatch.setattr("os.unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    with pytest.raises(StateError, match=r"cannot remove .*first: Read-only file system"):
        job.start()


@pytest.mark.parametrize(
    ("offsets", "commits", "pending"),
    [([], [], -1), ([0], [], 0), ([0], [0], -1), ([8, 9, 10], [8, 9], 10), ([9, 10], [9, 10], -1), ([0, 1], [0], 1)],
)
def test_a_micro_batch_is_pending_until_it_is_committed(
    tmp_path: Path, offsets: list[int], commits: list[int], pending: int
) -> None:
    """Batches are numbers, not texts, and other files of Spark count for nothing."""
    for log, batches in (("offsets", offsets), ("commits", commits)):
        (tmp_path / log).mkdir()
        (tmp_path / log / ".99.crc").touch()
        for batch in batches:
            begin(tmp_path, batch, log)
    assert (pending_batch(tmp_path), latest_batch(tmp_path, "commits")) == (pending, max(commits, default=-1))


@pytest.mark.parametrize(("ends", "is_refused"), [(("5", "5"), False), (("5", "7"), True)])
def test_rules_change_only_where_both_queries_have_read_equally_far(
    job: Job, ends: tuple[str, str], is_refused: bool
) -> None:
    """Else the rest of one of them would be made by rules that the other did not have."""
    for query, end in zip(job.queries, ends, strict=True):
        begin(query, 0, "offsets", "commits")
        (query / "offsets" / "0").write_text(f"v1\n{{}}\n{end}")
    changed = make_settings("http://localhost:1/", tags={"exclude": "x"})
    with pytest.raises(ConfigError, match="are at different places") if is_refused else contextlib.nullcontext():
        open_checkpoint(job.queries, job.root / "sidecar", changed, "cluster")
