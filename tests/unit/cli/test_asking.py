"""Requests to a running daemon, and what is done if none runs. The daemon is a fake, and so is the store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.cli.daemon.status import ask
from sidecar.cli.shared import asking
from sidecar.cli.shared.asking import answered, counted, held_now, listed, owner_of, request
from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays import offline
from sidecar.errors import ConfigError, UnavailableError
from tests.support.process import free_ports
from tests.support.spark.tasks import make_settings

Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]
TP = TopicPartition("orders", 1)


def settings(folder: Path, **sections: Any) -> Settings:
    """A configuration with the state in this folder."""
    return make_settings("http://localhost:1/", state={"dir": str(folder)}, **sections)


@contextmanager
def daemon(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, status: dict[str, Any] | None = None
) -> Iterator[list[Any]]:
    """A daemon that answers so; the requests that it gets: path, authorization and fields."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["Authorization"], fields))
            code, body = answer(self.path, fields)
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}", token="t0ken")
    monkeypatch.setattr(asking, "read_address", lambda _: address)
    monkeypatch.setattr(asking, "ask", lambda _: {"delay": {"held": 3}} if status is None else status)
    yield asked
    server.shutdown()
    server.server_close()


def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon runs."""

    def ask(_: Settings) -> Any:
        raise UnavailableError("no daemon answers", hint="start it")

    monkeypatch.setattr(asking, "ask", ask)


def test_a_request_has_the_token_and_the_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The answer is that of the daemon."""
    with daemon(monkeypatch, lambda *_: (200, b'{"outcome": "cancelled"}')) as asked:
        assert request(settings(tmp_path), "delay/cancel", {"offset": 5}) == {"outcome": "cancelled"}
    assert asked == [("/delay/cancel", "Bearer t0ken", {"offset": 5})]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((503, b"not the owner\n"), "refused: not the owner"),
        ((401, b"\xff"), "refused: "),
        ((200, b"<html>"), "did not answer, and the request may have taken effect"),
    ],
)
def test_an_answer_that_is_none_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: tuple[int, bytes], says: str
) -> None:
    """Whether something was done, or not."""
    with daemon(monkeypatch, lambda *_: answer), pytest.raises(UnavailableError) as caught:
        request(settings(tmp_path), "delay/cancel", {})
    assert says in str(caught.value)


def test_a_daemon_that_breaks_off_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may have done what was asked."""
    (port,) = free_ports(1)
    address = SimpleNamespace(url=f"http://127.0.0.1:{port}", token="t0ken")
    monkeypatch.setattr(asking, "read_address", lambda _: address)
    with pytest.raises(UnavailableError, match="the request may have taken effect"):
        request(settings(tmp_path), "delay/cancel", {})


@pytest.mark.parametrize("address", [None, SimpleNamespace(url="http://h", token="")])
def test_a_token_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: Any) -> None:
    """It is another user's, or on another host."""
    monkeypatch.setattr(asking, "read_address", lambda _: address)
    with pytest.raises(UnavailableError, match="the token of the daemon"):
        request(settings(tmp_path), "delay/cancel", {})


class Store:
    """A store that no daemon has open."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.wanted: list[bool] = []

    def open(self, stack: Any, settings: Settings, is_wanted: Callable[[TopicPartition], bool], tell: Any) -> Store:
        """See `open_offline`."""
        self.wanted = [is_wanted(TP), is_wanted(TP._replace(partition=2))]
        return self

    def count(self) -> dict[str, Any]:
        """How many are held."""
        return {"held": 9}

    def answer(self, asked: Any) -> dict[str, Any]:
        """Of a question."""
        self.asked.append(asked)
        return {"outcome": "held"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """In the place of the real one."""
    store = Store()
    monkeypatch.setattr(offline, "open_offline", store.open)
    return store


def test_what_is_held_is_asked_of_the_daemon_or_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store
) -> None:
    """Of all partitions."""
    with daemon(monkeypatch, lambda *_: (200, b"{}")):
        assert held_now(settings(tmp_path)) == {"held": 3, "read": 0}
    away(monkeypatch)
    assert held_now(settings(tmp_path, delay={})) == {"held": 9}
    assert store.wanted == [True, True]


ONE = {"topic": "orders", "partition": 1, "broker": "", "offset": 5, "due_ms": 0}


def test_a_question_goes_to_the_daemon_if_one_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store
) -> None:
    """Else the store answers, of the partition that is asked about."""
    with daemon(monkeypatch, lambda *_: (200, b'{"outcome": "gone"}')) as asked:
        assert answered(settings(tmp_path), "show", ONE) == {"outcome": "gone"}
    assert [path for path, _, _ in asked] == ["/delay/show"]
    away(monkeypatch)
    assert answered(settings(tmp_path, delay={}), "show", ONE) == {"outcome": "held"}
    assert (store.wanted, len(store.asked)) == ([True, False], 1)
    with pytest.raises(click.UsageError):
        answered(settings(tmp_path, delay={}), "show", {**ONE, "offset": "x"})


@pytest.mark.parametrize("name", ["cancel", "release"])
def test_only_a_daemon_changes_messages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store, name: str
) -> None:
    """It must own the partition."""
    away(monkeypatch)
    with pytest.raises(UnavailableError, match="only a running daemon that owns the partition can change"):
        answered(settings(tmp_path, delay={}), name, ONE)
    assert store.asked == []


def test_without_a_section_nothing_is_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the file, or of the daemon that runs."""
    away(monkeypatch)
    with pytest.raises(ConfigError, match="the configuration has no section delay"):
        held_now(settings(tmp_path))
    running = daemon(monkeypatch, lambda *_: (200, b""), status={"delay": None})
    with running, pytest.raises(ConfigError, match="the running daemon holds no delayed messages"):
        held_now(settings(tmp_path, delay={}))


