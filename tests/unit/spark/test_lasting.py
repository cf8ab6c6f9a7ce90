"""Queries of jobs whose Python process does not connect in time. No Spark runs: the queries are fakes."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from sidecar.spark.driver import AGAIN_MAX, NOT_CONNECTED, REPORTS_MAX, LastingQuery


class Query:
    """A query that runs until it ends with an error."""

    def __init__(self) -> None:
        self.isActive = True
        self.recentProgress: list[Any] = []
        self.error: Exception | None = None

    def exception(self) -> Exception | None:
        """Why it ended."""
        return self.error

    def end(self, error: Exception | None) -> None:
        """It ends."""
        self.isActive, self.error = False, error


class Scene:
    """A lasting query, and all that it has started."""

    def __init__(self) -> None:
        self.started: list[Query] = []
        self.query: Any = LastingQuery(self.start)  # type: ignore[arg-type]

    def start(self) -> Query:
        """One more."""
        self.started.append(Query())
        return self.started[-1]

    def fail(self, text: str = f"org.apache.spark.SparkException: {NOT_CONNECTED}.") -> bool:
        """The present one ends with this error; returns whether the query goes on."""
        self.started[-1].end(ValueError(text))
        return bool(self.query.isActive)


def test_a_query_whose_process_did_not_connect_is_started_again() -> None:
    """It is told with the reason, and the job sees neither an end nor an error."""
    scene = Scene()
    with capture_logs() as logs:
        assert scene.fail()
    assert (len(scene.started), scene.query.exception()) == (2, None)
    (told,) = logs
    assert (told["event"], told["attempts_left"]) == ("query.started_again", AGAIN_MAX - 1)
    assert NOT_CONNECTED in told["reason"]


def test_a_query_that_never_connects_ends() -> None:
    """Its error is that of the last start."""
    scene = Scene()
    assert [scene.fail() for _ in range(AGAIN_MAX + 1)] == [True] * AGAIN_MAX + [False]
    assert NOT_CONNECTED in str(scene.query.exception())


def test_a_query_that_reported_has_all_starts_again() -> None:
    """Reports of earlier starts are kept, as many as Spark keeps."""
    scene = Scene()
    for number in range(AGAIN_MAX * 20):
        scene.started[-1].recentProgress = [{"batchId": number}, {"batchId": number}]
        assert scene.fail()
    scene.started[-1].recentProgress = [{"batchId": 100}]
    found = [report["batchId"] for report in scene.query.recentProgress]
    assert (len(found), found[0], found[-1]) == (REPORTS_MAX + 1, AGAIN_MAX * 20 - REPORTS_MAX // 2, 100)


def test_other_ends_are_ends() -> None:
    """Another error, and a stop."""
    scene = Scene()
    assert scene.query.isActive
    assert not scene.fail("no space")
    scene = Scene()
    scene.started[-1].end(None)
    assert not scene.query.isActive
    assert len(scene.started) == 1
