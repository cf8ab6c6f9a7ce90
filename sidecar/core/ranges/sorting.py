"""Sorting of one range whose rows go into a table: position, filter, id. It cuts and delivers nothing."""

from __future__ import annotations

from sidecar.core.books import Books
from sidecar.core.intake.intake import Intake
from sidecar.core.intake.reading import Reading
from sidecar.core.lineage import Lineage
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.partition.room import Room
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition


def owned_range(separator: bytes, tp: TopicPartition, scope: str) -> Ownerships:
    """The ownership of one range.

    Args:
        separator: The bytes between two rows of a fragment.
        tp: Its partition.
        scope: Identity of the partition in the names of parts.
    """
    owned = Ownerships(separator)
    owned.limit(Room(extra_bytes=1 << 62))  # a part may always be split: the room for intents is a folder
    owned.take(tp, scope, PartitionState(0, 0), Lineage())
    return owned


class RangeSorter:
    """Sorts the messages of a range; the framer of the rules takes the rows of those that are wanted and new.

    Args:
        reading: Rules of reading messages; every message can be framed.
        tp: The partition.
        scope: Identity of the partition.
    """

    def __init__(self, reading: Reading, tp: TopicPartition, scope: str) -> None:
        self._range = owned_range(reading.framer.separator, tp, scope)[tp]
        self.intake = Intake(reading)
        self.books = Books()

    def read(self, run: Run, now_ms: float) -> None:
        """Take the next messages of the range."""
        found = self.intake.sort(self._range, run, now_ms)
        self.books.read(len(run.messages), found.duplicate, found.filtered)
        self.books.settle("delivered", sum(fragment.count for _, fragment in found.opened))
        self._range.read_past(run.last + 1)
        self._range.dues.drop_ids()  # a file of windows replaces the daemon's journal
