"""What was delivered: messages and bytes by group, sizes of batches, and the age of messages. Counts only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sidecar.core.books import Tally
from sidecar.core.histogram import Distribution, Histogram
from sidecar.core.parts import Batch

AGE_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0)
"""Seconds."""
MESSAGES_BOUNDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)
BYTES_BOUNDS = (256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0)


class DeliveryCounts(NamedTuple):
    """Counts since the start, by group's label where they are by group."""

    messages: Mapping[str, int] = {}
    """In batches that were accepted as a whole."""
    nbytes: Mapping[str, int] = {}
    """Of their bodies, before compression."""
    ages: Distribution = Histogram(AGE_BOUNDS).read()
    batch_messages: Distribution = Histogram(MESSAGES_BOUNDS).read()
    batch_bytes: Distribution = Histogram(BYTES_BOUNDS).read()


class Deliveries:
    """Counts batches that were accepted as a whole."""

    def __init__(self) -> None:
        self.tap: Callable[[Batch], None] | None = None
        """Is shown each batch; None as long as nobody looks."""
        self._counts = Tally()
        self._ages, self._messages, self._bytes = map(Histogram, (AGE_BOUNDS, MESSAGES_BOUNDS, BYTES_BOUNDS))

    def add(self, batch: Batch, wall_ms: int) -> None:
        """Count a batch, accepted at this time in epoch milliseconds."""
        if self.tap is not None:
            self.tap(batch)
        self._counts.add(batch.group, "messages", batch.count)
        self._counts.add(batch.group, "bytes", batch.nbytes)
        self._messages.observe(batch.count)
        self._bytes.observe(batch.nbytes)
        for part in batch.parts:
            for fragment in part.fragments:
                if fragment.stamp_ms is not None:
                    self._ages.observe(max(0.0, (wall_ms - fragment.stamp_ms) / 1000), fragment.count)

    def read(self) -> DeliveryCounts:
        """The counts so far."""
        found = self._counts.counts().items()
        messages = {group: count for (group, kind), count in found if kind == "messages"}
        nbytes = {group: count for (group, kind), count in found if kind == "bytes"}
        return DeliveryCounts(messages, nbytes, self._ages.read(), self._messages.read(), self._bytes.read())
