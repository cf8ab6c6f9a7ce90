"""Checks of PostgreSQL: a connection that may write, and the right to create the tables that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg

from sidecar.check.findings import Finding, failed
from sidecar.config.postgresql import DatabaseSettings
from sidecar.errors import EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, ConfigError
from sidecar.owner import Owner
from sidecar.postgresql import OWNER, refuse_foreign, text_of, timeout_s

CONNECT_S = 4
_STATE = """
SELECT current_setting('server_version'), current_setting('transaction_read_only'), current_user, current_schema(),
  coalesce(has_schema_privilege(current_schema(), 'CREATE'), false), current_setting('search_path')
"""
_MISSING = "SELECT one FROM unnest(%s::text[]) AS one WHERE to_regclass(one) IS NULL"
_LACKING = """
SELECT one FROM unnest(%s::text[]) AS one WHERE to_regclass(one) IS NOT NULL
  AND NOT (has_table_privilege(one, 'SELECT') AND has_table_privilege(one, 'INSERT')
    AND has_table_privilege(one, 'UPDATE') AND has_table_privilege(one, 'DELETE'))
"""

_HAS_MARKS = "SELECT to_regclass(%s) IS NOT NULL"

# libpq gives no code for a failed connection.
_CURES = {
    "authentication failed": ("check the user in {key}.url, and {key}.password", EXIT_NO_PERMISSION),
    "no password supplied": ("set {key}.password", EXIT_NO_PERMISSION),
    "permission denied for database": ("GRANT CONNECT ON DATABASE to this user", EXIT_NO_PERMISSION),
    "no pg_hba.conf entry": ("let the server's pg_hba.conf accept this user, database and host", EXIT_NO_PERMISSION),
    "does not exist": ("create it, or correct {key}.url", EXIT_NO_PERMISSION),
    "SSL": ("correct sslmode in {key}.url, or turn on TLS at the server", EXIT_UNAVAILABLE),
    "": ("check {key}.url, and that the server runs and is reachable from here", EXIT_UNAVAILABLE),
}
"""The cure by a part of the error's text."""


def check_database(
    subject: str, database: DatabaseSettings, key: str, tables: Sequence[str], owner: Callable[[], Owner]
) -> Iterator[Finding]:
    """Check a database that uses these tables; those that are missing are created at the start."""
    secret: dict[str, Any] = {"password": database.secret} if database.secret else {}
    try:
        secret["connect_timeout"] = timeout_s(database.url, CONNECT_S)
        with closing(psycopg.connect(database.url, autocommit=True, **secret)) as db:
            finding = _looked(subject, db, list(tables))
            yield _ours(finding, db, owner(), key) if finding.ok else finding
    except psycopg.ProgrammingError as error:
        yield Finding(subject, text_of(error), f"correct {key}.url", EXIT_CONFIG)
    except psycopg.OperationalError as error:
        text = text_of(error)
        cure, code = next(found for part, found in _CURES.items() if part in text)
        yield Finding(subject, text, cure.format(key=key), code)


def _ours(finding: Finding, db: psycopg.Connection, me: Owner, key: str) -> Finding:
    """The finding, or a finding that the database belongs to another cluster."""
    if db.execute(_HAS_MARKS, [OWNER]).fetchone() != (True,):
        return finding
    try:
        refuse_foreign(db, me, key)
    except ConfigError as error:
        return failed(finding.subject, error)
    return finding


def _looked(subject: str, db: psycopg.Connection, tables: Sequence[str]) -> Finding:
    db.execute(f"SET statement_timeout = {CONNECT_S * 1000}")
    row = db.execute(_STATE).fetchone()
    assert row is not None
    version, read_only, user, schema, may_create, path = row
    if read_only == "on":
        return Finding(subject, "it is read-only, as a standby is", "name the primary server", EXIT_UNAVAILABLE)
    if schema is None:
        cure = f"create a schema of the search path, and GRANT USAGE, CREATE on it to {user}"
        text = f"{user} may use no schema of the search path {path}"
        return Finding(subject, text, cure, EXIT_NO_PERMISSION)
    if lacking := [name for (name,) in db.execute(_LACKING, [tables])]:
        text = f"{user} may not read and write the table {', '.join(lacking)}"
        cure = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(lacking)} TO {user}"
        return Finding(subject, text, cure, EXIT_NO_PERMISSION)
    if (missing := [name for (name,) in db.execute(_MISSING, [tables])]) and not may_create:
        text = f"{user} may not create the table {', '.join(missing)}"
        return Finding(subject, text, f"GRANT CREATE ON SCHEMA {schema} TO {user}", EXIT_NO_PERMISSION)
    return Finding(subject, f"PostgreSQL {version}; {'tables will be created' if missing else 'tables are there'}")
