"""How far a partition of the source was read into a changelog that fences. Numbers and bytes only.

Such a changelog has no void records, so it records itself which messages were put: each put does so in its transaction.
The source's commit shows the same only if it has metadata. A bare offset comes from the last process to commit; one
below the changelog's comes from an operator's reset, or the broker lost a later commit.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.records import RecordLineage, fields_of

REACH_KEY = b"r"
_VERSION = 1
_REACH = struct.Struct(">BQIQQ")
"""Version, incarnation, hash of the topic's id, committed, seen."""


class PutReach(NamedTuple):
    """How far owners have come."""

    lineage: RecordLineage
    """Numbering that the offsets belong to."""
    committed: int
    """An offset that the source's commit has, or had: perhaps an older one once it is at or above `seen`."""
    seen: int
    """All messages below that are to be held were put, and are held or ended."""

    def entry(self) -> ChangelogEntry:
        return ChangelogEntry(REACH_KEY, _REACH.pack(_VERSION, *self.lineage, self.committed, self.seen))


class DoubtError(Exception):
    """The source's offset contradicts the changelog. An owner may have committed after the offset was read."""

    def __init__(self, reach: PutReach) -> None:
        super().__init__(str(reach))
        self.reach = reach


def read_reach(raw: bytes) -> PutReach:
    """The record that was made.

    Raises:
        ValueError: It is something else.
    """
    incarnation, topic, committed, seen = fields_of(_REACH, _VERSION, raw, is_all=True)
    return PutReach(RecordLineage(incarnation, topic), committed, seen)


class Handed(NamedTuple):
    """The source's offset, and its bounds."""

    offset: int = 0
    continues: bool = False
    """Whether the offset is the last owner's, as far as this host knows, though the incarnation may be new."""
    end: int | None = None
    """The end of the source's log, if owners hand on nothing but the offset."""
    doubted: PutReach | None = None
    """The mismatch found last time; if it recurs, it is accepted."""


class Resumed(NamedTuple):
    """Where the owner continues."""

    reach: PutReach
    drops_from: int | None
    """Messages of this topic at or above this offset are read again, and put again; None if nothing is read again."""


def resumed(
    reach: PutReach | None, lineage: RecordLineage, watermark: int, seen: int, handed: Handed, epoch: int
) -> Resumed:
    """Decide where an owner continues.

    Args:
        reach: The changelog's record; None if the changelog is new.
        lineage: Numbering of the source's offsets, as this host knows it.
        watermark: The offset from which everything is read again after a reset.
        seen: The offset from which the source reads.

    Raises:
        DoubtError: The source is to be asked again.
    """
    anew = PutReach(lineage, seen, seen)
    if reach is None:
        return Resumed(anew, None)
    if reach.lineage != lineage and not handed.continues:
        return Resumed(anew, watermark if reach.lineage.topic == lineage.topic else None)
    is_cut = handed.end is not None and reach.seen > handed.end
    if not is_cut and not (handed.continues and handed.offset < reach.committed):
        return Resumed(reach, None)
    if handed.doubted != reach:
        raise DoubtError(reach)
    # The incarnation may be that of messages which these are not.
    return Resumed(anew._replace(lineage=RecordLineage(epoch, lineage.topic)), None if is_cut else seen)
