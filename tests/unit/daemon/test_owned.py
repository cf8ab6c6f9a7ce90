"""The delayed messages of a partition that is assigned under another incarnation: which of them stay."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from pyroaring import BitMap64

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.effects import CommitItem, Fetch
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import STORES_MAX, Other, PartitionState, Stores
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Parked, TopicPartition
from sidecar.daemon.delays.owned import OwnedStores
from sidecar.daemon.delays.parked import ParkedParts, packed
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import PARKED_FROM, Held
from sidecar.sources.base import Assignment
from sidecar.state.interface import Rules
from tests.support.shell import Shell

QUEUE = TopicPartition("orders", 0, "broker-a")
HELD = [Held(1_000 << SEQUENCE_BITS, origin, 0, None, NO_TAGS, None, b"", b"") for origin in range(20)]


def owner(
    shell: Shell, store: PartitionStore, tell: Callable[[TopicPartition, int, int], None] = lambda *_: None
) -> OwnedStores:
    """What takes over the delayed messages of the store."""
    numbers: dict[TopicPartition, int] = {}
    parked = ParkedParts(shell.pipeline, store, numbers, lambda then: None, lambda: 0.0, lambda: 0)
    return OwnedStores(shell.pipeline, store, "g", Rules(b"rule"), tell, numbers, parked)


def take(owned: OwnedStores, shell: Shell, incarnation: int, watermark: int, held_below: int | None) -> None:
    """Assign the queue."""
    state = PartitionState(watermark, watermark)
    shell.pipeline.assign(QUEUE, "5c0pe001", state)
    owned.take_partition(
        Assignment(QUEUE, "", state, "", incarnation, resumed=True, read_from=watermark, held_below=held_below)
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
        owned = owner(shell, store)
        take(owned, shell, 1, 0, 0)
        number = owned.number(QUEUE)
        store.put(
            number, [Held(1_000 << SEQUENCE_BITS, origin, 0, None, NO_TAGS, None, b"", b"") for origin in range(10)]
        )
        store.writes.sync()
        owned.forget_partitions([QUEUE])
        take(owned, shell, 2, watermark, held_below)
        assert store.held(number) == left
    with closing(PartitionStore(tmp_path / "delay")) as store:
        assert store.held(number) == left


def test_the_rows_of_a_parked_part_are_read_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its group's turn has come."""
    fetched: list[tuple[int, bytes]] = []
    monkeypatch.setattr(Pipeline, "fetched", lambda _, tp, number, rows, now_ms: fetched.append((number, rows)))
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        owned = owner(shell, store)
        take(owned, shell, 1, 0, None)
        number = owned.number(QUEUE)
        record = Parked(3, "s0", "s0", "g0", 5, 6, BitMap64([5, 6]), 8, 1, 0)
        store.park(number, Held(PARKED_FROM, 5, 0, None, NO_TAGS, *packed(QUEUE, record, array("q")), b"5 0\n6 0"))
        store.writes.sync()
        parked = ParkedParts(shell.pipeline, store, owned.numbers, lambda then: None, lambda: 0.0, lambda: 0)
        parked.take_parts(QUEUE, parked.find(QUEUE), 3)
        for each in (4, 3):  # the first is not there
            parked.fetch(Fetch(QUEUE, each))
    assert fetched == [(3, b"5 0\n6 0")]


def test_the_core_waits_until_what_a_store_has_is_durable(tmp_path: Path) -> None:
    """Until then nothing may be committed on the ground of it."""
    told: list[tuple[TopicPartition, int, int]] = []
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        take(owner(shell, store, lambda *each: told.append(each)), shell, 1, 0, None)
        assert not shell.pipeline.puts.idle
        ((tp, token, position),) = told
        shell.pipeline.held(tp, token, position, 0.0)
        assert shell.pipeline.puts.idle


@pytest.mark.parametrize(("others", "left"), [(STORES_MAX, 10), (STORES_MAX - 1, 0)], ids=["full", "not full"])
def test_what_a_store_holds_stays_if_the_full_list_lacks_it(tmp_path: Path, others: int, left: int) -> None:
    """More stores came in between than a commit names, perhaps: what others have read again of this one is not known.

    A list that has room lacks no store of an owner that committed anything: others read all of it.
    """
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        owned = owner(shell, store)
        take(owned, shell, 1, 0, None)
        number = owned.number(QUEUE)
        store.put(
            number, [Held(1_000 << SEQUENCE_BITS, origin, 0, None, NO_TAGS, None, b"", b"") for origin in range(10)]
        )
        record = Parked(3, "s0", "s0", "g0", 5, 6, BitMap64([5, 6]), 8, 1, 0)
        store.park(number, Held(PARKED_FROM, 5, 0, None, NO_TAGS, *packed(QUEUE, record, array("q")), b"5 0\n6 0"))
        store.writes.sync()
        owned.forget_partitions([QUEUE])
        shell.pipeline.forget_partitions([QUEUE, QUEUE.store])
        state = PartitionState(20, 20, stores=Stores(1, tuple(Other(2 + each, 15) for each in range(others))))
        shell.pipeline.assign(QUEUE, "5c0pe001", state)
        with structlog.testing.capture_logs() as lines:
            owned.take_partition(Assignment(QUEUE, "", state, "", 1, resumed=True, read_from=20))
        assert store.held(number) == left
        assert shell.pipeline.books[QUEUE].parked == (2 if left else 0)
        told = [(line["event"], line["log_level"], line["held"], line["parked"]) for line in lines]
        assert told == ([("delay.store_unlisted", "warning", 10, 1)] if left else [])


