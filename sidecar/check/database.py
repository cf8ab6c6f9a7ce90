"""Checks of PostgreSQL: a connection that may write, and the right to create the tables that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg

from sidecar.check.findings import Finding
from sidecar.config.postgresql import Database
from sidecar.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE
from sidecar.postgresql import text_of

CONNECT_S = 4
_STATE = """
SELECT current_setting('server_version'), current_setting('transaction_read_only'), current_user,
  coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
"""
_MISSING = "SELECT one FROM unnest(%s::text[]) AS one WHERE to_regclass(one) IS NULL"
_LACKING = """
SELECT one FROM unnest(%s::text[]) AS one WHERE to_regclass(one) IS NOT NULL
  AND NOT (has_table_privilege(one, 'SELECT') AND has_table_privilege(one, 'INSERT')
    AND has_table_privilege(one, 'UPDATE') AND has_table_privilege(one, 'DELETE'))
"""


def check_database(subject: str, database: Database, key: str, tables: Sequence[str]) -> Iterator[Finding]:
    """Look at a database.

    Args:
        subject: What it is for.
        database: Where it is.
        key: The section of the file.
        tables: Names of the tables that are used; those that are missing are created at the start.
    """
    secret: dict[str, Any] = {"password": database.secret} if database.secret else {}
    try:
        with closing(psycopg.connect(database.url, autocommit=True, connect_timeout=CONNECT_S, **secret)) as db:
            yield _looked(subject, db, list(tables))
    except psycopg.OperationalError as error:
        text, cure = text_of(error), f"check {key}.url, and that the server runs and is reachable from here"
        # libpq gives no code for a failed connection.
        is_refused = "authentication failed" in text or "no password supplied" in text or "does not exist" in text
        cure = f"check the user and database in {key}.url, and {key}.password" if is_refused else cure
        yield Finding(subject, text, cure, EXIT_NO_PERMISSION if is_refused else EXIT_UNAVAILABLE)


def _looked(subject: str, db: psycopg.Connection, tables: Sequence[str]) -> Finding:
    db.execute(f"SET statement_timeout = {CONNECT_S * 1000}")
    row = db.execute(_STATE).fetchone()
    assert row is not None
    version, read_only, user, may_create = row
    if read_only == "on":
        return Finding(subject, "it is read-only, as a standby is", "name the primary server", EXIT_UNAVAILABLE)
    if lacking := [name for (name,) in db.execute(_LACKING, [tables])]:
        text = f"{user} may not read and write the table {', '.join(lacking)}"
        cure = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(lacking)} TO {user}"
        return Finding(subject, text, cure, EXIT_NO_PERMISSION)
    if (missing := [name for (name,) in db.execute(_MISSING, [tables])]) and not may_create:
        text = f"{user} may not create the table {', '.join(missing)}"
        return Finding(subject, text, f"GRANT CREATE ON SCHEMA public TO {user}", EXIT_NO_PERMISSION)
    return Finding(subject, f"PostgreSQL {version}; {'tables will be created' if missing else 'tables are there'}")
