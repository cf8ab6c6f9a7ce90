"""The receivers in `examples/receivers`, as processes with their real databases: each stores each part once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from sidecar.core.parts import Part
from sidecar.core.records import Verdict
from tests.support.examples import EXAMPLES_BY_NAME, running
from tests.support.postgresql import Database
from tests.support.posting import Client

COMPILED = {"express", "go", "spring"}
"""Those that are fetched and built: `make examples` runs them."""
PARTS, ROWS = 200, 50


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.proof] * (name in COMPILED)) for name in EXAMPLES_BY_NAME]
)
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The name of an example, and the URL of its database if that is PostgreSQL."""
    name: str = request.param
    if not EXAMPLES_BY_NAME[name].is_in_postgresql:
        return name, ""
    database: Database = request.getfixturevalue("postgresql")
    with database.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS parts, orders")
    monkeypatch.setenv("PGPASSWORD", database.password)
    return name, f"{database.url}{'&' if '?' in database.url else '?'}sslmode=disable"


def values(count: int) -> list[bytes | None]:
    """Messages that each example takes."""
    return [b'{"n": %d, "text": "\xc3\xa4 \\n \\" \'"}' % i for i in range(count)]


def test_parts_are_stored_once(example: tuple[str, str], tmp_path: Path) -> None:
    """A part that it has is left alone, alone and beside a new one; a refused batch leaves nothing behind."""
    name, database = example
    with running(name, tmp_path, database) as receiver:
        client = Client(receiver.url, "envelope", "none")
        first, second, third = client.part(0, values(3)), client.part(3, values(2)), client.part(5, values(1))
        assert client.post(first, second).verdict is Verdict.ACK
        assert receiver.count() == (5, 5)
        assert client.post(first, second).verdict is Verdict.ACK
        assert client.post(second, third).verdict is Verdict.ACK
        assert receiver.count() == (6, 6)
        for poison in (b"no json", b"\xff", None, b""):
            answer = client.post(client.part(6, [*values(1), poison]))
            assert answer.verdict is Verdict.REJECT, answer
            assert "row 1" in answer.reason
        assert receiver.count() == (6, 6)
        client.sink.close()


def test_a_kill_loses_and_repeats_nothing(example: tuple[str, str], tmp_path: Path) -> None:
    """Killed while batches arrive, and all of them sent again: every row is there once."""
    name, database = example
    with running(name, tmp_path, database) as receiver:
        client = Client(receiver.url, "envelope", "none")
        parts = [client.part(number * ROWS, values(ROWS)) for number in range(PARTS)]
        acknowledged: list[Part] = []
        poster = threading.Thread(target=post_all, args=(client, parts, acknowledged))
        poster.start()
        while len(acknowledged) < PARTS // 4:
            time.sleep(0.01)
        receiver.kill9()
        poster.join()
        client.sink.close()
    with running(name, tmp_path, database) as receiver:
        rows, distinct = receiver.count()
        assert rows == distinct >= len(acknowledged) * ROWS
        client = Client(receiver.url, "envelope", "none")
        assert {client.post(part).verdict for part in parts} == {Verdict.ACK}
        assert receiver.count() == (PARTS * ROWS, PARTS * ROWS)
        client.sink.close()


def post_all(client: Client, parts: list[Part], acknowledged: list[Part]) -> None:
    """Post one after another until there is no answer."""
    for part in parts:
        if client.post(part).verdict is not Verdict.ACK:
            return
        acknowledged.append(part)
