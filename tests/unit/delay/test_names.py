"""Held messages that are found by their names, on a local disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import NAME_HEADER
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.disk import names as keys_module
from sidecar.delay.disk.blocks import NO_TIMESTAMP, Block, Held
from sidecar.delay.disk.hour import HOUR_MS, HourFile
from sidecar.delay.disk.hours import PARKED_FROM
from sidecar.delay.disk.names import Names, decoded, encoded, key_of, keys_of, matching
from sidecar.delay.headers import pack_headers
from sidecar.delay.interface import Row
from sidecar.delay.names.cancels import FOUND_AT_ONCE
from sidecar.delay.partitions import PartitionStore
from sidecar.errors import StateError

START_MS = 500_000 * HOUR_MS
ALL = 1 << 62


def row(origin: int, name: bytes | None, after_ms: int = 0, *, key: bytes | None = b"k", value: bytes = b"v") -> Row:
    """A message with a name or none."""
    headers = [("tag", b"a")] if name is None else [("tag", b"a"), (NAME_HEADER, name)]
    return START_MS + after_ms, origin, 0, NO_TIMESTAMP, NO_TAGS, key, pack_headers(headers), value


def cancelled(store: PartitionStore, number: int, below: dict[bytes, int], lowest: int = 0) -> list[int]:
    """The origins of what is ended."""
    return sorted(held.origin for ended in store.cancel_named(number, lowest, below) for held in ended)


def flush(store: PartitionStore) -> None:
    """Let the files have all."""
    store._lanes.flush()


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
    taken = store.take_due(number, ALL, 9, 1 << 20) or (store.sync(), store.take_due(number, ALL, 9, 1 << 20))[1]
    assert [held.origin for held in taken] == [2, 4, 5]


def test_what_was_taken_or_lies_below_is_not_ended(store: PartitionStore) -> None:
    """Below the cursor, or below the position from which on the caller allows it."""
    number = store.number(b"p")
    positions = store.put(number, [row(origin, b"x", origin) for origin in range(4)])
    store.sync()
    assert len(store.take_due(number, positions[1], 1, 1 << 20)) == 1
    assert cancelled(store, number, {b"x": ALL}, positions[2]) == [2, 3]
    assert cancelled(store, number, {b"x": ALL}) == [1]


def test_a_parked_part_has_no_name(store: PartitionStore) -> None:
    """Whatever its headers are."""
    number = store.number(b"p")
    _, origin, epoch, stamp, tags, key, headers, value = row(1, b"x")
    store.park(number, (PARKED_FROM + 1, origin, epoch, stamp, tags, key, headers, value))
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
    store.sync()
    store._journal.close()
    store._folder.close()
    again = PartitionStore(tmp_path / "store")
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


def test_what_is_appended_to_files_after_a_search_is_found(store: PartitionStore) -> None:
    """The names of a file are read once, and kept."""
    number = store.number(b"p")
    store.put(number, [row(0, b"x")])
    flush(store)
    assert cancelled(store, number, {b"y": ALL}) == []
    store.put(number, [row(1, b"x"), row(2, b"y")])
    flush(store)
    assert cancelled(store, number, {b"x": ALL}) == [0, 1]


def test_a_search_ends_with_its_hour(store: PartitionStore) -> None:
    """An hour that is over has nothing to find."""
    number = store.number(b"p")
    positions = store.put(number, [row(origin, b"x") for origin in range(2 * FOUND_AT_ONCE)])
    store.sync()
    search = store.cancel_named(number, 0, {b"x": ALL})
    while not (ended := next(search)):
        pass
    assert len(ended) == FOUND_AT_ONCE
    store.keep(number, b"", positions[-1] + 1, positions[-1] + 1)
    store._lanes.drop(positions[0] // (HOUR_MS << SEQUENCE_BITS))
    assert [*search] == []


def test_a_file_that_cannot_be_read_is_an_error(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is ended, and a later search finds all."""
    number = store.number(b"p")
    store.put(number, [row(0, b"x")])
    flush(store)

    def broken(*_: object) -> bytes:
        raise OSError(5, "broken")

    with monkeypatch.context() as patch:
        patch.setattr("os.pread", broken)
        with pytest.raises(StateError):
            cancelled(store, number, {b"x": ALL})
    assert cancelled(store, number, {b"x": ALL}) == [0]


def test_a_block_without_names_is_as_it_was_before_there_were_any(tmp_path: Path) -> None:
    """So is the table of one with names: an earlier version reads its messages, and passes over the keys."""
    plain, with_names = HourFile(tmp_path, 1), HourFile(tmp_path, 2)
    for file, name in ((plain, None), (with_names, b"x")):
        _, origin, _, _, _, _, headers, value = row(7, name)
        payload = headers + (value or b"")
        file.pending = Block()
        file.pending.add_row(_table_row(5, origin, len(headers)), payload)
        file.flush()
        assert file.size == 32 + 56 + len(payload) + (0 if name is None else 8 + 4)
        assert file.load() == []
        (held,) = file.read([0])
        assert (held.origin, held.headers, held.value) == (origin, headers, value)


def _table_row(position: int, origin: int, header_bytes: int) -> bytes:
    row = np.zeros(14, "<u4")
    row[0], row[2] = position, origin
    raw = bytearray(row.tobytes())
    raw[44:48] = ((1 << 32) - 1).to_bytes(4, "little")
    raw[48:52] = header_bytes.to_bytes(4, "little")
    return bytes(raw)


def test_damaged_keys_are_none(tmp_path: Path) -> None:
    """The messages are still there."""
    keys = np.array([key_of(0, b"x", 3)], np.uint64)
    raw = encoded(keys)
    assert decoded(raw).tolist() == keys.tolist()
    assert decoded(raw[:-1] + bytes([raw[-1] ^ 1])).tolist() == []
    assert decoded(raw[1:]).tolist() == []
    assert encoded(keys[:0]) == b""


def test_keys_are_found_whatever_pieces_they_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of one bound, with the blocks of the messages; equal checksums of other names are found, too."""
    monkeypatch.setattr(keys_module, "PIECE_MAX", 8)
    names = Names()
    for block in range(20):
        keys = [key_of(1, b"n%d" % (number % 3), number) for number in range(3)]
        names.add_keys(np.array(keys, np.uint64), 10 * block, 1_000 * block)
    names.add_keys(np.empty(0, np.uint64), 200, 20_000)
    wanted = keys_of(1, [b"n2", b"other"])
    pieces = list(names.find(wanted))
    assert len(pieces) > 1
    assert sorted(number for piece in pieces for number in piece) == [10 * block + 2 for block in range(20)]
    assert {names.block_at(10 * block + 2) for block in range(20)} == {1_000 * block for block in range(20)}
    assert matching(np.array([key_of(1, b"n2", 5), key_of(2, b"n2", 6)], np.uint64), wanted) == [5]
    assert matching(np.empty(0, np.uint64), wanted) == []
