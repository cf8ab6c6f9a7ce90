"""A tag group that fails for long, with a real Kafka: its batches wait in the store, and nothing waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.parked import parked_outage, parked_round
from tests.support.kafka import Broker


@pytest.mark.parametrize(
    ("store", "forgets"), [pytest.param("local", False, marks=pytest.mark.proof), ("changelog", True)]
)
def test_an_outage_of_one_group_holds_nothing_up(kafka: Broker, tmp_path: Path, store: str, forgets: bool) -> None:
    """All else is settled meanwhile, though it is many times `batch.span_max`; kills lose and repeat nothing."""
    assert parked_outage(kafka, tmp_path, 24_000, 2, store=store, forgets=forgets).exact


def test_a_partition_comes_back_to_a_member_that_had_parked(kafka: Broker, tmp_path: Path) -> None:
    """From A over B and C back to A, whose folder is kept: no parked batch is lost, and no broker blamed."""
    assert parked_round(kafka, tmp_path, 50, 2).exact
