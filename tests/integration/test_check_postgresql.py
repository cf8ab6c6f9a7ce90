"""`sidecar check` with a real PostgreSQL: each thing that keeps a ledger from its tables, with the cure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.ledger.postgresql import LEDGER_TABLE, MISSED_TABLE, table_of
from sidecar.postgresql import OWNER_TABLE
from tests.support.checking import checked
from tests.support.kafka import unique
from tests.support.postgresql import Database

KEY = "dedup.ledger.postgresql"
TABLE = table_of("g")


class Bench:
    """A database and a schema in it, and a user without rights."""

    def __init__(self, server: Database, folder: Path) -> None:
        self.server, self._folder = server, folder
        self.user, self.base = unique("poor").replace("-", "_"), unique("base").replace("-", "_")
        self.run(f"CREATE ROLE {self.user} LOGIN PASSWORD 'poor'", f"CREATE DATABASE {self.base}")
        self.url = server.schema()
        self.schema = self.url.rpartition("%3D")[2]

    def run(self, *statements: str) -> None:
        """Run statements."""
        with self.server.connect() as db:
            for statement in statements:
                db.execute(statement)

    def drop(self) -> None:
        """Leave nothing behind."""
        self.run(f"DROP DATABASE {self.base}", f"DROP SCHEMA {self.schema} CASCADE", f"DROP ROLE {self.user}")

    def as_poor(self, url: str) -> str:
        """The URL with the user without rights."""
        return re.sub(r"//[^@]*@", f"//{self.user}@", url)

    def elsewhere(self, base: str) -> str:
        """The URL of another database."""
        return self.server.url.rpartition("/")[0] + f"/{base}"

    def check(self, url: str, password: str | None) -> dict[str, Any]:
        """The finding for a ledger there."""
        database = {"url": url} | ({"password": password} if password else {})
        config = {
            "source": {"rocketmq": {"name_servers": "127.0.0.1:1", "group": "g", "topics": ["t"]}},
            "sink": {"console": {}},
            "dedup": {"by": "key", "ledger": {"postgresql": database}},
        }
        return checked(self._folder, config).of("ledger in PostgreSQL")


@pytest.fixture
def bench(postgresql: Database, tmp_path: Path) -> Iterator[Bench]:
    """A bench whose user, database and schema are dropped."""
    bench = Bench(postgresql, tmp_path)
    yield bench
    bench.drop()


def test_tables_that_are_there_or_may_be_created_are_well(bench: Bench) -> None:
    """It says which of both."""
    assert bench.check(bench.url, bench.server.password)["text"].endswith("tables will be created")
    statements = f"SET search_path = {bench.schema}; {LEDGER_TABLE.format(table=TABLE)} {MISSED_TABLE} {OWNER_TABLE}"
    bench.run(statements)
    assert bench.check(bench.url, bench.server.password)["text"].endswith("tables are there")


@pytest.mark.parametrize(
    ("url", "password", "code", "text", "cure"),
    [
        (lambda b: b.url, "wrong", 77, "password authentication failed", f"check the user in {KEY}.url"),
        (lambda b: b.url, None, 77, "no password supplied", f"set {KEY}.password"),
        (lambda b: b.elsewhere("gone"), "", 77, 'database "gone" does not exist', f"create it, or correct {KEY}.url"),
        (lambda b: f"{b.server.url}?nonsense=1", "", 78, "nonsense", f"correct {KEY}.url"),
        (lambda b: f"{b.server.url}?sslmode=require", "", 69, "does not support SSL", "correct sslmode"),
        (lambda b: f"{b.server.url}?options=-csearch_path%3Dgone", "", 77, "no schema of the search path gone",
         "create a schema"),
        (lambda _: "postgresql://u@127.0.0.1:1/d", "", 69, "refused", f"check {KEY}.url"),
    ],
    ids=["password", "no password", "database", "parameter", "sslmode", "schema", "port"],
)  # fmt: skip
def test_what_is_wrong_in_the_file_is_told(
    bench: Bench, url: Callable[[Bench], str], password: str | None, code: int, text: str, cure: str
) -> None:
    """The server's words, and the key to correct."""
    given = bench.server.password if password == "" else password
    found = bench.check(url(bench), given)
    assert (found["exit_code"], text in found["text"], found["cure"].startswith(cure)) == (code, True, True), found


def test_each_missing_right_is_told(bench: Bench) -> None:
    """With the statement that grants it: to connect, to use a schema, to create tables in it, to use tables."""
    here, user, schema = bench.as_poor(bench.url), bench.user, bench.schema
    bench.run(f"REVOKE CONNECT ON DATABASE {bench.base} FROM PUBLIC")
    assert bench.check(bench.as_poor(bench.elsewhere(bench.base)), "poor")["cure"].startswith("GRANT CONNECT")
    assert bench.check(here, "poor")["cure"].endswith(f"GRANT USAGE, CREATE on it to {user}")
    bench.run(f"GRANT USAGE ON SCHEMA {schema} TO {user}")
    assert bench.check(here, "poor")["cure"] == f"GRANT CREATE ON SCHEMA {schema} TO {user}"
    bench.run(
        f"SET search_path = {schema}; {LEDGER_TABLE.format(table=TABLE)} {MISSED_TABLE} {OWNER_TABLE}",
        f"GRANT ALL ON {schema}.sidecar_missed, {schema}.sidecar_owner TO {user}",
    )
    assert bench.check(here, "poor")["cure"] == f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO {user}"
    bench.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.{TABLE} TO {user}")
    assert bench.check(here, "poor")["ok"]
