"""Opens the tables of delayed messages as they are configured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

from sidecar.config.postgresql import DatabaseSettings
from sidecar.delay.changelog.postgresql.appender import PostgresqlChangelog
from sidecar.delay.changelog.postgresql.restorer import PostgresqlRestorer
from sidecar.delay.changelog.postgresql.tables import Tables
from sidecar.delay.changelog.postgresql.unclaimed import UnclaimedTables
from sidecar.owner import Owner


def open_postgresql(
    stack: ExitStack, database: DatabaseSettings, group_id: str, owner: Callable[[], Owner]
) -> tuple[PostgresqlChangelog, PostgresqlRestorer]:
    """What appends, and what restores.

    Args:
        owner: The same with its cluster, once that is known.
    """
    tables = Tables(database.url, database.secret, group_id, owner)
    restorer = stack.enter_context(closing(PostgresqlRestorer(tables)))
    return stack.enter_context(closing(PostgresqlChangelog(tables, restorer.claim_of))), restorer


def open_unclaimed(stack: ExitStack, database: DatabaseSettings, group_id: str, now: int) -> UnclaimedTables:
    """What reads without a claim; `now` is the position of the present time."""
    return stack.enter_context(closing(UnclaimedTables(Tables(database.url, database.secret, group_id), now)))
