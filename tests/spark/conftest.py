"""Fixtures of the tests on real Spark: one session for the run, and the fast lane."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import sidecar_fastlane as fastlane
from build_lane import compiled

from tests.support.process import free_ports
from tests.support.s3 import variables
from tests.support.spark.session import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def s3_port() -> int:
    """The port for a server of S3: the workers of the session have the variables of its start, and of no later time."""
    (port,) = free_ports(1)
    os.environ.update(variables(port))
    return port


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_port: int) -> Iterator[SparkSession]:
    """The session that all tests share, with the jars of Kafka and Delta."""
    session = build(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> fastlane.Library:
    """The compiled part of the fast lane."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    return fastlane.Library(compiled(tmp_path_factory.mktemp("lane") / "libfastlane.so"))
