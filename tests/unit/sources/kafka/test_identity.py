"""How brokers know the client: its name, and its time to join."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config.source.kafka import KafkaSettings as Settings
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.config import consumer_config
from sidecar.sources.kafka.source import KafkaSource
from sidecar.state.interface import Rules
from tests.support.memory_state import MemoryState


@pytest.mark.parametrize(("given", "name"), [("sidecar-host-1a2b", "sidecar-host-1a2b"), ("", "sidecar")])
def test_the_client_has_the_name_of_its_daemon(given: str, name: str, tmp_path: Path) -> None:
    """By it a successor finds the member of a killed one; a client without a daemon has the name of the program."""
    settings = Settings.model_validate({"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["t"]})
    source = KafkaSource(settings, SourceContext(MemoryState(), Rules(b"rule"), 1 << 20, given), "off")
    assert source._client._config["client.id"] == name


@pytest.mark.parametrize(("properties", "join_ms"), [({}, 60_000), ({"max.poll.interval.ms": "400000"}, "400000")])
def test_a_rebalance_waits_a_minute_for_a_member_that_does_not_join(
    properties: dict[str, str], join_ms: int | str
) -> None:
    """Nobody reads meanwhile; the client's default is 5 minutes. A user may set another time."""
    given = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["t"], "properties": properties}
    assert consumer_config(Settings.model_validate(given), 1 << 20)["max.poll.interval.ms"] == join_ms
