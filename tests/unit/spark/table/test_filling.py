"""The queries that fill a table, from their start to their end. No Spark runs: the queries are fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar import spark
from sidecar.errors import ConfigError
from sidecar.spark import driver
from sidecar.spark.driver import own_session
from sidecar.spark.table import filling as module
from sidecar.spark.table.filling import TableQueries, TableRules


class Query:
    """A query that has ended micro-batches, and may be at work on the next one."""

    def __init__(self, name: str, batch: int | None = 3) -> None:
        self.id = name
        self.isActive = True
        self.is_busy = True
        self.error: Exception | None = None
        self.batch = batch
        self.stops = 0

    @property
    def lastProgress(self) -> Any:  # noqa: N802  # Spark's name
        """The last report."""
        return None if self.batch is None else {"batchId": self.batch}

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802  # Spark's name
        """All reports."""
        return [] if self.batch is None else [{"batchId": self.batch, "of": self.id}]

    @property
    def status(self) -> dict[str, bool]:
        """Whether a micro-batch runs."""
        return {"isTriggerActive": self.is_busy}

    def exception(self) -> Exception | None:
        """Why it ended."""
        return self.error

    def stop(self) -> None:
        """It ends."""
        self.stops += 1
        self.isActive = False


class Scene:
    """Two queries of a table, on a clock that only waiting moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, once: bool = False) -> None:
        self.now_s = 100.0
        self.queries = TableQueries(TableRules("/t", "delta", None, 2_500, ()), once=once)
        self.table, self.rejects = Query("table"), Query("rejects")
        self.queries._queries = [self.table, self.rejects]  # type: ignore[list-item]
        self.heard: list[Any] = []
        self.problems: list[str] = []
        self.turns = 0
        self.on_turn: Callable[[int], None] = lambda _: None
        self.stop_asked = False
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(driver, "time", clock)
        monkeypatch.setattr(driver, "fail", self.fail)
        monkeypatch.setattr(driver, "failed_in_stop", lambda error: self.problems.append(f"in stop: {error}"))

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now_s += seconds

    def fail(self, progress: Any, error: Exception) -> None:
        """The process ends."""
        raise RuntimeError(f"it failed: {error}")

    def hear(self, reports: Sequence[Any]) -> None:
        """Take reports."""
        self.heard.append(list(reports))

    def turn(self) -> None:
        """The driver's other work."""
        self.turns += 1
        self.on_turn(self.turns)

    def run(self, patience_s: float = 10.0) -> None:
        """Wait for the end."""
        progress: Any = SimpleNamespace(heard=self.hear)
        self.queries.await_end(progress, lambda: self.stop_asked, self.turn, lambda: patience_s)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Both queries at work."""
    return Scene(monkeypatch)


def end(*queries: Query) -> None:
    """These queries end by themselves."""
    for query in queries:
        query.isActive = False


def test_the_job_ends_with_its_last_query(scene: Scene) -> None:
    """The reports of the query for the table are heard to the last."""
    scene.on_turn = lambda turn: end(*([scene.table] if turn == 2 else [scene.rejects] if turn == 4 else []))
    scene.run()
    assert scene.turns == 4
    assert scene.heard[-1] == [{"batchId": 3, "of": "table"}]
    assert (scene.table.stops, scene.rejects.stops) == (0, 0)


def test_reports_are_heard_now_and_then(scene: Scene) -> None:
    """Asking the JVM costs time; once more at the end."""
    turns = round(2.5 * driver.HEAR_EVERY_S / driver.TURN_S)
    scene.on_turn = lambda turn: end(scene.table, scene.rejects) if turn == turns else None
    scene.run()
    assert len(scene.heard) == 4


@pytest.mark.parametrize("which", ["table", "rejects"])
def test_an_error_of_one_query_ends_the_job(scene: Scene, which: str) -> None:
    """The other one is not waited for."""

    def fail(turn: int) -> None:
        query: Query = getattr(scene, which)
        query.isActive, query.error = False, ValueError("no space")

    scene.on_turn = fail
    with pytest.raises(RuntimeError, match="it failed: no space"):
        scene.run()
    assert (scene.turns, len(scene.heard)) == (1, 2)


def test_a_stop_lets_running_micro_batches_end(scene: Scene) -> None:
    """Each query for itself; none begins another one."""
    scene.stop_asked = True
    begun = scene.now_s

    def pass_(seconds: float) -> None:
        scene.now_s += seconds
        if scene.now_s >= begun + 2:
            scene.table.batch = 4
        if scene.now_s >= begun + 3:
            scene.rejects.is_busy = False

    module.time.sleep = pass_  # type: ignore[attr-defined]
    scene.run()
    assert 3 <= scene.now_s - begun < 4
    assert (scene.table.stops, scene.rejects.stops, scene.turns) == (1, 1, 0)


def test_a_stop_cuts_short_what_takes_too_long(scene: Scene) -> None:
    """It is undone, and repeated by the next process; an error of it is told and no more."""
    scene.stop_asked, begun = True, scene.now_s
    scene.rejects.error = ValueError("interrupted")
    scene.run(patience_s=5.0)
    assert 5 <= scene.now_s - begun < 6
    assert (scene.table.stops, scene.problems) == (1, ["in stop: interrupted"])


def test_a_query_that_is_idle_or_over_is_not_waited_for(scene: Scene) -> None:
    """Nor is one that has had no micro-batch yet and is at none."""
    scene.stop_asked, begun = True, scene.now_s
    scene.table.is_busy, scene.rejects.isActive = False, False
    scene.table.batch = None
    scene.run()
    assert scene.now_s - begun < 1


@pytest.mark.parametrize(
    ("once", "trigger"), [(True, {"availableNow": True}), (False, {"processingTime": "2500 milliseconds"})]
)
def test_a_query_takes_what_is_there_or_goes_on(
    monkeypatch: pytest.MonkeyPatch, once: bool, trigger: dict[str, Any]
) -> None:
    """At the interval of the settings."""
    given: list[Any] = []
    writer: Any = SimpleNamespace(trigger=lambda **words: given.append(words) or writer, start=lambda: None)
    Scene(monkeypatch, once=once).queries.start(writer)
    assert given == [trigger]


def test_a_session_of_spark_connect_is_refused() -> None:
    """The job needs a JVM of its own."""
    session: Any = object()
    with ExitStack() as stack, pytest.raises(ConfigError, match="the session is one of Spark Connect") as caught:
        own_session(stack, session, is_delta=True)
    assert spark.read_stream.__name__ in caught.value.hint
