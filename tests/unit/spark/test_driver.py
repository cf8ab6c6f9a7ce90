"""The end of a job on Spark: what counts as the end of its JVM, and a stop while its storage fails. No Spark."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from structlog.testing import capture_logs

from sidecar.errors import StateError
from sidecar.spark.driver import QueryError, serving
from sidecar.spark.ranges.shared import names
from sidecar.spark.run.job import SparkRun
from sidecar.spark.table.filling import TableQueries, TableRules
from tests.support.spark.tasks import make_settings

GONE = [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(errno.ECONNREFUSED, "refused")]


class Ends:
    """Takes how the job ended; nothing is left to settle."""

    at_rest = True

    def __init__(self) -> None:
        self.problems: list[str] = []

    def heard(self, reports: object) -> None:
        """No matter."""

    def settle(self, *, last: bool = False) -> None:
        """No matter."""

    def ended(self, problem: str = "") -> None:
        """One end."""
        self.problems.append(problem)


class Query:
    """A query that runs until it is stopped, or has failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.isActive = error is None
        self.reads = 0
        """How often its reports were read."""
        self._error = error

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802  # Spark's name
        """Its reports."""
        self.reads += 1
        return []

    def exception(self) -> Exception | None:
        """Why it failed."""
        return self._error

    def stop(self) -> None:
        """Its end."""
        self.isActive = False


def run(folder: Path, query: Any, progress: Any, *, stopped: bool) -> None:
    """Wait for the end of the query of the pipeline."""
    settings = make_settings("http://localhost:1/", spark={"checkpoint": str(folder)})
    SparkRun(settings, lambda: stopped)._await_end(query, progress)


def fill(folder: Path, query: Any, progress: Any, *, stopped: bool) -> None:
    """Wait for the end of the query of a table."""
    queries = TableQueries(TableRules(f"{folder}/table", "delta", None, 100, ()), once=False)
    queries._queries.append(query)
    queries.await_end(progress, lambda: stopped, lambda: None, lambda: 0.0)


JOBS = pytest.mark.parametrize("job", [run, fill])


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of a share whose server was replaced."""

    def listdir(path: object) -> list[str]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(os, "listdir", listdir)


@pytest.mark.parametrize("error", GONE, ids=repr)
def test_the_jvm_is_gone(error: Exception) -> None:
    """An error of the connection to the JVM is its end."""
    ends = Ends()
    with pytest.raises(QueryError, match="the JVM of the driver ended"), serving(ends, lambda: False):
        raise error
    assert ends.problems == ["the JVM of the driver is gone"]


@pytest.mark.parametrize("error", GONE, ids=repr)
def test_the_jvm_may_end_with_a_stop(error: Exception) -> None:
    """After a stop was asked for, the end of the JVM is no error."""
    with serving(Ends(), lambda: True):
        raise error


def test_an_error_of_a_file_is_not_the_end_of_the_jvm() -> None:
    """An error of storage passes as it is, also after a stop was asked for."""
    with pytest.raises(OSError, match="Input/output error"), serving(Ends(), lambda: True):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.usefixtures("stale")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error has the folder and the reason."""
    with pytest.raises(StateError, match=rf"cannot read {tmp_path}: Stale file handle"):
        names(tmp_path)


@pytest.mark.usefixtures("stale")
def test_a_stop_reaches_the_query_while_storage_fails(tmp_path: Path) -> None:
    """If the checkpoint cannot be read, the query is stopped all the same."""
    settings = make_settings("http://localhost:1/", spark={"checkpoint": str(tmp_path)})
    query: Any = Query()
    SparkRun(settings, lambda: True)._stop(query)
    assert not query.isActive


@JOBS
def test_a_query_that_fails_ends_the_job(tmp_path: Path, job: Callable[..., None]) -> None:
    """The error has the reason."""
    with pytest.raises(QueryError, match="the query ended: no such table"):
        job(tmp_path, Query(RuntimeError("no such table")), Ends(), stopped=False)


@JOBS
def test_a_query_that_fails_during_a_stop_is_logged(tmp_path: Path, job: Callable[..., None]) -> None:
    """The job ends in order, and its log has the reason."""
    with capture_logs() as events:
        job(tmp_path, Query(RuntimeError("no such table")), Ends(), stopped=True)
    assert events == [{"event": "query.failed", "log_level": "warning", "reason": "no such table"}]


@JOBS
def test_reports_are_read_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Callable[..., None]
) -> None:
    """Each read fetches up to 100 reports from the JVM; the last one is after the end of the query."""
    query = Query()

    class Clock:
        """A clock that only sleep moves; the query ends after 3 s."""

        now_s = 100.0

        def monotonic(self) -> float:
            """The time."""
            return self.now_s

        def sleep(self, seconds: float) -> None:
            """Some time later."""
            self.now_s += seconds
            query.isActive = self.now_s < 103

    clock = Clock()
    monkeypatch.setattr("sidecar.spark.driver.time", clock)
    job(tmp_path, query, Ends(), stopped=False)
    assert query.reads in {4, 5}
