"""What a command says of a broker of which name servers know no master. No broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.errors import UnavailableError
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry


def test_a_broker_without_a_master_is_named() -> None:
    """Any other has its connection."""
    inquiry = Inquiry(RocketMqSettings.model_validate({
        "client": "remoting", "name_servers": "a:1", "group": "g", "topics": ["orders"],
    }))  # fmt: skip
    known = object()
    routes: Any = SimpleNamespace(link={"b": known}.get)
    inquiry.routes = routes
    assert inquiry.link("b") is known
    with pytest.raises(UnavailableError, match="no master of c"):
        inquiry.link("c")
