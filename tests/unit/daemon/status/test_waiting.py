"""What is open in each group, and how old it is."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.books import GROUPS_MAX
from sidecar.core.delivery.delivered import AGE_BOUNDS
from sidecar.daemon.status.waiting import waiting
from sidecar.ops.snapshot import GroupWaiting
from tests.support.shell import RETRY, TP, Shell, rows


@pytest.fixture(autouse=True)
def _stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timestamp of a message is its offset, in seconds."""

    def timestamps(_: Any, messages: Any) -> Any:
        return [message[0] * 1_000 for message in messages]

    monkeypatch.setattr("tests.simulation.plan.Columns.timestamps", timestamps)


def test_open_messages_are_counted_by_group() -> None:
    """With their bytes, and the timestamp of the first that was read with them."""
    shell = Shell(linger_ms=10_000)
    shell.read(*rows(1, 2), *rows(3, 3, tag=1))
    shell.read(*rows(4, 4))
    shell.run(2)
    found = waiting(shell.pipeline.partitions)
    assert found.groups == {"g0": GroupWaiting(1, 3, 6, 1_000), "g1": GroupWaiting(1, 1, 2, 1_000)}
    assert found.oldest == {TP: 1_000}


def test_messages_that_are_retried_are_the_oldest() -> None:
    """They are in no batch that fills, and hold the watermark."""
    shell = Shell()
    shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
    shell.read(*rows(1, 2))
    shell.run(10)
    shell.read(*rows(3, 4))
    shell.run(2)
    assert waiting(shell.pipeline.partitions).groups == {"g0": GroupWaiting(1, 2, 4, 1_000)}


def test_many_groups_count_together() -> None:
    """Beyond the groups with their own counts."""
    shell = Shell(linger_ms=10_000, max_messages=100_000)
    for tag in range(50):
        shell.read(*rows(tag, tag, tag=tag))
    partitions = shell.pipeline.partitions
    for number in range(GROUPS_MAX):
        partitions[TP].lanes.of(f"empty{number}")
    found = waiting(partitions).groups
    assert len(found) == GROUPS_MAX + 1
    assert found["g49"].messages == 1


def test_the_age_of_delivered_messages_is_counted() -> None:
    """From the timestamp of the first that was read with them; a clock that is behind counts as no time."""
    shell = Shell()
    shell.read(*rows(0, 9))
    shell.run(10)
    delivered = shell.pipeline.delivery.delivered.read()
    assert (sum(delivered.ages.counts), delivered.ages.bounds) == (10, AGE_BOUNDS)
    assert (delivered.messages, delivered.nbytes) == ({"g0": 10}, {"g0": 20})
    assert (sum(delivered.batch_messages.counts), delivered.batch_bytes.total) == (1, 20.0)
