"""Delayed messages of a real Kafka: each arrives once when it is due, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.delayed import delayed_kills
from tests.support.kafka import Broker


def test_kills_while_messages_fall_due_lose_and_repeat_nothing(kafka: Broker, tmp_path: Path) -> None:
    """Killed 3 times while messages fall due, each arrives once, and none early."""
    assert delayed_kills(kafka, tmp_path, 20_000, 3, spread_s=12).exact
