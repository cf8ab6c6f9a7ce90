"""A relay in front of a Kafka broker that holds back requests of one kind, and a broker whose clients go through it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from math import inf
from pathlib import Path

from tests.support.kafka import Broker, KafkaBroker
from tests.support.relay import Relay

FETCH, OFFSET_COMMIT = 1, 8
"""Numbers of requests in Kafka's protocol."""


class KafkaRelay(Relay):
    """Passes requests on: each has its length, its number, version, id, and the client's id with its length.

    Attributes:
        delays_s: By client's id and number, for how long a request is held back; without end it is never passed on.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.delays_s: dict[tuple[bytes, int], float] = {}

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what a client sends, in its order."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                request = await reader.readexactly(int.from_bytes(size))
                client = request[10 : 10 + int.from_bytes(request[8:10])]
                delay_s = self.delays_s.get((client, int.from_bytes(request[:2])), 0.0)
                if delay_s == inf:
                    continue
                await asyncio.sleep(delay_s)
                writer.write(size + request)
                await writer.drain()
        writer.close()


@contextlib.contextmanager
def relayed(folder: Path) -> Iterator[tuple[KafkaBroker, Broker, KafkaRelay]]:
    """A broker of its own, the same as clients of the relay see it, and the relay."""
    with KafkaRelay("localhost:0") as relay:
        broker = KafkaBroker(folder, relayed=relay.address)
        relay.reach(broker.address("RELAYED"))
        with broker:
            yield broker, Broker(relay.address), relay
