"""Leases: which are extended, and when. No proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.sources.rocketmq.grpc.leases import (
    EXTEND_AHEAD_S,
    EXTENDED_S,
    INVALID_HANDLE,
    INVISIBLE_S,
    OK,
    Attempts,
    Leases,
)


class Proxy:
    """Answers with this code, and notes the ids of messages that it was asked about."""

    def __init__(self) -> None:
        self.code = OK
        self.asked: list[str] = []
        self.now_s = 100.0

    def change(self, _topic: str, message_id: str, _receipt: str, _invisible_s: float) -> str:
        return message_id

    async def call(self, name: str, message_id: str) -> Any:
        assert name == "ChangeInvisibleDuration"
        self.asked.append(message_id)
        return SimpleNamespace(status=SimpleNamespace(code=self.code), receipt_handle="")


def run(monkeypatch: pytest.MonkeyPatch, script: Callable[[Leases, Proxy], Awaitable[None]]) -> None:
    """Run a script with leases on a clock that the proxy sets."""
    proxy: Any = Proxy()
    monkeypatch.setattr("sidecar.sources.rocketmq.grpc.leases.time.monotonic", lambda: proxy.now_s)

    async def scripted() -> None:
        await script(Leases(proxy, proxy.call, Attempts("")), proxy)

    asyncio.run(scripted())


def message(message_id: str) -> Any:
    """A message as it was received."""
    system = SimpleNamespace(message_id=message_id, receipt_handle=f"handle of {message_id}")
    return SimpleNamespace(topic=SimpleNamespace(name="orders"), system_properties=system)


async def turn() -> None:
    """Let the tasks go on."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_lease_is_extended_shortly_before_it_ends_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while there is time left, nor while it is being extended, nor one that was acknowledged."""

    async def script(leases: Leases, proxy: Proxy) -> None:
        tokens = [leases.add_received(message(name)) for name in "ab"]
        leases.extend([*tokens, 99])
        await turn()
        assert proxy.asked == []
        proxy.now_s += INVISIBLE_S - EXTEND_AHEAD_S + 1
        leases.extend(tokens)
        leases.extend(tokens)
        await turn()
        assert proxy.asked == ["a", "b"]
        leases.extend(tokens)
        await turn()
        assert proxy.asked == ["a", "b"], "they last for a minute now"
        proxy.now_s += EXTENDED_S
        leases.extend(tokens)
        await turn()
        assert proxy.asked == ["a", "b"] * 2

    run(monkeypatch, script)


def test_a_lease_that_cannot_be_extended_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handle is not valid any more; after any other error it is."""

    async def script(leases: Leases, proxy: Proxy) -> None:
        token = leases.add_received(message("a"))
        proxy.now_s += INVISIBLE_S
        for proxy.code in (50_000, INVALID_HANDLE, OK, OK):
            leases.extend([token])
            await turn()
        assert proxy.asked == ["a", "a"]

    run(monkeypatch, script)


def test_a_lease_is_live_until_its_end_or_its_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown one is not: its message comes again."""

    async def script(leases: Leases, proxy: Proxy) -> None:
        token = leases.add_received(message("a"))
        lease = leases.get(token)
        assert lease is not None
        assert (lease.is_live, leases.get(99)) == (True, None)
        proxy.now_s += INVISIBLE_S + 1
        assert not lease.is_live

    run(monkeypatch, script)
