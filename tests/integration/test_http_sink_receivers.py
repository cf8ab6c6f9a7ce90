"""The reference receiver and the one with faults, as processes that the HTTP sink posts to."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.core.records import Verdict
from sidecar.sinks.formats import FormatName
from tests.support.jars import ROOT
from tests.support.posting import Client
from tests.support.process import free_ports, spawn, wait_until
from tests.support.receiver import Receiver, parts_in, rows_in, value_hash


@contextlib.contextmanager
def process(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A receiver's process, killed at the end."""
    with (folder / "log").open("ab") as log:
        running = spawn([sys.executable, *command], log, stdout=subprocess.PIPE)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@contextlib.contextmanager
def reference(folder: Path, name: FormatName, *more: str) -> Iterator[Client]:
    """A client of the reference receiver."""
    port = free_ports(1)[0]
    with process(folder, "examples/receiver.py", "--port", str(port), "--db", str(folder / "o.db"), *more):
        client = Client(f"http://127.0.0.1:{port}/ingest", name)
        warm_up = client.part(0, [b"first"])
        wait_until(lambda: client.post(warm_up).verdict is Verdict.ACK, 20, "the receiver answers")
        yield client
        client.sink.close()


def stored(folder: Path) -> list[tuple[object, ...]]:
    """The rows of the reference receiver."""
    with contextlib.closing(sqlite3.connect(folder / "o.db")) as db:
        return db.execute('SELECT topic, "partition", "offset", row FROM rows ORDER BY rowid').fetchall()


def test_the_reference_receiver_is_at_most_60_lines() -> None:
    """What users copy stays short."""
    assert len((ROOT / "examples/receiver.py").read_text().splitlines()) <= 60


def test_the_reference_receiver_is_exact(tmp_path: Path) -> None:
    """A part that it has is left alone, also beside a new one and after a kill; the origin stands beside a row."""
    with reference(tmp_path, "envelope") as client:
        new = client.part(1, [b"\xff\n", None, b""])
        assert client.post(new).verdict is Verdict.ACK
    with reference(tmp_path, "envelope") as client:
        assert client.post(new, client.part(4, [b"last"])).verdict is Verdict.ACK
    rows = stored(tmp_path)
    assert [row[:3] for row in rows] == [("orders", 3, offset) for offset in range(5)]
    assert json.loads(str(rows[1][3], "utf-8"))["value_base64"] == "/wo="  # type: ignore[call-overload]


def test_the_reference_receiver_takes_values_alone(tmp_path: Path) -> None:
    """With ndjson a row is the value, even one that looks like anything."""
    with reference(tmp_path, "ndjson") as client:
        assert client.post(client.part(1, [b"\xff\r", b"[1]", b"{}"])).verdict is Verdict.ACK
    assert [row[3] for row in stored(tmp_path)] == [b"first", b"\xff\r", b"[1]", b"{}"]


def test_the_reference_receiver_refuses_whole_batches(tmp_path: Path) -> None:
    """A refused or too large batch stores nothing at all, and the connection goes on."""
    with reference(tmp_path, "ndjson", "--refuse", "poison") as client:
        assert client.post(client.part(1, [b"a", b"poison"])).verdict is Verdict.REJECT
        assert client.post(client.part(1, [b"x" * (1 << 20)] * 65)).verdict is Verdict.TOO_LARGE
        odd = client.part(1, [b"a"])
        odd.fragments[0].data = b"a\nb"
        assert client.post(odd).verdict is Verdict.REJECT
        assert client.post(client.part(1, [b"b"])).verdict is Verdict.ACK
    assert [row[3] for row in stored(tmp_path)] == [b"first", b"b"]


def test_the_faulty_receiver_as_a_process(tmp_path: Path) -> None:
    """It prints its port, appends parts to its file, and changes its faults and its memory while it runs."""
    out = tmp_path / "parts"
    with process(tmp_path, "-m", "tests.support.receiver", "--port", "0", "--out", str(out)) as running:
        assert running.stdout is not None
        base = f"http://127.0.0.1:{int(running.stdout.readline())}"
        client = Client(f"{base}/ingest", "envelope")

        def control(change: object) -> None:
            body = json.dumps(change).encode()
            with urllib.request.urlopen(urllib.request.Request(f"{base}/control", body, method="PUT")) as answer:
                assert answer.status == 204

        part = client.part(0, [b"a", b"\xff", None, b""])
        assert [client.post(part).verdict for _ in range(2)] == [Verdict.ACK] * 2
        control({"faults": [{"kind": "lost", "times": 1}, {"kind": "status", "status": 429, "group": "other"}]})
        assert [client.post(client.part(4, [b"b"])).verdict for _ in range(2)] == [Verdict.UNANSWERED, Verdict.ACK]
        control({"faults": [], "remember": False})
        assert client.post(part).verdict is Verdict.ACK
        with urllib.request.urlopen(f"{base}/stats") as answer:
            stats = json.load(answer)
        client.sink.close()
    hashes = [value_hash(value) for value in (b"a", b"\xff", None, b"")]
    first = [("orders", 3, offset, text) for offset, text in enumerate(hashes)]
    assert list(rows_in(out)) == [*first, ("orders", 3, 4, value_hash(b"b")), *first]
    assert [(p["group"], p["part"], p["count"], p["attempt"]) for p in parts_in(out)] == [
        ("g", "orders@s:3:0-3", 4, 1),
        ("g", "orders@s:3:4-4", 1, 1),
        ("g", "orders@s:3:0-3", 4, 1),
    ]
    assert (stats["requests"], stats["parts"], stats["rows"], stats["repeated_parts"]) == (5, 3, 9, 2)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_faults_strike_at_their_rate(share: float) -> None:
    """A rate of 0 never strikes and one of 1 always."""
    with Receiver() as receiver:
        receiver.fail("status", status=500, rate=share)
        client = Client(receiver.url, "ndjson")
        verdicts = {client.post(client.part(0, [b"a"])).verdict for _ in range(20)}
        client.sink.close()
    assert verdicts == {Verdict.FAILED if share else Verdict.ACK}
