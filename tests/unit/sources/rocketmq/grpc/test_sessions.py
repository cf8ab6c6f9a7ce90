"""A call that finds no session waits for the next one, for a while. No proxy."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.sources.rocketmq.grpc.session import Sessions


def made(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    """Before the first session."""
    monkeypatch.setattr("sidecar.sources.rocketmq.grpc.session._credentials", lambda *_: None)
    settings = RocketMqSettings.model_validate({"client": "grpc", "endpoints": "a:1", "group": "g", "topics": ["t"]})
    unused: Any = None
    return Sessions(unused, settings, unused)


class Open:
    """A session that answers."""

    server = "a:1"

    async def call(self, name: str, request: Any) -> Any:
        return name, request


def test_a_call_between_two_sessions_is_made_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acknowledgement must not be lost because a proxy went away."""
    sessions = made(monkeypatch)

    async def script() -> Any:
        calling = asyncio.ensure_future(sessions.call("Ack", 7))
        await asyncio.sleep(0.01)
        session: Any = Open()
        sessions._is_open(session)
        return await calling

    assert asyncio.run(script()) == ("Ack", 7)


def test_a_call_without_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that gets no answer."""
    monkeypatch.setattr("sidecar.sources.rocketmq.grpc.session.REQUEST_S", 0.01)
    with pytest.raises(ConnectionError, match="there is no connection"):
        asyncio.run(made(monkeypatch).call("Ack", SimpleNamespace()))