def pieces(*answers: dict[str, Any]) -> Answer:
    """A daemon that gives these answers, one after the other."""
    left = list(answers)
    return lambda *_: (200, json.dumps(left.pop(0)).encode())


def piece(*messages: int, at: int | None = None, is_all: bool = True) -> dict[str, Any]:
    """A piece of a listing."""
    more = {} if at is None else {"at": at}
    return {"messages": [*messages], "is_all": is_all, "read": len(messages), **more}


def test_a_listing_goes_on_where_the_daemon_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Until nothing is left, or as many are there as are wanted."""
    fields = {"topic": "orders", "limit": 3, "group": None, "tag": None}
    with daemon(monkeypatch, pieces(piece(1, at=5, is_all=False), piece(at=7), piece(2))) as asked:
        found = listed(settings(tmp_path), fields)
    assert found == {"outcome": "listed", "messages": [1, 2], "is_all": True, "read": 2}
    assert [(each["limit"], each.get("at")) for *_, each in asked] == [(3, None), (2, 5), (2, 7)]
    with daemon(monkeypatch, pieces(piece(1, 2, at=5), piece(3, at=7, is_all=False))) as asked:
        assert listed(settings(tmp_path), fields)["messages"] == [1, 2, 3]
    assert [each["limit"] for *_, each in asked] == [3, 1]


def test_a_count_goes_on_where_the_daemon_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The pieces are added up."""
    first = {"held": 2, "due": {"1h": 2, "later": 0}, "read": 3, "at": 5, "tag": "x"}
    last = {"held": 5, "due": {"1h": 1, "later": 4}, "read": 5, "tag": "x"}
    with daemon(monkeypatch, pieces(first, last)) as asked:
        found = counted(settings(tmp_path), {"group": None, "tag": "x"})
    assert found == {"held": 7, "due": {"1h": 3, "later": 4}, "read": 8}
    assert [(path, fields.get("at")) for path, _, fields in asked] == [("/delay/count", None), ("/delay/count", 5)]


def test_the_owner_of_a_partition_is_found_by_its_assignment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None if nobody has it, or if the broker does not say."""

    def member(name: str, *partitions: int) -> Any:
        tps = [confluent_kafka.TopicPartition("orders", partition) for partition in partitions]
        assignment = SimpleNamespace(topic_partitions=tps) if partitions else None
        return SimpleNamespace(client_id=name, host=f"/{name}-host", assignment=assignment)

    answer: Any = SimpleNamespace(members=[member("new"), member("a", 0), member("b", 1)])

    def result(_: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    admin = SimpleNamespace(describe_consumer_groups=lambda names, **_: {names[0]: SimpleNamespace(result=result)})
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: admin)
    assert owner_of(settings(tmp_path), TP) == "b on b-host"
    assert owner_of(settings(tmp_path), TP._replace(partition=2)) == ""
    assert owner_of(settings(tmp_path), TP._replace(topic="bills")) == ""
    for failure in (TimeoutError(), KafkaException(KafkaError(KafkaError._TRANSPORT))):
        answer = failure
        assert owner_of(settings(tmp_path), TP) == ""


@pytest.mark.parametrize(("listen", "why"), [("127.0.0.1:0", "no daemon has its address there"), ("off", "is off")])
def test_a_daemon_that_does_not_run_is_said(tmp_path: Path, listen: str, why: str) -> None:
    """The endpoint is called off only where it is."""
    with pytest.raises(UnavailableError, match=why):
        ask(settings(tmp_path, admin={"listen": listen}))