def test_a_new_store_that_the_full_list_lacks_is_not_told(tmp_path: Path) -> None:
    """It holds nothing of which anything could be doubted."""
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        owned = owner(shell, store)
        state = PartitionState(20, 20, stores=Stores(1, tuple(Other(2 + each, 15) for each in range(STORES_MAX))))
        shell.pipeline.assign(QUEUE, "5c0pe001", state)
        with structlog.testing.capture_logs() as lines:
            owned.take_partition(Assignment(QUEUE, "", state, "", 1, resumed=True, read_from=20))
        assert not lines


def test_delayed_messages_that_the_core_gave_up_are_taken_again(tmp_path: Path) -> None:
    """From the state that was kept: what is not settled there is read again, and counted as held."""
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        owned = owner(shell, store)
        take(owned, shell, 1, 0, 0)
        number = owned.number(QUEUE)
        store.put(
            number, [Held(1_000 << SEQUENCE_BITS, origin, 0, None, NO_TAGS, None, b"", b"") for origin in range(3)]
        )
        store.writes.sync()
        assert len(store.take_due(number, 1 << 62, 9, 1 << 20)) == 3
        shell.pipeline.forget_partitions([QUEUE.store])
        owned.reload(QUEUE.store)
        assert QUEUE.store in shell.pipeline.partitions
        assert len(store.take_due(number, 1 << 62, 9, 1 << 20)) == 3
        assert shell.pipeline.books[QUEUE.store].delayed == 3
        owned.reload(TopicPartition("orders", 1, "broker-a").store)
        assert list(owned.numbers) == [QUEUE]


def committed(owned: OwnedStores, shell: Shell) -> Stores:
    """The stores in a commit of the queue."""
    partition = shell.pipeline.partitions[QUEUE]
    (item,) = owned.stamped([CommitItem(QUEUE, "5c0pe001", partition.state())])
    return item.state.stores


def restarted(folder: Path, stores: Stores) -> tuple[list[Any], dict[TopicPartition, str]]:
    """What a process says that takes the queue with this commit: lines of the log, and problems."""
    with closing(PartitionStore(folder)) as store, structlog.testing.capture_logs() as lines:
        shell = Shell()
        owned = owner(shell, store)
        state = PartitionState(20, 20, stores=stores)
        shell.pipeline.assign(QUEUE, "5c0pe001", state)
        owned.take_partition(Assignment(QUEUE, "", state, "", 0, resumed=True, read_from=20))
        again = owned.missing.copy()
        owned.forget_partitions([QUEUE])
        assert not owned.missing
        return lines, again


def test_a_store_that_lacks_what_was_put_last_is_noticed(tmp_path: Path) -> None:
    """The commit has the number of the last put; the log says from which offset on messages may be missing."""
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        owned = owner(shell, store)
        take(owned, shell, 0, 0, None)
        assert committed(owned, shell)[4:] == (0,)
        store.put(owned.number(QUEUE), HELD[:12])
        store.writes.sync()
        shutil.copytree(tmp_path / "delay", tmp_path / "older")
        store.put(owned.number(QUEUE), HELD[12:])
        before = committed(owned, shell)
        store.writes.sync()
        now = committed(owned, shell)
        assert before.put < now.put
        assert now.held == 20
        shell.pipeline.forget_partitions([QUEUE])
        owned.forget_partitions([QUEUE])
    lines, missing = restarted(tmp_path / "older", now)
    assert [(line["event"], line["offset"], line["committed"], line["held"]) for line in lines] == [
        ("delay.missing", 12, 20, 12)
    ]
    assert "it holds 12, and held 20 at the last commit" in missing[QUEUE]
    assert restarted(tmp_path / "delay", now) == ([], {})


def test_a_store_that_lacks_what_was_delivered_last_is_noticed(tmp_path: Path) -> None:
    """Its messages are delivered again: nothing was put since the copy was made, and some have ended."""
    with closing(PartitionStore(tmp_path / "delay")) as store:
        shell = Shell()
        owned = owner(shell, store)
        take(owned, shell, 0, 0, None)
        number = owned.number(QUEUE)
        store.put(number, HELD)
        store.writes.sync()
        shutil.copytree(tmp_path / "delay", tmp_path / "older")
        last = store.take_due(number, 1 << 62, 8, 1 << 20)[-1].position
        owned.keep([CommitItem(QUEUE.store, "5c0pe001", PartitionState(last + 1, last + 1))])
        store.writes.sync()
        now = committed(owned, shell)
    _, missing = restarted(tmp_path / "older", now)
    assert "it holds 20, and held 12 at the last commit" in missing[QUEUE]
    assert restarted(tmp_path / "delay", now) == ([], {})


def test_messages_in_another_store_are_reported(tmp_path: Path) -> None:
    """The folder was removed, perhaps; nothing is said of a store that held none."""
    lines, missing = restarted(tmp_path / "delay", Stores(7, put=5, held=3))
    (line,) = lines
    assert (line["event"], line["log_level"], line["committed"]) == ("delay.missing", "warning", 3)
    assert "3 are in another store" in missing[QUEUE]
    assert restarted(tmp_path / "delay", Stores(7, put=5)) == ([], {})
