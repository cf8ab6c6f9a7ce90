"""A connection to a name server or a broker is there, or failed with its reason, within its time."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from sidecar.sources.rocketmq.wire.network import dial, text_of
from tests.support.silent import silent_addresses


def test_all_addresses_of_a_name_share_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight silent addresses of a name server take the time of one."""

    def found(host: str, *args: Any, **more: Any) -> list[Any]:
        if more.get("flags"):
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in silent]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr("sidecar.sources.rocketmq.wire.network.CONNECT_TIMEOUT_S", 0.5)
    with silent_addresses(8) as silent:
        begun = time.monotonic()
        error = dial("nameserver.test:9876", None).exception(20)
        assert time.monotonic() - begun < 2
    assert isinstance(error, TimeoutError)
    assert text_of(error) == "no connection within 3 s"
