"""`sidecar try`: what it says of a sample, and that a real daemon sends the same request for the same messages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.errors import EXIT_CONFIG
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce
from tests.support.process import Daemon, wait_until, write_config

SECRET = "s3cret"
AT_MS = 1_795_000_000_000
"""In November 2026."""
NOW_MS = int(time.time() * 1_000)


def config(url: str = "http://127.0.0.1:1/in?key=" + SECRET, **more: Any) -> dict[str, Any]:
    """A configuration with each kind of secret."""
    return {
        "source": {
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "topics": ["orders"], "start": "earliest"}
        },
        "tags": {"from": {"header": "tag"}, "subscribe": "created || paid"},
        "dedup": {"by": {"header": "id"}},
        "sink": {"http": {"url": url, "auth": {"bearer": SECRET}, "headers": {"X-Key": SECRET}}},
        **more,
    }


def tried(folder: Path, settings: dict[str, Any], *rows: Any, json_: bool = True) -> Result:
    """The answer for a sample."""
    path, sample = write_config(folder / "try.yaml", settings), folder / "sample.ndjson"
    sample.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    options = ["--json"] if json_ else []
    return CliRunner().invoke(main, ["try", "-c", str(path), "--sample", str(sample), *options], prog_name="sidecar")


def told(folder: Path, settings: dict[str, Any], *rows: Any) -> dict[str, Any]:
    """The same as an object."""
    result = tried(folder, settings, *rows)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def row(tag: str | None = "paid", id_: str | None = None, **more: Any) -> dict[str, Any]:
    """A message."""
    headers = [["tag", tag]] if tag is not None else []
    return {"headers": headers + ([["id", id_]] if id_ else []), "value": "{}", **more}


def test_each_decision_is_told(tmp_path: Path) -> None:
    """Wanted, without a tag, with another, a duplicate in its partition and none in another one."""
    rows = [row("paid", "1"), row(None), row("lost"), row("created", "1"), row("paid", "1", partition=1), row("paid")]
    found = told(tmp_path, config(), *rows)
    outcomes = [(each["outcome"], each["group"]) for each in found["messages"]]
    assert outcomes == [
        ("delivered", "paid"), ("filtered", None), ("filtered", None), ("duplicate", "created"), ("delivered", "paid"),
        ("delivered", "paid"),
    ]  # fmt: skip
    assert found["messages"][3]["why"] == "its id came at offset 0"
    assert "created || paid" in found["messages"][2]["why"]
    assert [request["headers"]["Sidecar-Count"] for request in found["requests"]] == ["2", "1"]


def test_why_a_message_has_no_tag_is_told(tmp_path: Path) -> None:
    """A value that is no JSON has no field in it; one without the field has none either."""
    settings = config(tags={"from": {"json": "$.type"}, "subscribe": "paid"}, dedup={"by": "position"})
    found = told(tmp_path, settings, {"value": "{'type': 'paid'}"}, {"value": "{}"}, {"value": '{"type": "lost"}'})
    whys = [each["why"] for each in found["messages"]]
    assert "and it has no tag: its value is no JSON (Expecting property name" in whys[0]
    assert whys[1].endswith("and it has no tag")
    assert whys[2] == "tags.subscribe is paid"


def test_delayed_messages_are_told(tmp_path: Path) -> None:
    """Until when one is held, and why one with a malformed time is a dead letter."""
    due = {
        "headers": [["tag", "paid"], ["sidecar-deliver-at", "2027-01-31T12:00:00Z"]],
        "value": "{}",
        "timestamp": AT_MS,
    }
    bad = {"headers": [["tag", "paid"], ["sidecar-deliver-at", "soon"]], "value": "{}", "timestamp": AT_MS}
    found = told(tmp_path, config(delay={"store": "local", "max": "365d"}), due, bad)["messages"]
    assert (found[0]["outcome"], found[0]["why"][:22]) == ("held", "until 2027-01-31T12:00")
    assert found[1]["outcome"] == "dead letter"
    assert "soon" in found[1]["why"]


def test_a_message_that_cancels_is_in_no_request(tmp_path: Path) -> None:
    """It is filtered, whatever else it has."""
    cancels = {"headers": [["tag", "paid"], ["sidecar-cancel", "order-7"]], "value": "{}"}
    found = told(tmp_path, config(delay={"store": "local"}), cancels)
    assert (found["messages"][0]["outcome"], found["requests"]) == ("filtered", [])
    assert "order-7" in found["messages"][0]["why"]


def test_a_terminal_obeys_nothing(tmp_path: Path) -> None:
    """Control characters of tags and values are shown, and a compressed body is told by its size."""
    settings = config(tags={"from": {"header": "tag"}})
    settings["sink"]["http"]["format"] = "ndjson"
    shown = tried(tmp_path, settings, row("\x1b[31m", value="\x1b]0;x\x07"), json_=False).stdout
    assert "\x1b" not in shown
    assert "\\x1b[31m" in shown
    settings["sink"]["http"]["compression"] = "gzip"
    assert "compressed bytes" in tried(tmp_path, settings, row(), json_=False).stdout


def test_what_cannot_be_framed_is_a_dead_letter(tmp_path: Path) -> None:
    """A value that the format cannot represent is told with the reason, and is in no request."""
    settings = config()
    settings["sink"]["http"]["format"] = "json_array"
    found = told(tmp_path, settings, row(value="no json"), row(value="[1]"))
    assert [each["outcome"] for each in found["messages"]] == ["dead letter", "delivered"]
    assert [request["body"] for request in found["requests"]] == ["[[1]]"]


@pytest.mark.parametrize("as_json", [True, False])
def test_no_secret_is_shown(tmp_path: Path, as_json: bool) -> None:
    """Values of configured headers, credentials and the query of the URL are hidden."""
    result = tried(tmp_path, config(), row(), json_=as_json)
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output
    assert "Authorization" in result.output


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"vlaue": "x"}', "unknown key vlaue"),
        ('{"value": {"id": 1}}', "quote it"),
        ('{"value_base64": "?"}', "line 2"),
        ('{"value": "x", "value_base64": "eA=="}', "base64 value for one field"),
        ('{"value": "x", "partition": "one"}', "line 2"),
        ('{"value": "x", "offset": 0}', "is not above"),
    ],
)
def test_a_line_that_is_no_message_is_named(tmp_path: Path, line: str, why: str) -> None:
    """The number of the line, and what is wrong with it."""
    result = tried(tmp_path, config(), row(), line)
    assert result.exit_code == EXIT_CONFIG
    assert why in result.stderr


def test_no_other_sink_is_touched(tmp_path: Path) -> None:
    """A landing zone is not made by looking; there are decisions, and no request."""
    settings = config(sink={"spark": {"landing": str(tmp_path / "zone")}}, state={"dir": str(tmp_path / "state")})
    found = told(tmp_path, settings, row())
    assert (found["messages"][0]["outcome"], found["requests"]) == ("delivered", [])
    assert not (tmp_path / "zone").exists()
    assert not (tmp_path / "state").exists()


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A URL, and the headers and bodies that come there."""
    came: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            came.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/in", came
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("format_", ["envelope", "ndjson", "json_array"])
def test_the_daemon_sends_the_same(
    kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path, format_: str
) -> None:
    """Bodies are equal byte for byte, headers in their names, and in their values but for scope and key."""
    topic = make_topic(1)
    values = [b'{"id": 1}', b'"\xc3\xa4"', b"[1,2]", b'{"lost": 1}', b"{}"]
    tags, ids = [b"paid", b"created", b"paid", b"lost", b"paid"], [b"1", b"2", b"3", b"4", b"3"]
    produce(
        kafka.bootstrap,
        topic,
        [
            Outgoing(0, value, b"k", [("tag", tag), ("id", id_)], timestamp_ms=NOW_MS + n)
            for n, (value, tag, id_) in enumerate(zip(values, tags, ids, strict=True))
        ],
    )
    rows = [
        {
            "topic": topic, "offset": n, "timestamp": NOW_MS + n, "key": "k", "value": value.decode(),
            "headers": [["tag", tag.decode()], ["id", id_.decode()]],
        }
        for n, (value, tag, id_) in enumerate(zip(values, tags, ids, strict=True))
    ]  # fmt: skip
    with receiver() as (url, came):
        settings = config(url)
        settings["source"]["kafka"] |= {"bootstrap_servers": kafka.bootstrap, "group_id": group, "topics": [topic]}
        settings["sink"]["http"]["format"] = format_
        with Daemon(tmp_path, settings) as daemon:
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delivered"] == 3, 30, "all are delivered", detail=daemon.log_tail)
        requests = told(tmp_path, settings, *rows)["requests"]
    sent = {headers["Sidecar-Group"]: (headers, body) for headers, body in came}
    assert {request["group"] for request in requests} == sent.keys()
    for request in requests:
        headers, body = sent[request["group"]]
        assert request["body"].encode() == body
        assert set(request["headers"]) == set(headers) - {"Host", "Accept-Encoding"}
        assert (request["method"], request["url"]) == ("POST", url)
        for name in ("Content-Type", "Content-Length", "Sidecar-Count", "Sidecar-Attempt", "User-Agent"):
            assert request["headers"][name] == headers[name]
        assert request["headers"]["Sidecar-Parts"].split(":")[1:] == headers["Sidecar-Parts"].split(":")[1:]
