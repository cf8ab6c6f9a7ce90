"""A landing zone of manifest lines alone, quick to write, and a query as Spark runs it: for tests of the planning."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import orjson
from pyroaring import BitMap64

from sidecar.spark.source.options import Limit
from sidecar.spark.source.planner import Offsets, Planner, Share
from sidecar.storage import storage_of
from sidecar.storage.base import first_of
from sidecar.zone.entry import Cover, Entry, PartitionId, PartRows, line_of
from sidecar.zone.floor import Floor, write_floor
from sidecar.zone.index import Wanted
from sidecar.zone.layout import manifest_folder
from tests.support.landing import segment_path

Landed: TypeAlias = Mapping[PartitionId, Iterable[int]]
Row: TypeAlias = tuple[PartitionId, int]


def place(partition: int = 0, scope: str = "s") -> PartitionId:
    """A partition of the one topic."""
    return "orders", scope, partition


class Lines:
    """Writes the lines, and remembers them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries: dict[str, list[Entry]] = {}

    def land(self, writer: str, landed: Landed, group: str = "paid", size: int = 100) -> Entry:
        """One more batch."""
        known = self.entries.setdefault(writer, [])
        seq, bitmaps = len(known), {where: BitMap64(offsets) for where, offsets in landed.items()}
        covers = tuple(Cover(*where, bytes(bitmap.serialize())) for where, bitmap in bitmaps.items())
        parts = tuple(PartRows(f"{writer}-{seq}-{i}", len(some), i) for i, some in enumerate(bitmaps.values()))
        rows, file = sum(part.rows for part in parts), f"data/{writer}/{seq}.arrow"
        index = zlib.compress(orjson.dumps([[[rows, group, group, None, None, True]]]))
        known.append(Entry(writer, seq, file, group, rows, size, 0, seq * size, 0, parts, covers, index))
        path = segment_path(self.root, writer, seq)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as lines:
            lines.write(line_of(known[-1]) + b"\n")
        return known[-1]

    def remove(self, writer: str, seq: int) -> None:
        """Retention takes data up to a number, and the segments that end before it."""
        zone = storage_of(self.root)
        log = zone.lines(manifest_folder(writer))
        first = first_of(log, seq + 1)
        log.remove(range(0, first, log.segment_lines))
        write_floor(zone, writer, Floor(seq, 0, first))

    def rows(self, groups: Collection[str] | None = None) -> set[Row]:
        """All that was ever landed, each once."""
        some = (entry for known in self.entries.values() for entry in known if groups is None or entry.group in groups)
        return {(cover.place, offset) for entry in some for cover in entry.covers for offset in cover.offsets()}

    def rows_of(self, share: Share) -> list[Row]:
        """What a task would deliver of a share."""
        entry = self.entries[share.entry.writer][share.entry.seq]
        left = ((cover.place, cover.offsets() - share.drop.get(cover.place, BitMap64())) for cover in entry.covers)
        return [(where, offset) for where, offsets in left for offset in offsets]


class Query:
    """A query with its checkpoint: offsets are logged before a micro-batch runs and committed after it."""

    def __init__(self, lines: Lines, *, groups: Collection[str] | None = None, dedup: bool = True) -> None:
        self._lines = lines
        self._groups = groups
        self._dedup = dedup
        self.committed: Offsets = {}
        self.logged: Offsets | None = None
        self.got: Counter[Row] = Counter()
        self.told: list[str] = []
        self.restart()

    def restart(self, groups: Collection[str] | None = None) -> None:
        """The driver ends, and another one begins from the checkpoint."""
        self._groups = self._groups if groups is None else groups
        self.planner = Planner(
            self._lines.root, wanted=Wanted.of(self._groups, None), dedup=self._dedup, report=self.told.append
        )

    def plan(self, limit: Limit = Limit(), target: Offsets | None = None) -> list[Row]:  # noqa: B008
        """Log a micro-batch, unless one is logged, and what it has; not committed yet."""
        if self.logged is None:
            self.logged = self.planner.latest(self.committed, limit, target)
        shares = self.planner.plan(self.committed, self.logged)
        return [row for share in shares for row in self._lines.rows_of(share)]

    def run(self, limit: Limit = Limit(), target: Offsets | None = None) -> list[Row]:  # noqa: B008
        """One micro-batch from beginning to end."""
        rows = self.plan(limit, target)
        self.got.update(rows)
        assert self.logged is not None
        self.committed, self.logged = self.logged, None
        return rows

    def drain(self, limit: Limit = Limit()) -> Counter[Row]:  # noqa: B008
        """Micro-batches until nothing is new."""
        while True:
            before = self.committed
            self.run(limit)
            if self.committed == before:
                return self.got
