"""An exact receiver: stores names of parts and rows in SQLite in one transaction. Standard library only: copy it."""

import argparse
import contextlib
import json
import sqlite3
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY_MAX_BYTES = 64 << 20
SCHEMA = """PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, stored_at REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_by_age ON parts (stored_at);
CREATE TABLE IF NOT EXISTS rows ("group" TEXT, topic TEXT, "partition" INTEGER, "offset" INTEGER, row BLOB);"""


def store(group: str, parts: list[tuple[str, str, str]], rows: list[bytes]) -> None:
    """Store the rows and names of new parts in one transaction."""
    with contextlib.closing(sqlite3.connect(options.db, 30, isolation_level="IMMEDIATE")) as db, db:
        db.execute("DELETE FROM parts WHERE stored_at < ?", [time.time() - 24 * 3600])
        for name, _, count in parts:
            part, rows = rows[: int(count)], rows[int(count) :]
            if db.execute("INSERT OR IGNORE INTO parts VALUES (?, ?)", [f"{group} {name}", time.time()]).rowcount:
                db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", [(group, *origin(row), row) for row in part])


def origin(row: bytes) -> tuple[str | None, int | None, int | None]:
    """Topic, partition and offset of a row in the format `envelope`; in `ndjson`, a row has only the value."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        envelope = json.loads(row)
        return envelope["topic"], envelope["partition"], envelope["offset"]
    return None, None, None


class Handler(BaseHTTPRequestHandler):  # noqa: D101
    protocol_version = "HTTP/1.1"  # keeps connections open

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = zlib.decompressobj(wbits=31).decompress(body, BODY_MAX_BYTES + 1)
        parts = [part.rpartition("=") for part in self.headers["Sidecar-Parts"].split(",")]
        rows = body.split(b"\n")[:-1]
        refused = len(rows) != sum(int(n) for *_, n in parts) or (options.refuse and options.refuse.encode() in body)
        status = 413 if len(body) > BODY_MAX_BYTES else 400 if refused else 204
        if status == 204:
            store(self.headers["Sidecar-Group"], parts, rows)
        self.wfile.write(b"HTTP/1.1 %d \r\n%s\r\n" % (status, b"Content-Length: 0\r\n" * (status != 204)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--db", default="orders.db")
    parser.add_argument("--refuse", help="answer 400 to a batch that contains this text, to show how poison is found")
    options = parser.parse_args()
    sqlite3.connect(options.db).executescript(SCHEMA).connection.close()
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
