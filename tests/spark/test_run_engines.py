"""One file, two engines: what the daemon delivers, gives up and counts, `sidecar spark run` does alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.spark_engines import engines
from tests.support.kafka import Broker


@pytest.mark.timeout(600)  # a JVM, on a busy machine
@pytest.mark.parametrize("reader", ["connector", pytest.param("client", marks=pytest.mark.proof)])
def test_the_same_file_gives_the_same_on_both_engines(kafka: Broker, tmp_path: Path, reader: str) -> None:
    """Every kind of value, duplicates by id, poison and unwanted tags end alike on the daemon and on Spark."""
    assert engines(kafka, tmp_path, 8_000, reader=reader).exact
