"""What is open in each group, and how old it is."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.books import AGE_BOUNDS, GROUPS_MAX, OpenGroup
from tests.support.shell import ACK, RETRY, TP, Shell, rows


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
    found = shell.pipeline.open_messages()
    assert found.groups == {"g0": OpenGroup(1, 3, 6, 1_000), "g1": OpenGroup(1, 1, 2, 1_000)}
    assert found.oldest == {TP: 1_000}


def test_messages_that_are_retried_are_the_oldest() -> None:
    """They are in no batch that fills, and hold the watermark."""
    shell = Shell()
    shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
    shell.read(*rows(1, 2))
    shell.run(10)
    shell.read(*rows(3, 4))
    shell.run(2)
    assert shell.pipeline.open_messages().groups == {"g0": OpenGroup(1, 2, 4, 1_000)}


def test_many_groups_count_together() -> None:
    """Beyond the groups with their own counts."""
    shell = Shell(linger_ms=10_000, max_messages=100_000)
    for tag in range(50):
        shell.read(*rows(tag, tag, tag=tag))
    for number in range(GROUPS_MAX):
        shell.pipeline.partitions[TP].lanes.of(f"empty{number}")
    found = shell.pipeline.open_messages().groups
    assert len(found) == GROUPS_MAX + 1
    assert found["g49"].messages == 1


def test_the_age_of_delivered_messages_is_counted() -> None:
    """From the timestamp of the first that was read with them; a clock that is behind counts as no time."""
    shell = Shell()
    shell.read(*rows(0, 9))
    shell.run(10)
    delivered = shell.pipeline.status().delivered
    assert (sum(delivered.ages.counts), delivered.ages.bounds) == (10, AGE_BOUNDS)
    assert (delivered.messages, delivered.nbytes) == ({"g0": 10}, {"g0": 20})
    assert (sum(delivered.batch_messages.counts), delivered.batch_bytes.total) == (1, 20.0)


def test_the_groups_that_hold_a_watermark_are_named_where_one_cut_serves_all() -> None:
    """Where one cut serves all groups, those of which something is left are named, the failing first."""
    shell = Shell(span_max=100_000, max_messages=100_000, max_bytes=1 << 30, held=1 << 30)
    answers = {"g66": RETRY, "g7": None}
    shell.answer = lambda batch, offsets: answers.get(batch.group, ACK)  # type: ignore[method-assign]
    shell.read(*((offset, offset % 70, None, b"x") for offset in range(14_000)))
    shell.run(200)
    assert [group for _, group in shell.pipeline.status().blocking] == ["g66", "g7"]
