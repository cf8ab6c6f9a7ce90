"""A tag group that fails for long, with a real Kafka: its batches wait in the store, and nothing waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.parked import parked_outage
from tests.support.kafka import Broker


@pytest.mark.parametrize(
    ("store", "forgets"), [pytest.param("local", False, marks=pytest.mark.proof), ("changelog", True)]
)
def test_an_outage_of_one_group_holds_nothing_up(kafka: Broker, tmp_path: Path, store: str, forgets: bool) -> None:
    """All else is settled meanwhile, though it is many times `batch.span_max`; kills lose and repeat nothing."""
    assert parked_outage(kafka, tmp_path, 24_000, 2, store=store, forgets=forgets).exact
