"""A start that fails leaves no connection open. No broker."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.errors import UnavailableError
from sidecar.sources.context import SourceContext
from sidecar.sources.rocketmq.remoting.cluster import RocketMqCluster
from sidecar.sources.rocketmq.remoting.source import RocketMqSource as Source
from sidecar.sources.rocketmq.wire.network import Network
from sidecar.state.interface import Rules
from tests.support.memory_state import MemoryState


def test_a_start_that_fails_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads and sockets would outlive it in a program that tries again."""
    settings = RocketMqSettings.model_validate({
        "client": "remoting", "name_servers": "127.0.0.1:1", "group": "g", "topics": ["orders"],
    })  # fmt: skip
    closed: list[bool] = []
    close = Network.close

    def noted(network: Network) -> None:
        closed.append(True)
        close(network)

    def fail(_: RocketMqCluster) -> None:
        raise UnavailableError("no name server")

    monkeypatch.setattr(Network, "close", noted)
    monkeypatch.setattr(RocketMqCluster, "await_routes", fail)
    source = Source(settings, SourceContext(MemoryState(), Rules(b"rule"), 1 << 20, "me"))
    listener: Any = type("Listener", (), {"waiting": lambda *_: None, "event": lambda *_: None})()
    with pytest.raises(UnavailableError, match="no name server"):
        source.open(listener)
    assert closed == [True]
