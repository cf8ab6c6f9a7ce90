"""A `DelayStore` as its user sees it, and its folder after all that can happen to one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay import store
from sidecar.delay.disk import hour
from sidecar.delay.disk.blocks import DUE_MAX_MS, PUT_BYTES_MAX, Held, read_held
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.disk.wal import CHECKPOINT
from sidecar.delay.store import DelayStore
from sidecar.errors import StateError

START_MS = 500_000 * HOUR_MS
LATER_MS = START_MS + 10 * HOUR_MS


def killed(held: DelayStore) -> None:
    """The end of a process that had no time to end."""
    held._wal.close()
    held._folder.close()


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
        assert held.next_ms() == START_MS
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
    """A message for a past hour whose file is gone gets a position that none had."""
    first, _ = filled(tmp_path, 2, hours=2)
    held = DelayStore(tmp_path)
    held.settle(message.position for message in held.due(LATER_MS))
    held.sync()
    if restarts:
        held.close()
        held = DelayStore(tmp_path)
    assert not list(tmp_path.glob(f"{START_MS // HOUR_MS}-*.delay"))
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


def test_a_million_in_one_second_have_positions_of_their_own(tmp_path: Path) -> None:
    """Beyond the sequence numbers of an hour and of a second, messages get the next second; so after a restart."""
    count = (1 << SEQUENCE_BITS) + 1_000
    with DelayStore(tmp_path) as held:
        positions = list(held.put_many([START_MS + 3] * count, [b""] * count))
        positions += held.put_many([START_MS + 3_000_000], [b""])
    with DelayStore(tmp_path) as held:
        positions += held.put_many([START_MS + 3, START_MS + 3_000_000], [b"", b""])
        assert len(set(positions)) == count + 3
        assert max(positions[:-3]) >> SEQUENCE_BITS == START_MS + 1_000
        assert [position >> SEQUENCE_BITS for position in positions[-3:]] == [
            START_MS + 3_000_000, START_MS + 1_000, START_MS + 3_000_000
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


def test_a_past_hour_whose_messages_are_settled_has_no_file(tmp_path: Path) -> None:
    """Though there was little to write, and one log is there at a time."""
    filled(tmp_path, 6, hours=3)
    with DelayStore(tmp_path) as held:
        for message in held.due(START_MS + 2 * HOUR_MS):
            held.settle([message.position])
            held.sync()
        assert [path.stem.split("-")[0] for path in tmp_path.glob("*.delay")] == [str(START_MS // HOUR_MS + 2)]
        assert len(list(tmp_path.glob("*.wal"))) == 1


# Damage


@pytest.mark.parametrize("size", [0, 10, 100])
def test_a_file_that_was_cut_off_costs_what_it_lacks(tmp_path: Path, size: int) -> None:
    """The rest is due, and the damage is told with file and count."""
    filled(tmp_path, 10, hours=2)
    (path, _) = sorted(tmp_path.glob("*.delay"))
    os.truncate(path, size)
    with DelayStore(tmp_path) as held:
        assert values(held) == [b"1", b"3", b"5", b"7", b"9"]
        assert [(damage.path, damage.messages) for damage in held.damages] == [(path, 5)]
        assert len(held) == 5


def test_a_flipped_bit_costs_one_block(tmp_path: Path) -> None:
    """In head, table or payload; the blocks before and behind it stay."""
    for name, at in ("head", 20), ("table", 40), ("payload", -1):
        folder = tmp_path / name
        for _ in range(3):
            filled(folder)
        (path,) = folder.glob("*.delay")
        block = path.stat().st_size // 3
        flip(path, block + at % block)
        with DelayStore(folder) as held:
            assert len(values(held)) == 20
            assert [damage.messages for damage in held.damages] == [10]


def test_a_file_that_is_removed_while_it_is_read_costs_what_is_left_in_it(tmp_path: Path) -> None:
    """What is out already can be settled, and does not come again."""
    filled(tmp_path, 10, hours=2)
    with DelayStore(tmp_path) as held:
        out = held.due(START_MS, 2)
        for path in tmp_path.glob(f"{START_MS // HOUR_MS}-*.delay"):
            path.unlink()
        assert values(held) == [b"1", b"3", b"5", b"7", b"9"]
        held.settle(message.position for message in out)
        assert [damage.messages for damage in held.damages] == [3]
        assert len(held) == 5


def test_a_file_that_cannot_be_read_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk is a `StateError`; after it all comes, but for what is out."""
    filled(tmp_path)
    with DelayStore(tmp_path) as held:
        out = [message.value for message in held.due(START_MS, 2)]
        with monkeypatch.context() as patch:
            patch.setattr(hour, "read_held", _failing)
            with pytest.raises(StateError, match="cannot read"):
                held.due(START_MS)
        assert out + values(held) == [b"%d" % i for i in range(10)]


