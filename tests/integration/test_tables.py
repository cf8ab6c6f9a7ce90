"""`sink.spark` and `sink.delta` in the daemon, killed in mid-flow: each message is a row once, and byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.tables import TARGETS, Kind, killed
from tests.support.kafka import Broker


@pytest.mark.parametrize("kind", TARGETS)
def test_killed_in_mid_flow(kafka: Broker, tmp_path: Path, kind: Kind) -> None:
    """Killed twice at random instants: rows exact, distinct and byte-equal, with a new writer after each kill too."""
    assert killed(kafka, tmp_path, 10_000, 2, kind).exact
