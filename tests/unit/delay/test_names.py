"""Held messages that are found by their names, on a local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import NAME_HEADER
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.headers import pack_headers
from sidecar.delay.partitions import FOUND_AT_ONCE, PartitionStore
from sidecar.delay.rows import HOUR_MS, PARKED_FROM, Held, Kind
from sidecar.errors import StateError
from tests.support.failing_rows import BROKEN, failing
from tests.support.partition_store import flushed, reopened

START_MS = 500_000 * HOUR_MS
ALL = 1 << 62


def row(origin: int, name: bytes | None, after_ms: int = 0, *, key: bytes | None = b"k", value: bytes = b"v") -> Held:
    """A message with a name or none."""
    headers = [("tag", b"a")] if name is None else [("tag", b"a"), (NAME_HEADER, name)]
    return Held((START_MS + after_ms) << SEQUENCE_BITS, origin, 0, None, NO_TAGS, key, pack_headers(headers), value)


def cancelled(store: PartitionStore, number: int, below: dict[bytes, int], lowest: int = 0) -> list[int]:
    """The origins of what is ended."""
    return sorted(held.origin for ended in store.cancel_named(number, lowest, below) for held in ended)


def flush(store: PartitionStore) -> None:
    """Let the files have all."""
    flushed(store)


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    """A store that is empty."""
    return PartitionStore(tmp_path / "store")


@pytest.mark.parametrize("filed", [0, 3, 6])
def test_messages_with_a_name_and_lower_origins_are_ended(store: PartitionStore, filed: int) -> None:
    """In files and in memory, of this partition alone; none is ended twice."""
    number, other = store.number(b"p"), store.number(b"q")
    rows = [row(origin, (b"x", b"y", None)[origin % 3], 2 * HOUR_MS * (origin % 2)) for origin in range(6)]
    for index, each in enumerate(rows):
        if index == filed:
            flush(store)
        store.put(number, [each])
        store.put(other, [each])
    if filed == 6:
        flush(store)
    assert cancelled(store, number, {b"x": 3, b"z": ALL}) == [0]
    assert cancelled(store, number, {b"x": 4, b"y": 4}) == [1, 3]
    assert cancelled(store, number, {b"x": 4, b"y": 4}) == []
    assert (store.held(number), store.held(other)) == (3, 6)
    taken = store.take_due(number, ALL, 9, 1 << 20) or (store.writes.sync(), store.take_due(number, ALL, 9, 1 << 20))[1]
    assert [held.origin for held in taken] == [2, 4, 5]


def test_what_was_taken_or_lies_below_is_not_ended(store: PartitionStore) -> None:
    """Below the cursor, or below the position from which on the caller allows it."""
    number = store.number(b"p")
    positions = store.put(number, [row(origin, b"x", origin) for origin in range(4)])
    store.writes.sync()
    assert len(store.take_due(number, positions[1], 1, 1 << 20)) == 1
    assert cancelled(store, number, {b"x": ALL}, positions[2]) == [2, 3]
    assert cancelled(store, number, {b"x": ALL}) == [1]


def test_a_parked_part_has_no_name(store: PartitionStore) -> None:
    """Whatever its headers are."""
    number = store.number(b"p")
    store.park(number, row(1, b"x")._replace(position=PARKED_FROM + 1))
    assert cancelled(store, number, {b"x": ALL}) == []
    assert len(store.parked(number)) == 1


@pytest.mark.parametrize("key", [None, NAME_HEADER.encode()])
def test_only_headers_name_a_message(store: PartitionStore, key: bytes | None) -> None:
    """A key or value that looks like a header does not."""
    number = store.number(b"p")
    value = pack_headers([(NAME_HEADER, b"x")])
    store.put(number, [row(0, None, key=key, value=value), row(1, b"y", key=key, value=value), row(2, b"x", key=key)])
    flush(store)
    assert cancelled(store, number, {b"x": ALL}) == [2]


def test_a_later_process_finds_names_and_what_was_ended(tmp_path: Path, store: PartitionStore) -> None:
    """From the files, and from the log of a process that was killed."""
    number = store.number(b"p")
    store.put(number, [row(origin, b"x") for origin in range(3)])
    store.close()
    store = PartitionStore(tmp_path / "store")
    store.put(number, [row(3, b"x"), row(4, b"y")])
    assert cancelled(store, number, {b"x": 2}) == [0, 1]
    store.writes.sync()
    again = reopened(store)
    assert again.held(number) == 3
    assert cancelled(again, number, {b"x": ALL}) == [2, 3]
    assert cancelled(again, number, {b"y": ALL}) == [4]
    again.close()


def test_steps_are_short_while_messages_go_to_their_files(store: PartitionStore) -> None:
    """Many with one name take several steps; what is appended meanwhile is found where it is."""
    number = store.number(b"p")
    store.put(number, [row(origin, b"x") for origin in range(2 * FOUND_AT_ONCE)])
    flush(store)
    store.put(number, [row(origin, b"x") for origin in range(2 * FOUND_AT_ONCE, 3 * FOUND_AT_ONCE)])
    ended: list[Held] = []
    for step in store.cancel_named(number, 0, {b"x": ALL}):
        assert len(step) <= FOUND_AT_ONCE
        ended += step
        flush(store)
    assert sorted(held.origin for held in ended) == list(range(3 * FOUND_AT_ONCE))
    assert store.held(number) == 0


def test_a_file_that_cannot_be_read_is_an_error(store: PartitionStore) -> None:
    """Nothing is ended, and a later search finds all."""
    number = store.number(b"p")
    store.put(number, [row(0, b"x")])
    with failing(store, "iter", error=BROKEN), pytest.raises(StateError, match="cannot read"):
        cancelled(store, number, {b"x": ALL})
    assert cancelled(store, number, {b"x": ALL}) == [0]


@pytest.mark.parametrize("end", ["kept", "kept unread", "cancelled", "void", "named"])
def test_nothing_is_left_of_a_name_whose_message_has_ended(store: PartitionStore, end: str) -> None:
    """Whatever ended it."""
    number = store.number(b"p")
    (position,) = store.put(number, [row(0, b"x")])
    store.writes.sync()
    if end == "kept":
        store.take_due(number, ALL, 9, 1 << 20, lambda _: True)
    if end.startswith("kept"):
        store.keep(number, b"", position + 1, 0)
    elif end == "cancelled":
        store.cancel(number, position)
    elif end == "void":
        store.void(number, 0, 1)
    else:
        cancelled(store, number, {b"x": ALL})
    assert [*store._database.under(Kind.NAME)] == [*store._database.under(Kind.ROW)] == []


def test_a_search_ends_with_its_messages(store: PartitionStore) -> None:
    """What has ended meanwhile is not found."""
    number = store.number(b"p")
    positions = store.put(number, [row(origin, b"x") for origin in range(2 * FOUND_AT_ONCE)])
    store.writes.sync()
    search = store.cancel_named(number, 0, {b"x": ALL})
    while not (ended := next(search)):
        pass
    assert len(ended) == FOUND_AT_ONCE
    store.keep(number, b"", positions[-1] + 1, positions[-1] + 1)
    assert not any(search)
