"""A `DelayStore` as its user sees it, and its folder after all that can happen to one."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.snapshots import seal
from sidecar.delay import database, salvage, store
from sidecar.delay.rows import DUE_MAX_MS, HOUR_MS, PUT_BYTES_MAX
from sidecar.delay.store import DelayStore
from sidecar.errors import StateError
from tests.support import partition_store
from tests.support.failing_rows import BROKEN, failing

START_MS = 500_000 * HOUR_MS
LATER_MS = START_MS + 10 * HOUR_MS


def killed(held: DelayStore) -> Path:
    """The folder as it is after the end of a process that had no time to end."""
    return partition_store.killed(held._store)


def filled(path: Path, count: int = 10, hours: int = 1) -> Sequence[int]:
    """The positions of messages in a store that was closed."""
    with DelayStore(path) as held:
        return held.put_many([START_MS + i % hours * HOUR_MS for i in range(count)], [b"%d" % i for i in range(count)])


def values(held: DelayStore, limit: int = 10_000) -> list[bytes | None]:
    """All that is due much later."""
    return [message.value for message in held.due(LATER_MS, limit)]


def flip(path: Path, at: int) -> None:
    """Turn a byte of a file around."""
    with path.open("r+b") as file:
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 0xFF]), at)


def test_a_message_comes_back_as_it_was_put(tmp_path: Path) -> None:
    """Null, empty and binary keys and values, headers with names of any kind, timestamp and origin, after a restart."""
    odd = [None, b"", b"\0\n\xff", b"x" * 3_000_000]
    headers = [("a", b"1"), ("a", None), ("", b""), ("grün\0", bytes(range(256)))]
    with DelayStore(tmp_path) as held:
        for key in odd:
            for value in odd:
                held.put(START_MS, value, key, headers, timestamp_ms=START_MS - 5, origin=(1 << 63) - 1)
        held.put(START_MS, b"plain")
    with DelayStore(tmp_path) as held:
        messages = held.due(START_MS)
    assert [(message.key, message.value) for message in messages[:-1]] == [(key, value) for key in odd for value in odd]
    assert {message.headers for message in messages[:-1]} == {tuple(headers)}
    assert {(one.due_ms, one.timestamp_ms, one.origin) for one in messages[:-1]} == {
        (START_MS, START_MS - 5, (1 << 63) - 1)
    }
    assert messages[-1][2:] == (None, (), b"plain", None, 0)


def test_nothing_is_due_before_its_millisecond(tmp_path: Path) -> None:
    """At its millisecond it is, after all that was due before; `next_ms` says when."""
    with DelayStore(tmp_path) as held:
        later, sooner = held.put(START_MS + 8, b"later"), held.put(START_MS + 7, b"sooner")
        assert held.next_ms() == START_MS + 7
        assert not held.due(START_MS + 6)
        assert held.next_ms() == START_MS + 7
        assert [message.position for message in held.due(START_MS + 7)] == [sooner]
        assert [message.position for message in held.due(START_MS + 8)] == [later]
        assert held.next_ms() is None


def test_a_time_in_the_past_is_now(tmp_path: Path) -> None:
    """After something was taken, a message whose time was earlier comes next, not never."""
    with DelayStore(tmp_path) as held:
        held.put(START_MS + 5, b"first")
        assert values(held) == [b"first"]
        held.put(0, b"from 1970")
        assert values(held) == [b"from 1970"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_position_stands_for_one_message_for_ever(tmp_path: Path, *, restarts: bool) -> None:
    """A message for a past hour gets a position that none had, though those are gone."""
    first, _ = filled(tmp_path, 2, hours=2)
    held = DelayStore(tmp_path)
    held.settle(message.position for message in held.due(LATER_MS))
    held.sync()
    if restarts:
        held.close()
        held = DelayStore(tmp_path)
    assert held.put(START_MS, b"another") > first
    held.close()


@pytest.mark.parametrize("due_ms", [-1, DUE_MAX_MS + 1])
def test_a_time_that_no_position_has_is_refused(tmp_path: Path, due_ms: int) -> None:
    """The error has the bounds and the number, and nothing of the group is held."""
    with DelayStore(tmp_path) as held:
        with pytest.raises(ValueError, match=f"due_ms lie between 0 and {DUE_MAX_MS}, unlike {due_ms}"):
            held.put_many([START_MS, due_ms], [b"", b""])
        held.put(DUE_MAX_MS, b"the year 2248")
        assert len(held) == 1


def test_columns_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Of different lengths, with numbers out of range, or with more bytes than one block can have; nothing is held."""
    two = [START_MS, START_MS]
    cases: Sequence[tuple[Mapping[str, Any], str]] = (
        ({"values": [b""]}, "2 times, 1 values"),
        ({"keys": [b""]}, "2 times, 1 keys"),
        ({"headers": [[]]}, "2 times, 1 headers"),
        ({"origins": [1, -1]}, "origins lie between 0 and 18446744073709551615, unlike -1"),
        ({"timestamps_ms": [None, -1]}, "timestamps_ms lie between 0 and 281474976710655, unlike -1"),
        ({"keys": [bytes(1 + PUT_BYTES_MAX // 2)] * 2}, f"{PUT_BYTES_MAX + 2} bytes at once"),
    )
    with DelayStore(tmp_path) as held:
        for columns, text in cases:
            with pytest.raises(ValueError, match=text):
                held.put_many(two, **{"values": [b"", b""], **columns})
        assert not len(held)


def test_times_beyond_all_positions_are_no_error(tmp_path: Path) -> None:
    """To ask what is due at the end of days, or to list from before the epoch, is to ask for everything."""
    with DelayStore(tmp_path) as held:
        held.put_many([0, DUE_MAX_MS], [b"", b""])
        assert not held.due(-1)
        assert len(held.list(-5, 1 << 70)) == len(held.due(1 << 70)) == 2


def test_a_million_in_one_millisecond_have_positions_of_their_own(tmp_path: Path) -> None:
    """Beyond the sequence numbers of an hour and of a millisecond, they get the next one; so after a restart."""
    count = (1 << SEQUENCE_BITS) + 1_000
    with DelayStore(tmp_path) as held:
        positions = list(held.put_many([START_MS + 3] * count, [b""] * count))
        positions += held.put_many([START_MS + 3_000_000], [b""])
    with DelayStore(tmp_path) as held:
        positions += held.put_many([START_MS + 3, START_MS + 3_000_000], [b"", b""])
        assert len(set(positions)) == count + 3
        assert max(positions[:-3]) >> SEQUENCE_BITS == START_MS + 4
        assert [position >> SEQUENCE_BITS for position in positions[-3:]] == [
            START_MS + 3_000_000, START_MS + 4, START_MS + 3_000_000
        ]  # fmt: skip


def test_two_processes_cannot_have_one_folder(tmp_path: Path) -> None:
    """The second is told who has it."""
    with DelayStore(tmp_path), pytest.raises(StateError, match=f"in use by pid {os.getpid()}"):
        DelayStore(tmp_path)


def test_a_cancelled_message_is_never_due(tmp_path: Path) -> None:
    """Whether its hour was loaded or not; what is out cannot be cancelled any more."""
    positions = filled(tmp_path, 4, hours=2)
    with DelayStore(tmp_path) as held:
        assert held.cancel(positions[1])
        assert [message.value for message in held.due(START_MS, 1)] == [b"0"]
        assert not held.cancel(positions[0])
        assert held.cancel(positions[2])
        assert values(held) == [b"3"]


def test_a_list_has_what_is_held_by_time(tmp_path: Path) -> None:
    """In the order of time, within bounds, with what is out and not settled."""
    with DelayStore(tmp_path) as held:
        held.put_many([START_MS + 5 * HOUR_MS, START_MS + 1, START_MS], [b"", b"", b""], origins=[7, 8, 9])
        (first,) = held.due(START_MS)
        assert [(entry.due_ms - START_MS, entry.origin) for entry in held.list()] == [(0, 9), (1, 8), (5 * HOUR_MS, 7)]
        assert [entry.origin for entry in held.list(START_MS + 1, START_MS + 5 * HOUR_MS)] == [8]
        assert [entry.origin for entry in held.list(limit=1)] == [9]
        held.settle([first.position])
        assert [entry.origin for entry in held.list()] == [8, 7]


def test_what_is_settled_frees_its_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a call for it, though other messages wait."""
    monkeypatch.setattr(database, "ENDED_BYTES_MAX", 1 << 20)
    with DelayStore(tmp_path) as held:
        held.put(LATER_MS, b"later")
        for first in range(0, 8_000, 1_000):
            held.put_many([START_MS + first] * 1_000, [os.urandom(4_000)] * 1_000)
        while due := held.due(START_MS + HOUR_MS):
            held.settle(message.position for message in due)
            held.sync()
        until_s = time.monotonic() + 20
        while (most := sum(each.stat().st_size for each in (tmp_path / "rows").iterdir())) > 20 << 20:
            assert time.monotonic() < until_s, most
            time.sleep(0.05)


# Damage


def damaged(path: Path, count: int = 1_000) -> DelayStore:
    """A store with messages of two hours in a file of which a bit was flipped, after the damage was found."""
    with DelayStore(path) as held:
        held.put_many([START_MS + i % 2 * HOUR_MS for i in range(count)], [b"%04d" % i * 50 for i in range(count)])
        file = partition_store.flushed(held._store)
    assert file is not None
    flip(file, file.stat().st_size // 4)
    held = DelayStore(path)
    with pytest.raises(StateError, match="is damaged: start again, and what can be read is kept"):
        held.due(LATER_MS, count)
    return held


def test_a_flipped_bit_costs_one_block(tmp_path: Path) -> None:
    """The next start keeps all that is before and behind it, and says how many are lost of which hour."""
    held = damaged(tmp_path)
    assert len(held.damages) == 1
    with pytest.raises(StateError, match="is damaged"):
        held.close()
    with DelayStore(tmp_path) as held:
        (damage,) = held.damages
        assert "messages that are due within the hour from 2027-01-15T08:00:00" in damage.reason
        assert 0 < damage.messages < 100
        left = values(held)
        assert len(left) == len(held) == 1_000 - damage.messages
        assert left == sorted(left, key=lambda value: (int(value[:4]) % 2, value))  # type: ignore[index]
    with DelayStore(tmp_path) as held:
        assert not held.damages
        assert len(held) == len(left)


def test_nothing_is_written_once_damage_was_found(tmp_path: Path) -> None:
    """What is put then would not be in the copy."""
    held = damaged(tmp_path)
    for call in (lambda: held.put_many([START_MS], [b""]), held.sync, held.close):
        with pytest.raises(StateError, match="is damaged"):
            call()


def test_a_copy_that_a_crash_has_ended_is_made_again(tmp_path: Path) -> None:
    """At any moment: with half a copy, or with a whole one."""
    with pytest.raises(StateError, match="is damaged"):
        damaged(tmp_path).close()
    (tmp_path / salvage.COPY).mkdir()
    other = tmp_path.with_name("other")
    shutil.copytree(tmp_path, other)
    with DelayStore(tmp_path) as held:
        left = len(held)
    (other / "rows").rename(other / salvage.OLD)
    (other / salvage.COPY).rmdir()
    shutil.copytree(tmp_path / "rows", other / salvage.COPY)
    (other / salvage.COPY / "lost").write_text('[["why", 3]]')
    with DelayStore(other) as held:
        assert [damage.messages for damage in held.damages] == [3]
        assert len(held) == left > 900


def test_a_folder_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    """The folder stays as it is; the file is named."""
    filled(tmp_path)
    with DelayStore(tmp_path) as held:
        partition_store.flushed(held._store)
    for path in tmp_path.glob("rows/*.sst"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(StateError, match=r"cannot be used: .*\.sst is missing") as told:
            DelayStore(tmp_path)
        assert "restore the folder" in told.value.hint


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    """In words."""
    filled(tmp_path)
    (tmp_path / "identity").write_bytes(seal("PartitionStore", 99, b""))
    with pytest.raises(StateError, match="this is no snapshot of PartitionStore in version 1"):
        DelayStore(tmp_path)


def written(path: Path) -> tuple[Path, Path]:
    """The folder and the log of a process that was killed after three writes."""
    held = DelayStore(path)
    for i in range(3):
        held.put(START_MS, b"%d" % i * 100)
        held.sync()
    folder = killed(held)
    return folder, partition_store.log_of(folder)


def test_a_flipped_bit_in_the_log_costs_what_is_beside_it(tmp_path: Path) -> None:
    """The damage is told."""
    folder, log = written(tmp_path / "store")
    flip(log, log.read_bytes().index(b"1" * 100))
    with DelayStore(folder) as held:
        assert values(held)[0] == b"0" * 100
        assert [damage.path for damage in held.damages] == [folder / "rows"]


SIZE = 100_000
"""A write of this size is in four records of the log."""


@pytest.mark.parametrize("record", range(4))
def test_a_flipped_bit_in_a_write_of_several_records_costs_what_is_beside_it(tmp_path: Path, record: int) -> None:
    """RocksDB refuses such a log if the damaged record is not the first one."""
    held = DelayStore(tmp_path / "store")
    for i in range(4):
        held.put(START_MS, b"%d" % i * SIZE)
        held.sync()
    folder = killed(held)
    log = partition_store.log_of(folder)
    flip(log, log.read_bytes().index(b"1" * 100) + min(record << 15, SIZE - 100))
    for damages in (1, 0):
        with DelayStore(folder) as held:
            found = {value[:1] for value in values(held) if value}
            assert {b"0", b"3"} <= found < {b"0", b"1", b"2", b"3"}
            assert len(held.damages) == damages


def test_a_log_that_lost_its_end_within_a_write_of_several_records_is_as_after_a_power_cut(tmp_path: Path) -> None:
    """A kill leaves such a log, too, and nothing is told."""
    held = DelayStore(tmp_path / "store")
    for i in range(2):
        held.put(START_MS, b"%d" % i * SIZE)
        held.sync()
    folder = killed(held)
    log = partition_store.log_of(folder)
    os.truncate(log, log.read_bytes().index(b"1" * 100) + 70_000)
    with DelayStore(folder) as held:
        assert [value and value[:1] for value in values(held)] == [b"0"]
        assert not held.damages


@pytest.mark.parametrize("tail", [b"", bytes(100), b"\xa5" * 100])
def test_a_log_that_lost_its_end_is_as_after_a_power_cut(tmp_path: Path, tail: bytes) -> None:
    """The last write may be missing as a whole, and nothing is told: it was not durable."""
    folder, log = written(tmp_path / "store")
    os.truncate(log, log.read_bytes().index(b"2" * 100) + 50)
    log.write_bytes(log.read_bytes() + tail)
    with DelayStore(folder) as held:
        assert values(held) == [b"0" * 100, b"1" * 100]
        assert not held.damages


# The disk


def test_a_full_disk_refuses_a_group_as_a_whole(tmp_path: Path) -> None:
    """It says what to do; when there is room again, all goes on."""
    held = DelayStore(tmp_path / "store")
    held.put(START_MS, b"first")
    (out,) = held.due(START_MS)
    with failing(held._store, "write"):
        for _ in range(2):
            with pytest.raises(StateError, match="No space left on device") as caught:
                held.put_many([START_MS] * 2, [b"", b""])
            assert "free space" in caught.value.hint
            with pytest.raises(StateError, match="No space left on device"):
                held.settle([out.position])
        assert len(held) == 1
    held.put(START_MS, b"second")
    held.sync()
    with DelayStore(killed(held)) as held:
        assert values(held) == [b"first", b"second"]


def test_an_error_is_known_by_the_text_of_either_library() -> None:
    """RocksDB's end with the reason, those of its Python library with a number behind that."""
    for text in ("IO error: While appending to file: No space left on device", "No space left on device (os error 28)"):
        with pytest.raises(OSError, match="No space left on device") as caught, database.translated():
            raise RuntimeError(text)
        assert caught.value.errno == errno.ENOSPC


def test_a_full_disk_stops_what_memory_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that are put one by one wait in memory, up to a number; all of them are held once there is room."""
    monkeypatch.setattr(store, "WAITING_MAX", 2)
    held = DelayStore(tmp_path / "store")
    with failing(held._store, "write"):
        positions = [held.put(START_MS, b"%d" % i) for i in range(2)]
        for call in (lambda: held.put(START_MS, b"no room"), held.sync, lambda: held.due(START_MS)):
            with pytest.raises(StateError, match="No space left on device"):
                call()
        assert len(held) == 2
    assert [message.position for message in held.due(START_MS)] == positions
    held.put(START_MS, b"2")
    held.sync()
    with DelayStore(killed(held)) as held:
        assert values(held) == [b"0", b"1", b"2"]


def test_a_log_that_could_not_be_made_durable_is_not_trusted_again(tmp_path: Path) -> None:
    """A second `sync` that succeeds would prove nothing: the store must be opened again."""
    held = DelayStore(tmp_path)
    held.put(START_MS, b"first")
    with failing(held._store, "flush_wal", error=BROKEN), pytest.raises(StateError, match="Input/output error"):
        held.sync()
    for call in held.sync, held.close:
        with pytest.raises(StateError, match="Input/output error"):
            call()


def test_a_file_that_cannot_be_read_is_read_later(tmp_path: Path) -> None:
    """An error of the disk is a `StateError`; after it all comes, but for what is out."""
    filled(tmp_path)
    with DelayStore(tmp_path) as held:
        out = [message.value for message in held.due(START_MS, 2)]
        with failing(held._store, "iter", error=BROKEN), pytest.raises(StateError, match="cannot read"):
            held.due(START_MS)
        assert out + values(held) == [b"%d" % i for i in range(10)]


def test_a_folder_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    """And is free for the next process."""
    filled(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidecar.files.read_from", _failing)
        with pytest.raises(StateError, match="cannot read"):
            DelayStore(tmp_path)
    with DelayStore(tmp_path) as held:
        assert len(held) == 10


def _failing(*_: object) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
