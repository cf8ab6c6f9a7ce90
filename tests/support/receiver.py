"""A receiver with faults for tests, in this process or its own: stores parts, remembers names, misbehaves as told.

`python -m tests.support.receiver --port 0 --out FILE` prints its port. `PUT /control` changes its behaviour, with any
of `{"remember": bool, "faults": [{"kind": ...}]}`, `GET /stats` counts. Nothing that the daemon imports may come in.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import random
import ssl
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import orjson
import xxhash
import zstandard

Row = tuple[str, int, int | None, str | None]
"""Topic, partition, offset (None unless `envelope`), hash of the value."""
GIANT_BYTES = 1_000_000_000


@dataclass
class Fault:
    """How to misbehave, in a share of the requests that it fits.

    It fits those of its group that are larger than `over_bytes`, and beyond `per_second` of them in a second.

    Kinds that store nothing: `status`, `hang` (never answers), `close` (no answer), `truncate` (closes after the
    headers of a 200), `drip` (a byte of the answer every 100 ms), `refuse` (`status` 400, or 207 naming the rows that
    hold `marker`, the others being stored). Kinds that store: `lost` (closes before the answer), `giant` (1 GB of
    answer), `slow` (waits for `delay_ms` first).
    """

    kind: Literal["status", "hang", "close", "truncate", "drip", "refuse", "lost", "giant", "slow"]
    status: int = 503
    headers: dict[str, str] | None = None
    body: str = ""
    rate: float = 1.0
    group: str | None = None
    marker: str = ""
    over_bytes: int = -1
    per_second: int = 0
    retry: bool = False
    delay_ms: int = 0
    times: int | None = None
    spared_s: list[float] = field(default_factory=list)

    def fits(self, group: str, body: bytes) -> bool:
        """Whether it strikes now; uses up one of its times."""
        if self.group not in (None, group) or self.marker.encode() not in body or random.random() >= self.rate:
            return False
        if len(body) <= self.over_bytes:
            return False
        now_s = time.monotonic()
        if len([at_s for at_s in self.spared_s if at_s > now_s - 1]) < self.per_second:
            self.spared_s = [*self.spared_s[-self.per_second :], now_s]
            return False
        if self.times is not None:
            self.times -= 1
        return self.times is None or self.times >= 0


@dataclass
class Request:
    """A POST with its body unpacked and taken apart."""

    headers: dict[str, str]
    group: str
    parts: list[tuple[str, int]]
    body: bytes
    lines: list[bytes]


def value_hash(value: bytes | None) -> str | None:
    """What is kept of a value; None for null."""
    return None if value is None else xxhash.xxh3_64_hexdigest(value)


def parts_in(path: Path) -> Iterator[dict[str, Any]]:
    """The parts in a receiver's file: at_ms, group, part, count, attempt, key, rows; a torn line is left out."""
    if path.exists():
        with path.open("rb") as file:
            yield from (orjson.loads(line) for line in file if line.endswith(b"\n"))


def rows_in(path: Path) -> Iterator[Row]:
    """The rows in a receiver's file, in order."""
    for part in parts_in(path):
        yield from map(tuple, part["rows"])


class Receiver:
    """The receiver on a port of loopback, serving in threads until it is closed.

    Args:
        port: 0 for any.
        out: File that parts are appended to; in memory alone when None.
        remember: Whether a part whose name is known is not stored again.
        count_only: Keep no rows: for measuring.
        tls: Serve https.

    Attributes:
        headers: Of each request, names in lower case.
        bodies: Of each request, unpacked; only when kept in memory.
    """

    def __init__(
        self,
        port: int = 0,
        out: Path | None = None,
        *,
        remember: bool = True,
        count_only: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.remember = remember
        self.faults: list[Fault] = []
        self.stats: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.closing = threading.Event()
        self._parts: list[dict[str, Any]] = []
        self._known: dict[tuple[str, str], set[int]] = {}
        self._out = out.open("ab") if out else None
        self._out_path = out
        self._count_only = count_only
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), self, tls)
        self.port: int = self._server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://localhost:{self.port}/ingest"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def parts(self) -> list[dict[str, Any]]:
        """Everything stored so far, part by part."""
        return list(parts_in(self._out_path)) if self._out_path else list(self._parts)

    def rows(self) -> list[Row]:
        """Everything stored so far, row by row."""
        return [tuple(row) for part in self.parts() for row in part["rows"]]

    def fail(self, kind: Any, **how: Any) -> None:
        """Add a fault; see `Fault`."""
        self.faults.append(Fault(kind, **how))

    def control(self, change: dict[str, Any]) -> None:
        """What `PUT /control` does."""
        with self._lock:
            self.remember = change.get("remember", self.remember)
            if "faults" in change:
                self.faults = [Fault(**fault) for fault in change["faults"]]

    def fault_for(self, request: Request) -> Fault | None:
        """Count a request, and choose how to misbehave."""
        with self._lock:
            self.stats["requests"] += 1
            if not self._count_only:
                self.headers.append(request.headers)
            if not self._out and not self._count_only:
                self.bodies.append(request.body)
            return next((fault for fault in self.faults if fault.fits(request.group, request.body)), None)

    def store(self, request: Request, marker: bytes = b"") -> list[int]:
        """Store the parts that are not known, without rows that hold `marker`; returns the indices of those."""
        failed: list[int] = []
        rows = [] if self._count_only else [_row(line) for line in request.lines]
        with self._lock:
            at = 0
            for name, count in request.parts:
                bad = {i for i in range(count) if marker and marker in request.lines[at + i]}
                failed += [at + i for i in self._store_part(request, name, count, rows[at : at + count], bad)]
                at += count
            if self._out:
                self._out.flush()
        return failed

    def _store_part(self, request: Request, name: str, count: int, rows: list[Any], bad: set[int]) -> set[int]:
        known = self._known.get((request.group, name)) if self.remember else None
        if known is not None:
            self.stats["repeated_parts"] += 1
            return known
        if len(bad) == count:  # nothing is stored, so the name stays free
            return bad
        self._known[request.group, name] = bad
        self.stats["parts"] += 1
        self.stats["rows"] += count - len(bad)
        where = name.rsplit(":", 2)
        topic, partition = where[0].rsplit("@", 1)[0], int(where[1])
        part = {
            "at_ms": time.time_ns() // 1_000_000,
            "group": request.group,
            "part": name,
            "count": count - len(bad),
            "attempt": int(request.headers["sidecar-attempt"]),
            "key": request.headers["idempotency-key"],
            "rows": [(*(row[0] or (topic, partition, None)), row[1]) for i, row in enumerate(rows) if i not in bad],
        }
        if self._out:
            self._out.write(orjson.dumps(part) + b"\n")
        elif not self._count_only:
            self._parts.append(part)
        return bad


