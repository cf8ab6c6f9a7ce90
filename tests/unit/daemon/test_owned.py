"""The delayed messages of a partition that is assigned under another incarnation: which of them stay."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.owned import Owned
from sidecar.daemon.delays.parked import ParkedParts
from sidecar.delay.disk.blocks import NO_TIMESTAMP
from sidecar.delay.partitions import PartitionStore
from sidecar.sources.base import Assignment
from sidecar.state.rules import Rules
from tests.support.shell import Shell

QUEUE = TopicPartition("orders", 0, "broker-a")


def take(owned: Owned, shell: Shell, incarnation: int, watermark: int, held_below: int | None) -> None:
    """Assign the queue."""
    state = PartitionState(watermark, watermark)
    shell.pipeline.assign(QUEUE, "5c0pe001", state)
    owned.take(
        [Assignment(QUEUE, "", state, "", incarnation, resumed=True, read_from=watermark, held_below=held_below)]
    )


@pytest.mark.parametrize(
    ("watermark", "held_below", "left"),
    [(8, None, 8), (8, 5, 5), (0, 1 << 63, 10), (0, 0, 0)],
    ids=["the owner hands on its state", "another member read from 5", "another topic", "all comes again"],
)
def test_what_another_member_read_is_dropped(tmp_path: Path, watermark: int, held_below: int | None, left: int) -> None:
    """Held messages below that offset stay, whatever is read from now on, and a restart keeps it so."""
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        numbers: dict[TopicPartition, int] = {}
        parked = ParkedParts(shell.pipeline, store, numbers, lambda then: None, lambda: 0.0, lambda: 0)
        owned = Owned(shell.pipeline, store, "g", Rules(b"rule"), lambda tp, token, position: None, numbers, parked)
        take(owned, shell, 1, 0, 0)
        number = owned.number(QUEUE)
        store.put(number, [(1_000, origin, 0, NO_TIMESTAMP, None, b"", b"") for origin in range(10)])
        store.sync()
        owned.forget([QUEUE])
        take(owned, shell, 2, watermark, held_below)
        assert store.held(number) == left
    with closing(PartitionStore(tmp_path / "delay")) as store:
        assert store.held(number) == left


def test_delayed_messages_that_the_core_gave_up_are_taken_again(tmp_path: Path) -> None:
    """From the state that was kept: what is not settled there is read again, and counted as held."""
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        numbers: dict[TopicPartition, int] = {}
        parked = ParkedParts(shell.pipeline, store, numbers, lambda then: None, lambda: 0.0, lambda: 0)
        owned = Owned(shell.pipeline, store, "g", Rules(b"rule"), lambda tp, token, position: None, numbers, parked)
        take(owned, shell, 1, 0, 0)
        number = owned.number(QUEUE)
        store.put(number, [(1_000, origin, 0, NO_TIMESTAMP, None, b"", b"") for origin in range(3)])
        store.sync()
        assert len(store.take(number, 1 << 62, 9, 1 << 20)) == 3
        shell.pipeline.forget([QUEUE.store])
        owned.reload(QUEUE.store)
        assert QUEUE.store in shell.pipeline.partitions
        assert len(store.take(number, 1 << 62, 9, 1 << 20)) == 3
        assert shell.pipeline.books[QUEUE.store].delayed == 3
        owned.reload(TopicPartition("orders", 1, "broker-a").store)
        assert list(numbers) == [QUEUE]
