"""Drivers and executors of `sidecar spark run` killed in mid-delivery: nothing is lost, renamed or sent otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import sidecar_fastlane as fastlane

from tests.scenarios.spark_kills import copies, drivers, executors
from tests.support.kafka import Broker


@pytest.mark.proof  # of the ways to read, the suite has the one on the fast lane
@pytest.mark.timeout(900)  # two JVMs, on a busy machine
@pytest.mark.parametrize("reader", ["connector", "client"])
def test_a_killed_driver_loses_and_renames_nothing(kafka: Broker, tmp_path: Path, reader: str) -> None:
    """Killed in mid-delivery and restarted with other parallelism: each message once, each repeat byte-equal."""
    assert drivers(kafka, tmp_path, 20_000, 1, reader=reader).exact


@pytest.mark.proof
@pytest.mark.timeout(900)  # six JVMs
@pytest.mark.parametrize("reader", ["connector", "client"])
def test_a_killed_executor_loses_and_renames_nothing(kafka: Broker, tmp_path: Path, reader: str) -> None:
    """Killed with and without its Python: tasks that took its place send the same bytes under the same names."""
    assert executors(kafka, tmp_path, 20_000, 2, reader=reader).exact


@pytest.mark.proof
@pytest.mark.timeout(900)  # four JVMs
@pytest.mark.parametrize("reader", ["connector", "client"])
def test_speculative_copies_lose_and_rename_nothing(kafka: Broker, tmp_path: Path, reader: str) -> None:
    """A slow task and its copy on another worker send the same bytes under the same names, side by side."""
    assert copies(kafka, tmp_path, 20_000, reader=reader).exact


@pytest.mark.timeout(900)  # two JVMs, on a busy machine
def test_a_killed_driver_on_the_fast_lane_loses_and_renames_nothing(
    library: fastlane.Library, kafka: Broker, tmp_path: Path
) -> None:
    """Killed in mid-delivery and restarted with other parallelism, read in C: as the others."""
    assert drivers(kafka, tmp_path, 10_000, 1, reader="client", lane=library.path).exact


@pytest.mark.proof
@pytest.mark.timeout(900)  # six JVMs
def test_a_killed_executor_on_the_fast_lane_loses_and_renames_nothing(
    library: fastlane.Library, kafka: Broker, tmp_path: Path
) -> None:
    """Killed with and without its Python, read in C: as the others."""
    assert executors(kafka, tmp_path, 20_000, 2, reader="client", lane=library.path).exact
