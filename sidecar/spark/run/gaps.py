"""Messages that expired before Spark's connector read them: it neither tells where the log begins nor counts them.

So a run that begins with such a gap reads as with `client`, whose planning leaves out, tells and counts what is gone.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog

from sidecar.core.records import TopicPartition
from sidecar.errors import PositionError
from sidecar.spark.ranges.broker import ANEW, BrokerRanges, OnGap, by_topic, expired, gap, lows_of, patiently
from sidecar.spark.ranges.shared import write
from sidecar.spark.run.pinned import begun_at, pinned_reader

log = structlog.get_logger()


class Gap(NamedTuple):
    """A partition that was read up to an offset before the start of its log."""

    tp: TopicPartition
    offset: int
    low: int

    @property
    def text(self) -> str:
        """What to tell."""
        return gap(self.tp, self.offset, self.low, "spark.on_gap")


class Gaps:
    """The gaps of one checkpoint."""

    def __init__(self, broker: BrokerRanges, on_gap: OnGap, query: Path, folder: Path) -> None:
        self._broker = broker
        self._on_gap = on_gap
        self._query = query
        self._folder = folder

    def first(self) -> Gap | None:
        """The first gap.

        Raises:
            PositionError: There is one, and the settings do not say to go on.
            UnavailableError: The broker does not answer.
        """
        begun = begun_at(self._query)
        if not begun:
            return None
        with closing(self._broker.logs()) as logs:
            lows = lows_of(patiently(logs.bounds))
        found = next((Gap(tp, begun[tp], low) for tp, low in sorted(expired(begun, lows).items())), None)
        if found is not None and self._on_gap == "stop":
            raise PositionError(found.text, hint=f"set it, or {ANEW}")
        return found

    def leaves_connector(self, pending: int) -> bool:
        """Whether this run reads as with `client`; its micro-batches are ended by that too.

        Args:
            pending: The micro-batch that an earlier process did not finish; -1 for none.

        Raises:
            PositionError: See `first`.
        """
        found = self.first()
        if found is None:
            return self._on_gap == "log_start" and pending >= 0 and pinned_reader(self._folder) == "client"
        log.warning("connector.not_used", **found.tp.fields(), reason="messages expired before they were read")
        if pending == 0:  # the connector keeps the start of a checkpoint elsewhere
            write(self._folder / "first", orjson.dumps(by_topic(begun_at(self._query))))
        return True