def _row(line: bytes) -> tuple[tuple[str, int, int] | None, str | None]:
    """Origin and hash of an envelope's value; of any other row no origin and its own hash."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        row = orjson.loads(line)
        origin = (row["topic"], row["partition"], row["offset"])
        if "value_base64" in row:
            return origin, value_hash(base64.b64decode(row["value_base64"]))
        return origin, value_hash(None if row["value"] is None else row["value"].encode())
    return None, value_hash(line)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], receiver: Receiver, tls: ssl.SSLContext | None) -> None:
        self.receiver = receiver
        self.tls = tls
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.receiver.stats["connections"] += 1
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self.tls.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what this is for."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        self.answer(200, orjson.dumps(self.server.receiver.stats))

    def do_PUT(self) -> None:
        self.server.receiver.control(orjson.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(204)

    def do_POST(self) -> None:
        receiver = self.server.receiver
        request = self.take_apart()
        fault = receiver.fault_for(request)
        if len(request.lines) != sum(count for _, count in request.parts):
            receiver.stats["malformed"] += 1
            self.answer(400, b"rows and Sidecar-Parts differ")
        elif fault is None:
            failed = receiver.store(request)
            self.answer_rows(failed, retry=False)
        else:
            receiver.stats[fault.kind] += 1
            self.misbehave(fault, request)

    def take_apart(self) -> Request:
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size)
        if len(body) < size:  # the sender died in mid-request, which is then none
            self.server.receiver.stats["cut_off"] += 1
            raise ConnectionAbortedError
        self.server.receiver.stats["bytes"] += size
        match self.headers.get("Content-Encoding"):
            case "gzip":
                body = zlib.decompress(body, wbits=31)
            case "zstd":
                body = zstandard.decompress(body)
        named = [part.rpartition("=") for part in self.headers["Sidecar-Parts"].split(",")]
        parts = [(name, int(count)) for name, _, count in named]
        if self.headers["Content-Type"] == "application/json":
            lines = [orjson.dumps(value) for value in orjson.loads(body)]
        else:
            lines = body.split(b"\n")[:-1]
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(headers, self.headers["Sidecar-Group"], parts, body, lines)

    def misbehave(self, fault: Fault, request: Request) -> None:
        receiver = self.server.receiver
        match fault.kind:
            case "status":
                self.answer(fault.status, fault.body.encode(), fault.headers)
            case "refuse" if fault.status == 207:
                self.answer_rows(receiver.store(request, fault.marker.encode()), retry=fault.retry)
            case "refuse":
                self.answer(fault.status, fault.body.encode())
            case "slow":
                receiver.closing.wait(fault.delay_ms / 1000)
                self.answer_rows(receiver.store(request), retry=False)
            case "giant":
                receiver.store(request)
                self.stream(GIANT_BYTES, b"x" * 65_536, 0)
            case "drip":
                self.stream(10_000, b"x", 0.1)
            case "truncate":
                self.stream(10, b"", 0)
            case "hang":
                receiver.closing.wait(600)
            case "lost":
                receiver.store(request)
        self.close_connection |= fault.kind in ("hang", "close", "lost", "truncate", "drip", "giant")

    def answer_rows(self, failed: list[int], *, retry: bool) -> None:
        if not failed:
            self.answer(204)
            return
        listed = [{"index": index, "retry": retry, "reason": "marked"} for index in failed]
        self.answer(207, orjson.dumps({"failed": listed}))

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def stream(self, size: int, piece: bytes, wait_s: float) -> None:
        """Promise `size` bytes, then send `piece` again and again, until the client has enough; or nothing at all."""
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.flush()
        with contextlib.suppress(OSError):
            for _ in range(size // len(piece) if piece else 0):
                self.connection.sendall(piece)
                if self.server.receiver.closing.wait(wait_s):
                    break

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Silent."""


def main() -> None:
    """Serve until the process is killed."""
    options = argparse.ArgumentParser(description="A receiver with faults.")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--out", type=Path)
    options.add_argument("--forget", action="store_true", help="remember no names")
    options.add_argument("--count-only", action="store_true", help="keep no rows")
    asked = options.parse_args()
    receiver = Receiver(asked.port, asked.out, remember=not asked.forget, count_only=asked.count_only)
    print(receiver.port, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


if __name__ == "__main__":
    main()
