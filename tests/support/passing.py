"""Passes connections on: `python -m tests.support.passing HOST:PORT=HOST:PORT` listens at the first of each pair."""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK_BYTES = 1 << 16


async def serve(pairs: list[str]) -> None:
    """Listen at all of them until the process ends."""
    for pair in pairs:
        (host, port), target = (side.rsplit(":", 1) for side in pair.split("="))

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: list[str] = target) -> None:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(target[0], int(target[1]))
                await asyncio.gather(copy(reader, back), copy(there, writer))
            writer.close()

        await asyncio.start_server(take, host, int(port))
    await asyncio.Event().wait()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on to the end of the stream."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
