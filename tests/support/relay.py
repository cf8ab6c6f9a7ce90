"""A server that passes bytes on to another one: a peer that can be killed while what stands behind it lives."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self


class Relay:
    """Listens at a port of its own from `__enter__` on.

    Args:
        target: `host:port` of the server behind it.

    Attributes:
        address: `host:port` of its own.
        taken: Connections that were taken so far.
    """

    def __init__(self, target: str) -> None:
        self.reach(target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.address = ""
        self.taken = 0

    def reach(self, target: str) -> None:
        """Stand before this server from now on."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Break all connections and take no more; harmless when repeated."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = "127.0.0.1:{1}".format(*self._server.sockets[0].getsockname())

    async def _end(self) -> None:
        self._server.close()
        open_ = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        there, back = await asyncio.open_connection(self._host, self._port)
        try:
            await asyncio.gather(self.forward(reader, back), forward(there, writer))
        finally:
            writer.transport.abort()
            back.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what a client sends."""
        await forward(reader, writer)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on as they come."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
