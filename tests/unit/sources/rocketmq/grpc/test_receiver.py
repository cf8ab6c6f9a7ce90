"""Requests for messages: each counts under its attempt id from its begin to its answer. No proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from sidecar.sources.rocketmq.grpc.client import GrpcReceiver
from sidecar.sources.rocketmq.grpc.leases import OK, Attempts

WHERE = "orders on b"


class Part:
    """The end of an answer that has no message."""

    status = SimpleNamespace(code=OK, message="")

    def HasField(self, name: str) -> bool:  # noqa: N802
        return name == "status"


def test_no_other_request_has_the_attempt_id_of_an_open_one() -> None:
    """Else the broker would give both what it gave the first; once it is answered, its id is free."""
    attempts, during = Attempts("place"), list[list[Any]]()
    asked: list[str] = []

    class Session:
        async def stream(self, request: str) -> AsyncIterator[list[Part]]:
            asked.append(request)
            during.append(attempts.free(WHERE, 1))
            yield [Part()]

    async def put(_: Any) -> None: ...

    requests: Any = SimpleNamespace(receive=lambda _queue, _count, _invisible_s, attempt_id: attempt_id)
    arrivals: Any = SimpleNamespace(put=put)
    queue = SimpleNamespace(topic=SimpleNamespace(name="orders"), broker=SimpleNamespace(name="b"))

    async def script() -> None:
        receiver = GrpcReceiver(requests, attempts, SimpleNamespace(), arrivals, {})  # type: ignore[arg-type]
        (first, second) = attempts.free(WHERE, 1)
        session: Any = Session()
        await receiver._receive_once(session, queue, 8, first)
        assert during == [[second]]
        assert first in attempts.free(WHERE, 1)

    asyncio.run(script())
    assert asked == ["place-0"]
