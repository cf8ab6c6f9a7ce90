"""How long a read waits, with the lane and without. No broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.config.source.kafka import KafkaSettings
from sidecar.sources.kafka.source import IDLE_WAIT_S, KafkaClient


class Lane:
    """Notes how long it is to wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def make(self, make: Any) -> Any:
        return make({})

    def read(self, timeout_s: float, *_: int, **__: bool) -> tuple[list[Any], bool]:
        self.waited.append(timeout_s)
        return [], False


def test_a_read_by_the_lane_does_not_wait_where_a_commit_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches may wait for the commit, and the loop must go on."""
    callbacks: dict[str, Any] = {}
    ends = iter([True, False])

    def consumer(config: dict[str, Any]) -> Any:
        callbacks.update(config)

        def poll(_: float) -> None:
            if next(ends, False):
                callbacks["on_commit"](None, [])

        return SimpleNamespace(poll=poll)

    monkeypatch.setattr("sidecar.sources.kafka.source.ck.Consumer", consumer)
    settings = KafkaSettings.model_validate({"bootstrap_servers": "a:1", "group_id": "g", "topics": ["orders"]})
    lane: Any = Lane()
    read = KafkaClient(settings, 1 << 20, "me", lane)
    told: list[Any] = []
    read.open(SimpleNamespace(put=print), lambda *ended: told.append(ended))  # type: ignore[arg-type]
    read.read(IDLE_WAIT_S)
    assert (lane.waited, len(told)) == ([0], 1)
    read.read(IDLE_WAIT_S)
    assert lane.waited[1:] == [IDLE_WAIT_S, 0]
