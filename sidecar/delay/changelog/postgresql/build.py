"""Opens the tables of delayed messages as they are configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

from sidecar.config.postgresql import DatabaseSettings
from sidecar.core.partition_state import Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogRecord
from sidecar.delay.changelog.kafka.unclaimed import Unclaimed
from sidecar.delay.changelog.postgresql.appender import PostgresqlChangelog
from sidecar.delay.changelog.postgresql.restorer import PostgresqlRestorer
from sidecar.delay.changelog.postgresql.tables import Tables
from sidecar.delay.changelog.reach import REACH_KEY, read_reach
from sidecar.delay.changelog.records import RecordLineage
from sidecar.delay.changelog.takeover import Start
from sidecar.delay.rows import ORIGIN_MAX
from sidecar.owner import Owner

ALL = 1 << 62
"""Above all offsets and epochs: a daemon elsewhere may append meanwhile, and moves records behind others."""


class UnclaimedTables(PostgresqlRestorer):
    """Reads partitions as they are now.

    Args:
        now: The position of the present time.
    """

    def __init__(self, tables: Tables, now: int) -> None:
        super().__init__(tables)
        self._now = now

    @property
    def where(self) -> str:
        """The database in words."""
        return self._tables.where

    def find_all(self, is_wanted: Callable[[TopicPartition], bool]) -> dict[TopicPartition, Unclaimed]:
        """The wanted partitions of the group.

        Raises:
            UnavailableError: The server cannot be reached, or refuses.
        """
        with self._tables.lent() as db:
            ends = self._tables.all(db)
        found = {}
        for tp, end in ends.items():
            if is_wanted(tp):
                store, raw = self.open(tp), self.find(tp, REACH_KEY)
                lineage = RecordLineage(0, 0) if raw is None else read_reach(raw).lineage
                start = Start(Stores(store, (), ALL), lineage, ORIGIN_MAX, ORIGIN_MAX, self._now)
                found[tp] = Unclaimed(store, 0, end, start)
        return found

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        """Read until nothing more is found, whatever `end` is."""
        del end
        return super().read(tp, ALL, begin)


def open_postgresql(
    stack: ExitStack, database: DatabaseSettings, group_id: str, owner: Callable[[], Owner]
) -> tuple[PostgresqlChangelog, PostgresqlRestorer]:
    """Open the appender and the restorer.

    Args:
        owner: The group with its cluster, once that is known.
    """
    tables = Tables(database.url, database.secret, group_id, owner)
    restorer = stack.enter_context(closing(PostgresqlRestorer(tables)))
    return stack.enter_context(closing(PostgresqlChangelog(tables, restorer.claim_of))), restorer


def open_unclaimed(stack: ExitStack, database: DatabaseSettings, group_id: str, now: int) -> UnclaimedTables:
    """Open a restorer that reads without a claim; `now` is the position of the present time."""
    return stack.enter_context(closing(UnclaimedTables(Tables(database.url, database.secret, group_id), now)))
