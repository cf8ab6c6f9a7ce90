"""The tutorial, done word for word against a real Kafka: its files, its commands, its kill, and its numbers."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.tutorial import walked
from tests.support.kafka import Broker


def test_the_tutorial_is_true(kafka: Broker, tmp_path: Path) -> None:
    """Each command succeeds, and what the page shows is what is shown."""
    steps = list(walked(tmp_path, kafka))
    assert len(steps) > 5
    books = next(step.shown for step in steps if step.command.startswith("sidecar status"))
    assert "7500" in books
    assert "2500" in books
