"""Connections to PostgreSQL, and the creation of missing tables. Knows no message and no key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from sidecar.owner import Owner, read

PATIENCE_MS = 5_000
# A lost server is noticed within about 10 s; its answers may take half of that.
CONNECT_S = 5
HOST_MIN_S = 2
"""Minimum wait of psycopg for a host, in seconds."""
CONNECTION: dict[str, Any] = {
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "sidecar",
}
SETTINGS = (
    f"statement_timeout = {PATIENCE_MS}",
    # A host that is lost during a transaction would hold its rows for the two hours of the server's TCP timeout.
    f"idle_in_transaction_session_timeout = {2 * PATIENCE_MS}",
)
LOCK = 0x51DECA2
"""Advisory lock for the creation of tables; the next number is for `Ledger.exchange`."""
OWNER = "sidecar_owner"
OWNER_TABLE = f"CREATE TABLE {OWNER} (consumer_group text PRIMARY KEY, mark text NOT NULL);"
"""The owner of a group's rows: groups of one name on two clusters are two groups."""


def connect(url: str, password: str, tables: Mapping[str, str], settings: Sequence[str] = ()) -> Connection[Any]:
    """A connection whose commits survive a crash of the server.

    Args:
        url: The database, ``postgresql://...``, in libpq's form.
        password: Password of the user; empty for none, or if libpq finds one itself.
        tables: The statements that create each table, by its name; missing tables are created.
        settings: Settings of the session, in addition to `SETTINGS`.

    Raises:
        psycopg.Error: The server cannot be reached, or refuses.
    """
    secret: dict[str, Any] = {"password": password} if password else {}
    # Not prepared: a plan for a few rows would be used for many.
    how = {**CONNECTION, **secret, "connect_timeout": timeout_s(url, CONNECT_S)}
    db = psycopg.connect(url, autocommit=True, prepare_threshold=None, **how)
    try:
        for setting in (*SETTINGS, *settings):
            db.execute(f"SET {setting}")
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            for table, statements in tables.items():
                # Checked first, since IF NOT EXISTS needs the right to create even if there is nothing to create.
                if db.execute("SELECT to_regclass(%s) IS NULL", [table]).fetchone() == (True,):
                    db.execute(statements)
            mode = db.execute("SHOW synchronous_commit").fetchone()
        if mode == ("off",):  # if a server crash forgot commits, a message could be lost or come twice
            db.execute("SET synchronous_commit = on")
    except BaseException:
        db.close()
        raise
    return db


def claim_rows(db: Connection[Any], me: Owner, key: str) -> None:
    """Mark the rows of a group as this cluster's.

    Args:
        me: The owner; without a cluster, nothing is marked.
        key: The section that names the database.

    Raises:
        ConfigError: The rows are another cluster's. psycopg.Error: The server refuses.
    """
    if me.cluster:
        insert = f"INSERT INTO {OWNER} VALUES (%s, %s) ON CONFLICT DO NOTHING"
        db.execute(insert, [me.group, me.marked().decode()])
        refuse_foreign(db, me, key)


def refuse_foreign(db: Connection[Any], me: Owner, key: str) -> None:
    """Refuse the rows of a group that are another cluster's.

    Raises:
        ConfigError: The rows are another cluster's. psycopg.Error: The server refuses.
    """
    row = db.execute(f"SELECT mark FROM {OWNER} WHERE consumer_group = %s", [me.group]).fetchone()
    if row is not None:
        cure = f"set {key}.url to another database or schema, or rename the group"
        given_up = f"DELETE FROM {OWNER} WHERE consumer_group = '{me.group}', and what the group has in other tables"
        me.refuse(read(row[0].encode()), f"what PostgreSQL has of this group ({key})", cure, given_up)


def timeout_s(url: str, all_s: float) -> int:
    """The `connect_timeout` of each host of a URL, whose hosts together take `all_s`, or two seconds each.

    Raises:
        psycopg.Error: The URL cannot be read.
    """
    hosts = str(conninfo_to_dict(url).get("host") or "").count(",") + 1
    return max(HOST_MIN_S, int(all_s / hosts))


def text_of(error: psycopg.Error) -> str:
    """The error in one line."""
    return " ".join(str(error).split())
