"""Stores each message once, with Flask and SQLite: names of parts and rows in one transaction.

pip install flask
DB=orders.db flask --app flask_sqlite run --port 8080
"""

import json
import os
import sqlite3
import time
from contextlib import closing

from flask import Flask, Response, request

KEEP_S = 24 * 3600
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, stored_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS orders (topic TEXT, "partition" INTEGER, "offset" INTEGER, value TEXT);
"""
app = Flask(__name__)


def connect() -> sqlite3.Connection:
    """A connection whose transactions begin with a lock: two requests with the same part do not pass each other."""
    return sqlite3.connect(os.environ.get("DB", "orders.db"), timeout=30, isolation_level="IMMEDIATE")


with closing(connect()) as db:
    db.executescript(SCHEMA)


@app.post("/ingest")
def ingest() -> Response:
    """Store the rows of each part whose name is new; 204 once they are durable, 400 if a row can never be stored."""
    rows = [json.loads(line) for line in request.get_data().split(b"\n")[:-1]]
    for number, row in enumerate(rows):
        try:
            json.loads(row["value"])
        except (KeyError, TypeError, ValueError):
            return Response(f"row {number} has no JSON as its value", 400)
    with closing(connect()) as db, db:
        db.execute("DELETE FROM parts WHERE stored_at < ?", [time.time() - KEEP_S])
        for part in request.headers["Sidecar-Parts"].split(","):
            name, _, count = part.rpartition("=")
            own, rows = rows[: int(count)], rows[int(count) :]
            key = f"{request.headers['Sidecar-Group']} {name}"
            if db.execute("INSERT OR IGNORE INTO parts VALUES (?, ?)", [key, time.time()]).rowcount:
                values = [(row["topic"], row["partition"], row["offset"], row["value"]) for row in own]
                db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", values)
    return Response(status=204)


@app.get("/count")
def count() -> dict[str, int]:
    """How many rows are stored, and how many different ones."""
    with closing(connect()) as db:
        everything = db.execute("SELECT count(*) FROM orders").fetchone()[0]
        distinct = db.execute('SELECT count(*) FROM (SELECT DISTINCT topic, "partition", "offset" FROM orders)')
        return {"rows": everything, "distinct": distinct.fetchone()[0]}
