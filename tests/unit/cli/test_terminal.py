"""What a person sees on a narrow screen: no number, time or place is cut, whatever a table has."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyroaring import BitMap64
from rich.cells import cell_len

from sidecar.check.findings import Finding
from sidecar.cli import main
from sidecar.core.books import BOOKS
from sidecar.core.records import TopicPartition, group_label
from sidecar.state.interface import PartitionSnapshot
from sidecar.state.store import Store
from tests.support.letters import configure, letter
from tests.support.terminal import in_terminal

LONG = TopicPartition("t" * 249, 1_234_567)
SHORT = TopicPartition("orders", 0)
HUGE = 9_007_199_254_740_992_000
WIDTHS = pytest.mark.parametrize("columns", [20, 80, 120])


def row(tp: TopicPartition) -> dict[str, Any]:
    """A partition of the status, each of its numbers another one."""
    names = ("watermark", "position", "lag", *BOOKS)
    return {"topic": tp.topic, "partition": tp.partition, **{name: HUGE + at for at, name in enumerate(names)}}


STATUS = {
    **{name: HUGE + 50 + at for at, name in enumerate(BOOKS)},
    "group_id": "g" * 249, "health": {"state": "healthy"},
    "ready": True, "started_at": "2027-01-31T12:00:00Z", "version": "1", "intake_stopped": [], "problems": [],
    "partitions": [row(SHORT), row(LONG)], "retrying": [], "lag": HUGE + 99, "held_bytes": HUGE, "budget_bytes": HUGE,
    "blocking": [{"group": "p" * 249, "topic": LONG.topic, "partition": LONG.partition}],
    "dead_letters_stored": HUGE, "retries_waiting": 0, "tags_refused": {"mask": HUGE, "look": HUGE},
    "lane": None, "reload": None, "pace": {"concurrency": 4, "body_bytes": HUGE},
}  # fmt: skip


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(STATUS).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def config(tmp_path: Path) -> Iterator[str]:
    """A configuration whose daemon answers with `STATUS`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kafka = {"bootstrap_servers": "localhost:1", "group_id": STATUS["group_id"], "topics": ["t"]}
        listen = f"127.0.0.1:{server.server_port}"
        yield str(configure(tmp_path, source={"kafka": kafka}, admin={"listen": listen}))
        server.shutdown()


def assert_whole(screen: str, columns: int, words: list[str]) -> None:
    """Nothing is wider than the screen or cut, and each word is there, on one line unless it is too long."""
    assert max(map(cell_len, screen.splitlines())) <= columns
    assert "…" not in screen
    joined = re.sub(r"\s", "", screen)
    for word in words:
        assert word in (screen if len(word) < columns - 16 else joined), word


@WIDTHS
@pytest.mark.parametrize("command", [["status"], ["top", "--count", "1"]], ids=lambda each: each[0])
def test_the_status_is_whole(config: str, columns: int, command: list[str]) -> None:
    """Each number of each partition, and of all, is on the screen, and each place."""
    wanted = [f"{tp.topic}:{tp.partition}" for tp in (LONG, SHORT)]
    wanted += [str(HUGE + at) for at in [*range(3 + len(BOOKS)), *range(50, 50 + len(BOOKS)), 99]]
    if command[0] == "top":
        screen = in_terminal(columns, *command, "-c", config, rows=200)
    else:
        screen = in_terminal(columns, *command, "-c", config)
    assert_whole(screen, columns, wanted)


def test_top_says_what_has_no_room(config: str) -> None:
    """On a screen that is too low, the last line has the number of lines that are missing."""
    screen = in_terminal(80, "top", "--count", "1", "-c", config, rows=10)
    assert re.search(r"… \d+ more lines", screen)


@WIDTHS
def test_the_state_folder_is_whole(tmp_path: Path, columns: int) -> None:
    """Each watermark and each place is on the screen."""
    config = configure(tmp_path)
    store = Store(tmp_path / "state")
    store.bind("c1", "g")
    empty = (BitMap64().serialize(),) * 2
    store.save_partitions([PartitionSnapshot(tp, "t", 9, HUGE + tp.partition, 0, empty) for tp in (LONG, SHORT)])
    store.close()
    screen = in_terminal(columns, "state", "inspect", "-c", str(config))
    assert_whole(screen, columns, [f"{tp.topic}:{tp.partition}" for tp in (LONG, SHORT)] + [
        str(HUGE + tp.partition) for tp in (LONG, SHORT)
    ])  # fmt: skip


@WIDTHS
def test_dead_letters_are_whole(tmp_path: Path, columns: int) -> None:
    """Each place, time and group is on the screen; the reason is wrapped."""
    config = configure(tmp_path)
    store = Store(tmp_path / "state")
    reason = f"HTTP 400: {'x' * 60}"
    store.letters.put([
        letter(HUGE, topic=LONG.topic, partition=LONG.partition, group_name="p" * 249, reason=reason), letter(7),
    ])  # fmt: skip
    store.close()
    screen = in_terminal(columns, "dead-letters", "list", "-c", str(config))
    places = [
        f"{LONG.topic}:{LONG.partition}:{HUGE}",
        "orders:3:7",
        group_label("p" * 249),
        "1970-01-01T00:00:01Z",
        "x" * 60,
    ]
    assert_whole(screen, columns, [re.sub(r"\s", "", each) for each in places])


def test_a_row_is_one_line_in_a_pipe(tmp_path: Path) -> None:
    """A program gets a table with whole places, one row a line."""
    from tests.support.letters import run

    configure(tmp_path)
    store = Store(tmp_path / "state")
    store.letters.put([letter(HUGE, topic=LONG.topic, reason="x " * 40)])
    store.close()
    head, one, _ = run(tmp_path, "list").stdout.splitlines()
    assert "first tried" in head
    assert f"{LONG.topic}:3:{HUGE}" in one
    assert "x " * 30 in one


def test_what_others_wrote_is_escaped(tmp_path: Path) -> None:
    """A reason with control characters moves no cursor, and forges no line."""
    config = configure(tmp_path)
    store = Store(tmp_path / "state")
    store.letters.put([letter(7, reason="HTTP 400: \x1b[2J\x9b31m\nforged\u202e")])
    store.close()
    screen = in_terminal(120, "dead-letters", "list", "-c", str(config))
    assert r"\x1b[2J\x9b31m\nforged\u202e" in screen


def test_what_a_peer_of_check_sends_is_escaped(tmp_path: Path) -> None:
    """Bytes that are no HTTP are quoted, and move no cursor."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\x1b[2J\x9b31m\x07\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        kafka = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["t"]}
        sink = {"http": {"url": f"http://127.0.0.1:{server.getsockname()[1]}/"}}
        config = configure(tmp_path, source={"kafka": kafka}, sink=sink, admin={"listen": "off"})
        screen = in_terminal(120, "check", "-c", str(config))
    (told,) = [line for line in screen.splitlines() if "receiver" in line]
    assert r"\x1b[2J" in told
    assert all(char.isprintable() for char in told)


def test_all_that_check_found_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a check quotes: subject, text and cure."""
    found = Finding("a\x1b[2J", "b\x07\u202e", "c\x9b31m", 69)
    monkeypatch.setattr("sidecar.cli.file.check.gather", lambda _: [found])
    told = CliRunner().invoke(main, ["check", "-c", str(configure(tmp_path))], prog_name="sidecar").stdout
    assert all(each in told for each in (r"a\x1b[2J", r"b\x07\u202e", r"c\x9b31m"))
    assert all(char.isprintable() or char == "\n" for char in told)
