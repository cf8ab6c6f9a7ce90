"""A `PartitionStore` whose messages are listed, cancelled and brought forward."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import HOUR_MS, Held
from tests.support.partition_store import END, START_MS, TAGS, killed, log_of, reopened

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    """A new store; it is not closed."""
    return PartitionStore(tmp_path)


def put(store: PartitionStore, *after_ms: int, name: bytes = b"a") -> list[int]:
    """Put messages that are due so long after the start; their positions, which are durable."""
    number = store.number(name)
    positions = store.put(
        number,
        [
            Held((START_MS + each) << SEQUENCE_BITS, 10 + i, 4, START_MS, TAGS, b"key", b"h", b"%d" % i)
            for i, each in enumerate(after_ms)
        ],
    )
    store.writes.sync()
    return positions


def test_a_message_that_is_brought_forward_is_the_same_at_its_new_time(store: PartitionStore) -> None:
    """It comes before the others, once, with all of its columns, after a kill and another start too."""
    first, second = put(store, HOUR_MS, DAY_MS)
    before = store.find(0, second)
    moved = store.release(0, second, START_MS + 5)
    assert moved is not None
    assert moved >> SEQUENCE_BITS == START_MS + 5
    store.writes.sync()
    for _ in range(3):
        assert (store.held(0), [each.position for each in store.listed(0)]) == (2, [moved, first])
        taken = store.take_due(0, END, 9, 1 << 20)
        assert [each.position for each in taken] == [moved, first]
        assert before is not None
        assert taken[0] == before._replace(position=moved)
        store = reopened(store)


def test_what_is_not_durable_is_brought_forward_wholly_or_not_at_all(store: PartitionStore) -> None:
    """A power cut before the write: the message is where it was, and only there."""
    (position,) = put(store, DAY_MS)
    size = log_of(store._folder.path).stat().st_size
    assert store.release(0, position, START_MS) is not None
    folder = killed(store)
    os.truncate(log_of(folder), size + 10)
    assert [each.position for each in PartitionStore(folder).listed(0)] == [position]


def test_a_message_that_is_due_earlier_stays(store: PartitionStore) -> None:
    """Its position is returned; one that was taken, cancelled or never put has none."""
    early, late, cancelled = put(store, 0, HOUR_MS, 2 * HOUR_MS)
    assert store.release(0, late, START_MS + DAY_MS) == late
    assert [each.position for each in store.take_due(0, early + 1, 9, 1 << 20)] == [early]
    assert store.cancel(0, cancelled)
    assert [store.release(0, each, START_MS) for each in (early, cancelled, late + 1)] == [None, None, None]
    assert [each.position for each in store.listed(0)] == [late]


def test_a_message_without_timestamp_key_and_value_is_brought_forward_as_it_is(store: PartitionStore) -> None:
    """Nothing becomes empty that was missing."""
    (position,) = store.put(
        store.number(b"a"), [Held((START_MS + DAY_MS) << SEQUENCE_BITS, 1, 0, None, NO_TAGS, None, b"", None)]
    )
    store.writes.sync()
    assert store.release(0, position, START_MS) is not None
    store.writes.sync()
    (held,) = store.take_due(0, END, 9, 9)
    assert (held.timestamp_ms, held.key, held.headers, held.value) == (None, None, b"", None)


def test_messages_are_listed_by_time_and_origin(store: PartitionStore) -> None:
    """In order, within bounds and a limit, those of one partition; not those that were taken or cancelled."""
    positions = put(store, DAY_MS, HOUR_MS, 0, HOUR_MS + 1)
    put(store, 0, name=b"b")
    third, second, first, fourth = positions
    assert [each.position for each in store.listed(0)] == [first, second, fourth, third]
    assert [each.origin for each in store.listed(0, second, third)] == [11, 13]
    assert [each.origin for each in store.listed(0, limit=3)] == [12, 11, 13]
    assert [each.position for each in store.listed(0, origin=13)] == [fourth]
    assert [each.nbytes for each in store.listed(1)] == [len(b"keyh0")]
    store.take_due(0, first + 1, 9, 1 << 20)
    store.cancel(0, fourth)
    assert [each.position for each in store.listed(0)] == [second, third]
