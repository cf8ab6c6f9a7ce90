"""Stores each message once, with FastAPI and PostgreSQL: names of parts and rows in one transaction.

pip install fastapi uvicorn 'psycopg[binary]' psycopg-pool
DB=postgresql://me@localhost/orders uvicorn fastapi_postgresql:app --port 8080
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from psycopg_pool import AsyncConnectionPool

SCHEMA = """
CREATE TABLE IF NOT EXISTS parts (name text PRIMARY KEY, stored_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS orders (topic text, "partition" int, "offset" bigint, value jsonb);
"""
pool = AsyncConnectionPool(os.environ["DB"], open=False)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Connect, and create the tables."""
    async with pool:
        async with pool.connection() as connection:
            await connection.execute(SCHEMA)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/ingest")
async def ingest(request: Request) -> Response:
    """Store the rows of each part whose name is new; 204 once they are durable, 400 if a row can never be stored."""
    rows = [json.loads(line) for line in (await request.body()).split(b"\n")[:-1]]
    for number, row in enumerate(rows):
        try:
            # PostgreSQL has no NUL in jsonb: such a row could never be stored.
            if "\\u0000" in json.dumps(json.loads(row["value"])):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            return Response(f"row {number} has no JSON as its value that can be stored", 400)
    async with pool.connection() as connection, connection.cursor() as cursor:
        await cursor.execute("DELETE FROM parts WHERE stored_at < now() - interval '24 hours'")
        for part in request.headers["Sidecar-Parts"].split(","):
            name, _, count = part.rpartition("=")
            own, rows = rows[: int(count)], rows[int(count) :]
            key = f"{request.headers['Sidecar-Group']} {name}"
            # Waits for a request with the same part that is still in its transaction.
            await cursor.execute("INSERT INTO parts (name) VALUES (%s) ON CONFLICT DO NOTHING", [key])
            if cursor.rowcount:
                values = [(row["topic"], row["partition"], row["offset"], row["value"]) for row in own]
                await cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s, %s)", values)
    return Response(status_code=204)


@app.get("/count")
async def count() -> dict[str, int]:
    """How many rows are stored, and how many different ones."""
    async with pool.connection() as connection:
        found = await connection.execute('SELECT count(*), count(DISTINCT (topic, "partition", "offset")) FROM orders')
        rows, distinct = await found.fetchone() or (0, 0)
        return {"rows": rows, "distinct": distinct}
