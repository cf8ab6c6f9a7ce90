"""Claims and reads the records of a partition that is taken over. Appends nothing but the claim."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.postgresql.tables import PartitionRow, Tables

FIRST_RECORDS, BATCH_RECORDS, BATCH_BYTES = 50, 1_000, 16 << 20
CLAIM = """
UPDATE sidecar_delay_partition SET next = next + 1, epoch = next + 1 WHERE place = %s RETURNING epoch
"""
VALUE = "SELECT value FROM sidecar_delay_record WHERE place = %s AND key = %b"
READ = """
SELECT seq, key, value FROM sidecar_delay_record WHERE place = %s AND seq >= %s AND seq < %s ORDER BY seq LIMIT %s
"""


class EpochClaim(NamedTuple):
    """This process's last claim of a partition."""

    place: int
    epoch: int


class PostgresqlRestorer:
    """A `FencingRestorer`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._partitions: dict[TopicPartition, PartitionRow] = {}
        self._claims: dict[TopicPartition, EpochClaim] = {}
        self._guard = threading.Lock()

    def claim_of(self, tp: TopicPartition) -> EpochClaim:
        """The last claim of a partition."""
        with self._guard:
            return self._claims[tp]

    def open(self, tp: TopicPartition) -> int:
        with self._tables.lent() as db:
            partition = self._tables.open(db, tp)
        with self._guard:
            self._partitions[tp] = partition
        return partition.store

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        """Claim the partition; the entries are a claim."""
        del entries
        place = self._place(tp)
        with self._tables.lent() as db:
            row = db.execute(CLAIM, (place,)).fetchone()
        if row is None:  # it was removed meanwhile
            raise self._tables.gone(tp)
        (epoch,) = row
        with self._guard:
            self._claims[tp] = EpochClaim(place, int(epoch))
        return int(epoch) - 1

    def find(self, tp: TopicPartition, key: bytes) -> bytes | None:
        with self._tables.lent() as db:
            row = db.execute(VALUE, (self._place(tp), key), binary=True).fetchone()
        return None if row is None else bytes(row[0])

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        """Read in batches of about 16 MiB at most."""
        place, limit = self._place(tp), FIRST_RECORDS
        while begin < end:
            with self._tables.lent() as db:
                rows = db.execute(READ, (place, begin, end, limit), binary=True).fetchall()
            if not rows:
                return
            records = [ChangelogRecord(*row) for row in rows]
            yield records
            begin = records[-1].offset + 1
            size = sum(len(record.value or b"") for record in records) // len(records) + 1
            limit = max(1, min(BATCH_RECORDS, BATCH_BYTES // size))

    def _place(self, tp: TopicPartition) -> int:
        with self._guard:
            return self._partitions[tp].place

    def close(self) -> None:
        self._tables.close()
