"""Kills, stops and broken brokers in mid-flow: nothing is lost, and twice comes only what promise 4 allows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.kills import By, kills, outage, together
from tests.support.kafka import Broker, KafkaBroker

BUSY = 6
"""So many times as long may take what depends on the machine, where other tests run beside."""


@pytest.mark.parametrize("by", ["partition", pytest.param("group", marks=pytest.mark.proof)])
def test_kills_lose_nothing_and_repeat_no_name(kafka: Broker, tmp_path: Path, by: By) -> None:
    """Killed 3 times at random instants: each message is stored once."""
    assert kills(kafka, tmp_path, 30_000, 3, by=by, slack=BUSY).exact


@pytest.mark.proof
def test_a_receiver_without_memory_gets_little_again(kafka: Broker, tmp_path: Path) -> None:
    """Without names remembered, a kill repeats only what was in flight or settled in the last 200 ms."""
    assert kills(kafka, tmp_path, 30_000, 3, remember=False, slack=BUSY).exact


def test_kills_that_take_the_state_folder_along(kafka: Broker, tmp_path: Path) -> None:
    """With the state folder deleted too nothing is lost or stored twice."""
    run = partial(kills, kafka, tmp_path, 20_000, 2, delete_state=True, slack=BUSY)
    findings = together(partial(run, by="partition"), partial(run, by="group"))
    assert all(one.exact for one in findings)


def test_sigterm_in_mid_flow_repeats_nothing_at_all(kafka: Broker, tmp_path: Path) -> None:
    """Stopped in order 3 times, it exits 0, loses nothing and sends nothing twice, names remembered or not."""
    assert kills(kafka, tmp_path, 30_000, 3, how="SIGTERM", remember=False, slack=BUSY).exact


@pytest.mark.proof
def test_kills_with_more_groups_than_a_partition_can_tell_apart(kafka: Broker, tmp_path: Path) -> None:
    """300 groups share intents; killed twice, nothing is lost or stored twice."""
    assert kills(kafka, tmp_path, 12_000, 2, tags=300, slack=BUSY).exact


@pytest.mark.proof
def test_a_broken_broker_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """The broker killed, then frozen for 15 s, in mid-flow: all arrives once, fresh messages too."""
    with KafkaBroker(tmp_path / "broker") as broker:
        for kind in ("killed", "frozen"):
            assert outage(broker, tmp_path, 20_000, kind, slack=BUSY).exact
