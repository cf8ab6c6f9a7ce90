"""A query of a job that outlives the start of Spark's own Python process. Knows no source and no sink.

For each Python source of a stream, Spark starts a process beside the driver, and waits 10 s until it connects. On a
loaded host that is too short, and unlike a task, the query is not tried again. Nothing was read, so it begins where it
was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from sidecar.spark.failures import cause_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

NOT_CONNECTED: Final = "Python worker failed to connect back"
"""Spark's text."""
AGAIN_MAX: Final = 5
"""How often a query is started again in a row, until it reports something."""

REPORTS_MAX: Final = 100
"""Of earlier starts; Spark keeps as many."""

log = structlog.get_logger()


class LastingQuery:
    """A `StreamingQuery` that is started again if its Python process did not connect.

    Args:
        start: Starts the query, always from the same checkpoint.
    """

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._query = start()
        self._heard: list[Any] = []
        self._left = AGAIN_MAX

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's names, here and below
        """Whether it runs; it does if it could be started again."""
        if self._query.isActive:
            return True
        error = self._query.exception()
        if error is None or NOT_CONNECTED not in str(error):
            return False
        reports = self._query.recentProgress
        self._left = AGAIN_MAX if reports else self._left
        if not self._left:
            return False
        self._left -= 1
        self._heard = [*self._heard, *reports][-REPORTS_MAX:]
        log.warning("query.started_again", reason=cause_of(str(error)), attempts_left=self._left)
        self._query = self._start()
        return True

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802
        """The last reports of Spark, those before it was started again included."""
        return [*self._heard, *self._query.recentProgress]