def test_a_file_that_cannot_be_read_hides_none_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken of the hour before is returned; the error comes with the next call."""
    filled(tmp_path, 4, hours=2)
    with DelayStore(tmp_path) as held, monkeypatch.context() as patch:
        held.due(START_MS, 1)
        held.cancel(held.put(START_MS + HOUR_MS, b""))
        calls: Iterator[Callable[..., Held | None]] = iter([read_held, _failing])
        patch.setattr(hour, "read_held", lambda *place: next(calls)(*place))
        assert [message.value for message in held.due(LATER_MS)] == [b"2"]
        patch.setattr(hour, "read_held", read_held)
        assert values(held) == [b"1", b"3"]


@pytest.mark.parametrize("lost", ["removed", "damaged"])
def test_without_the_checkpoint_all_that_is_in_the_files_is_held(tmp_path: Path, lost: str) -> None:
    """Once each, those of the log too; what was settled may be due again, which is told."""
    filled(tmp_path)
    held = DelayStore(tmp_path)
    held.put_many([START_MS + HOUR_MS], [b"from the log"])
    held.settle(message.position for message in held.due(START_MS, 3))
    held.sync()
    killed(held)
    if lost == "removed":
        (tmp_path / CHECKPOINT).unlink()
    else:
        flip(tmp_path / CHECKPOINT, 40)
    with DelayStore(tmp_path) as held:
        assert "settled messages may be due again" in held.damages[0].reason
        assert values(held) == [*[b"%d" % i for i in range(3, 10)], b"from the log"]


def test_what_was_not_durable_is_not_taken_for_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process wrote ahead to the hours' files, and never synced, is gone, also without the checkpoint."""
    monkeypatch.setattr("sidecar.delay.disk.hours.BUFFERED_BYTES_MAX", 0)
    filled(tmp_path, 1)
    held = DelayStore(tmp_path)
    for _ in range(5):
        held.put_many([START_MS, START_MS + HOUR_MS], [b"never synced" * 10, b"never synced"])
    killed(held)
    filled(tmp_path, 1)
    (tmp_path / CHECKPOINT).unlink()
    with DelayStore(tmp_path) as held:
        assert values(held) == [b"0", b"0"]


def test_a_flipped_bit_in_the_log_costs_one_record(tmp_path: Path) -> None:
    """What was written behind it is held, and the damage is told."""
    held = DelayStore(tmp_path)
    for i in range(3):
        held.put(START_MS, b"%d" % i)
        held.sync()
    killed(held)
    (log,) = tmp_path.glob("*.wal")
    flip(log, log.stat().st_size // 2)
    with DelayStore(tmp_path) as held:
        assert values(held) == [b"0", b"2"]
        assert [damage.path for damage in held.damages] == [log]


# The disk


def test_a_full_disk_loses_nothing_that_is_in_memory(tmp_path: Path) -> None:
    """`sync` says what to do; when there is room again, the next one makes everything durable."""
    held = DelayStore(tmp_path)
    held.put(START_MS, b"first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        for _ in range(2):
            with pytest.raises(StateError, match="No space left on device") as caught:
                held.sync()
            assert "free space" in caught.value.hint
        held.put(START_MS, b"second")
    held.sync()
    killed(held)
    with DelayStore(tmp_path) as held:
        assert values(held) == [b"first", b"second"]


def test_a_full_disk_stops_what_memory_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is refused as a whole, before anything of it is held."""
    monkeypatch.setattr(store, "CHANGES_BYTES_MAX", 100)
    held = DelayStore(tmp_path)
    held.put(START_MS, bytes(200))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        with pytest.raises(StateError, match="No space left on device"):
            held.put_many([START_MS] * 2, [b"", b""])
    assert len(held) == 1
    held.put(START_MS, b"")
    held.close()


def test_a_log_that_could_not_be_made_durable_is_not_trusted_again(tmp_path: Path) -> None:
    """A second `sync` that succeeds would prove nothing: the store must be opened again."""
    held = DelayStore(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", _failing)
        held.put(START_MS, b"first")
        with pytest.raises(StateError, match="Input/output error"):
            held.sync()
    with pytest.raises(StateError, match="Input/output error"):
        held.sync()
    killed(held)


def test_files_that_could_not_be_made_durable_leave_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept until another process has repeated it."""
    monkeypatch.setattr(store, "WAL_BYTES_MAX", 10)
    held = DelayStore(tmp_path)
    held.put(START_MS, b"first")
    with monkeypatch.context() as patch:
        patch.setattr("sidecar.files.sync", _failing)
        with pytest.raises(StateError, match="Input/output error"):
            held.sync()
    held.put(START_MS, b"second")
    held.close()
    for path in tmp_path.glob("*.delay"):
        os.truncate(path, 0)
    with DelayStore(tmp_path) as held:
        assert values(held) == [b"first", b"second"]


def test_a_checkpoint_whose_end_is_unknown_is_not_written_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name the next log: what this process wrote to its own would never be repeated."""
    held = DelayStore(tmp_path)
    held.put(START_MS, b"first")
    held.sync()
    with monkeypatch.context() as patch:
        patch.setattr(store, "WAL_BYTES_MAX", 0)
        patch.setattr("sidecar.files.put", lambda path, data: path.write_bytes(data) and _failing())
        with pytest.raises(StateError, match="Input/output error"):
            held.sync()
    held.put(START_MS, b"second")
    with pytest.raises(StateError, match="Input/output error"):
        held.sync()
    killed(held)
    with DelayStore(tmp_path) as held:
        assert values(held) == [b"first"]


def test_a_start_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is there until what it has is durable elsewhere."""
    held = DelayStore(tmp_path)
    held.put(START_MS, b"first")
    held.sync()
    killed(held)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        for _ in range(2):
            with pytest.raises(StateError, match="No space left on device"):
                DelayStore(tmp_path)
    with DelayStore(tmp_path) as held:
        assert values(held) == [b"first"]


def test_a_store_that_could_not_begin_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full at the very first start leaves nothing that is taken for damage."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        with pytest.raises(StateError, match="No space left on device"):
            DelayStore(tmp_path)
    with DelayStore(tmp_path) as held:
        assert not held.damages


def test_a_folder_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    """And is free for the next process."""
    filled(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidecar.files.read_from", _failing)
        with pytest.raises(StateError, match="cannot read"):
            DelayStore(tmp_path)
    with DelayStore(tmp_path) as held:
        assert len(held) == 10


def _full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _failing(*_: object) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
