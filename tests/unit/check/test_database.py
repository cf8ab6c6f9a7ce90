"""The check of a database: what it makes of the server's answers. A fake connection has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from sidecar.check import database as checked
from sidecar.check.checks import checks_of
from sidecar.check.database import check_database
from sidecar.check.findings import Finding
from sidecar.config.ledger import PostgresqlLedgerSettings
from sidecar.owner import Owner
from tests.support.process import missing
from tests.support.spark.tasks import make_settings

TABLES = ["one", "two"]
ME = Owner("g", "c1")


class Connection:
    """A server with this state, where some tables are missing or may not be used."""

    def __init__(
        self, state: Sequence[Any], missing: Sequence[str] = (), lacking: Sequence[str] = (), owner: Owner | None = None
    ) -> None:
        self._owner = owner
        self._answers = {checked._STATE: [tuple(state)], checked._MISSING: missing, checked._LACKING: lacking}
        self.said: list[str] = []
        self.is_closed = False

    def execute(self, sql: str, values: Any = None) -> Any:
        """The rows of a query."""
        self.said.append(sql)
        rows = self._answers.get(sql, [])
        if sql == checked._HAS_MARKS:
            return type("Cursor", (), {"fetchone": lambda _: (self._owner is not None,)})()
        if "SELECT mark" in sql and self._owner is not None:
            mark = self._owner.marked().decode()
            return type("Cursor", (), {"fetchone": lambda _: (mark,)})()
        if sql == checked._STATE:
            return type("Cursor", (), {"fetchone": lambda _: rows[0]})()
        assert sql.startswith("SET") or values == [TABLES]
        return [(row,) for row in rows]

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


STATE = ("16.1", "off", "app", "public", True, '"$user", public')


def look(monkeypatch: pytest.MonkeyPatch, answer: Connection | Exception, password: str | None = None) -> Finding:
    """What is found."""
    given: dict[str, Any] = {}

    def connect(url: str, **more: Any) -> Connection:
        given.update(more)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(psycopg, "connect", connect)
    section = {"url": "postgresql://h/db"} | ({"password": password} if password else {})
    (finding,) = check_database(
        "ledger", PostgresqlLedgerSettings.model_validate(section), "dedup.key", TABLES, lambda: ME
    )
    assert given["connect_timeout"] <= checked.CONNECT_S and given["autocommit"] is True
    assert given.get("password") == password
    assert isinstance(answer, Exception) or (answer.is_closed and answer.said[0].startswith("SET statement_timeout"))
    return finding


@pytest.mark.parametrize(
    ("connection", "text", "cure", "code"),
    [
        (Connection(STATE), "PostgreSQL 16.1; tables are there", "", 0),
        (Connection(STATE, missing=["two"]), "PostgreSQL 16.1; tables will be created", "", 0),
        (Connection((*STATE[:4], False, STATE[5])), "PostgreSQL 16.1; tables are there", "", 0),
        (Connection(STATE, owner=ME), "PostgreSQL 16.1; tables are there", "", 0),
        (
            Connection((*STATE[:4], False, STATE[5]), missing=TABLES),
            "app may not create the table one, two", "GRANT CREATE ON SCHEMA public TO app", 77,
        ),
        (
            Connection(STATE, lacking=["one"]), "app may not read and write the table one",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON one TO app", 77,
        ),
        (Connection(("16.1", "on", *STATE[2:])), "it is read-only, as a standby is", "name the primary server", 69),
        (
            Connection((*STATE[:3], None, False, "none")), "app may use no schema of the search path none",
            "create a schema of the search path, and GRANT USAGE, CREATE on it to app", 77,
        ),
    ],
)  # fmt: skip
def test_a_database_is_judged_by_its_rights(
    monkeypatch: pytest.MonkeyPatch, connection: Connection, text: str, cure: str, code: int
) -> None:
    """With the statement that gives those that are missing."""
    assert look(monkeypatch, connection, "s3cret") == Finding("ledger", text, cure, code)


@pytest.mark.parametrize(
    ("error", "cure", "code"),
    [
        ("password authentication failed for user", "check the user in dedup.key.url, and dedup.key.password", 77),
        ("no password supplied", "set dedup.key.password", 77),
        ("permission denied for database", "GRANT CONNECT ON DATABASE to this user", 77),
        ("no pg_hba.conf entry for host", "let the server's pg_hba.conf accept this user, database and host", 77),
        ('database "db" does not exist', "create it, or correct dedup.key.url", 77),
        ("server does not support SSL", "correct sslmode in dedup.key.url, or turn on TLS at the server", 69),
        ("connection refused", "check dedup.key.url, and that the server runs and is reachable from here", 69),
    ],
)
def test_a_server_that_refuses_is_told_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, error: str, cure: str, code: int
) -> None:
    """By its words: it gives no code."""
    finding = look(monkeypatch, psycopg.OperationalError(error))
    assert (finding.text, finding.cure, finding.exit_code) == (error, cure, code)


def test_a_url_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the configuration that is wrong."""
    finding = look(monkeypatch, psycopg.ProgrammingError("invalid dsn"))
    assert (finding.text, finding.cure, finding.exit_code) == ("invalid dsn", "correct dedup.key.url", 78)


def subjects(sink: dict[str, Any], **sections: Any) -> list[str]:
    """What is checked of a configuration."""
    settings = make_settings("http://localhost:1/in?key=k", **sections)
    document = settings.model_dump(by_alias=True, exclude_unset=True) | ({"sink": sink} if sink else {})
    return [check.subject for check in checks_of(type(settings).model_validate(document), lambda: "")]


def test_all_that_is_named_is_checked() -> None:
    """And nothing else: each with its subject, without secrets."""
    assert subjects({}) == ["Kafka at localhost:1", "receiver http://localhost:1/in?***", "state folder state"]
    assert subjects({"file": {"path": "/a/out"}})[1] == "sink.file in /a"
    assert subjects({"spark": {"landing": "/zone"}})[1] == "sink.spark in /zone"
    assert subjects({"spark": {"landing": "s3://bucket/zone"}})[1] == "sink.spark in s3://bucket/zone"
    assert subjects({"delta": {"path": "/table"}})[1] == "sink.delta in /table"
    assert len(subjects({"console": {}})) == 2
    url = {"url": "postgresql://h/db"}
    ledger = {"by": {"json": "$.id"}, "ledger": {"postgresql": url}}
    assert subjects({}, dedup=ledger)[3:] == ["ledger"]
    held = {"store": "postgresql", "postgresql": url}
    assert subjects({}, dedup=ledger, delay=held)[3:] == ["ledger", "delayed messages"]


def test_rows_of_another_cluster_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 78 with both clusters, and what is to be changed."""
    finding = look(monkeypatch, Connection(STATE, owner=Owner("g", "c2")))
    assert finding.exit_code == 78
    assert missing(f"{finding.text} {finding.cure}", "cluster c1", "cluster c2", "dedup.key.url", "sidecar_owner") == []
