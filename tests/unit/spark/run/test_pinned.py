"""What a start that failed leaves for the next one. No Spark runs, and no broker."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from sidecar.errors import StateError
from sidecar.spark.ranges.shared import write
from sidecar.spark.run.pinned import open_checkpoint
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
