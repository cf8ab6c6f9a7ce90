"""Fixtures of the tests on real Spark: one session for the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.spark.session import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests share, with the jars of Kafka and Delta."""
    session = build(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
