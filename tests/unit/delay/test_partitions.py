"""A `PartitionStore` as the daemon sees it, and its folder after all that can happen to one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay import adoption, journal, lanes, partitions, readers
from sidecar.delay.disk import hour, hours
from sidecar.delay.disk.blocks import DUE_MAX_MS, NO_TIMESTAMP, Unread
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.disk.wal import CHECKPOINT, Wal
from sidecar.delay.interface import Row
from sidecar.delay.partitions import PartitionStore
from sidecar.errors import StateError
from tests.support.partition_store import (
    END,
    START_HOUR,
    START_MS,
    TAGS,
    file_of,
    logs,
    origins,
    reopened,
    round_of,
    rows,
)


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    """A new store; it is not closed."""
    return PartitionStore(tmp_path)


def synced(store: PartitionStore, name: bytes, *dues: int, first: int = 0) -> tuple[int, list[int]]:
    """The number of a partition, and the positions of durable messages that it got."""
    number = store.number(name)
    positions = store.put(number, rows(*dues, first=first))
    store.sync()
    return number, positions


# Partitions


def test_a_partition_keeps_its_number_and_the_store_its_id(store: PartitionStore) -> None:
    """In each process, and after more partitions; another folder has another id."""
    assert [store.number(b"a"), store.number(b"b"), store.number(b"a")] == [0, 1, 0]
    store.sync()
    other = reopened(store)
    assert [other.number(b"c"), other.number(b"b")] == [2, 1]
    assert other.id == store.id < 1 << 48
    other.close()
    assert PartitionStore(store._folder.path / "other").id != store.id


def test_a_partition_too_many_is_refused(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known ones have their numbers still."""
    monkeypatch.setattr(partitions, "PARTITIONS_MAX", 1)
    store.number(b"a")
    with pytest.raises(StateError, match="has 1 partitions, and can have no more"):
        store.number(b"b")
    assert dict(store.names()) == {b"a": store.number(b"a")}


@pytest.mark.parametrize(
    "body",
    [b"\x0a\0\0\0\0", b"\x01\x02\0\0\0\0\0", b"\x08\x02\0\0\0\x09\0", b"\x07\x02\0\0\0\0\0"],
    ids=["kind", "sizes", "partition", "bitmap"],
)
def test_a_record_of_another_form_is_an_error_of_its_log(store: PartitionStore, body: bytes) -> None:
    """Its checksum is right, and nothing of it is passed over."""
    synced(store, b"a", START_MS)
    folder = store._folder.path
    store.close()
    log = Wal(folder, 99)
    log.write(body)
    log.close()
    with pytest.raises(StateError, match=f"{log.path.name} cannot be read") as told:
        PartitionStore(folder)
    assert told.value.hint == "use the version of Sidecar that wrote it, or a later one"


def test_two_processes_cannot_have_one_folder(store: PartitionStore) -> None:
    """The second is told who has it."""
    with pytest.raises(StateError, match=f"in use by pid {os.getpid()}"):
        PartitionStore(store._folder.path)


def test_partitions_do_not_wait_for_each_other(store: PartitionStore) -> None:
    """Each has its own messages in the order of positions, from a cursor of its own."""
    a, _ = synced(store, b"a", 5, HOUR_MS, 3)
    b, _ = synced(store, b"b", 4, 2 * HOUR_MS)
    assert origins(store, b) == [0, 1]
    assert origins(store, a, limit=1) == [2]
    assert origins(store, a) == [0, 1]
    assert not origins(store, b)


def test_an_hour_leaves_memory_when_no_partition_reads_it(store: PartitionStore) -> None:
    """A partition that is not taken from keeps none there, and has its messages later."""
    a, _ = synced(store, b"a", 0, HOUR_MS, 2 * HOUR_MS)
    b, _ = synced(store, b"b", 0)
    assert origins(store, a) == [0, 1, 2]
    assert list(store._lanes._loaded._hours) == [START_HOUR + 2]
    assert origins(store, b) == [0]


def test_loaded_hours_are_bounded(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition whose hour was unloaded goes on where it was."""
    monkeypatch.setattr(readers, "LOADED_MESSAGES_MAX", 2)
    a, _ = synced(store, b"a", 0, 1, 2)
    b, _ = synced(store, b"b", HOUR_MS)
    assert origins(store, a, limit=1) == [0]
    assert origins(store, b) == [0]
    assert len(store._lanes._loaded._hours) == 1
    assert origins(store, a) == [1, 2]


# Taking


@pytest.mark.parametrize("is_filed", [False, True])
def test_a_message_may_be_left_unread(store: PartitionStore, monkeypatch: pytest.MonkeyPatch, is_filed: bool) -> None:
    """Of its content nothing is read; it has a position, an epoch and an origin, and is taken."""
    number = store.number(b"a")
    other = bytes(12)
    positions = store.put(
        number, [(START_MS, at, 7, 1, (TAGS, other)[at % 2], b"k", b"h", bytes(99)) for at in range(6)]
    )
    store.sync()
    if is_filed:
        store._lanes.flush()
    store._lanes.next(number)
    sizes: list[int] = []
    pread = os.pread
    store._lanes._loaded.wheel(number, store._lanes._hours[START_HOUR])
    monkeypatch.setattr("os.pread", lambda fd, size, at: sizes.append(size) or pread(fd, size, at))
    taken = store.take_due(number, END, 9, 1 << 20, TAGS.__eq__)
    assert [(each.position, each.epoch, each.origin) for each in taken] == [
        (p, 7, at) for at, p in enumerate(positions)
    ]
    assert [type(each) is Unread for each in taken] == [True, False] * 3
    assert [(each.key, each.headers, each.value) for each in taken[:2]] == [(None, b"", None), (b"k", b"h", bytes(99))]
    assert sum(size > 60 for size in sizes) == 3 * is_filed
    assert store.take_due(number, END, 9, 1 << 20) == []


def test_a_message_comes_back_as_it_was_put(store: PartitionStore) -> None:
    """After a kill, from the log; after another start, from the file."""
    number = store.number(b"a")
    (position,) = store.put(number, [(START_MS, 7, 5, START_MS - 1, TAGS, b"key", b"headers", None)])
    store.sync()
    for _ in range(2):
        store = reopened(store)
        (held,) = store.take_due(number, END, 9, 9)
        assert held == (position, 7, 5, number, START_MS - 1, TAGS, b"key", b"headers", None)


def test_nothing_is_taken_that_is_not_durable(store: PartitionStore) -> None:
    """Nor what is behind it, of any partition, until the job has ended."""
    a, b = store.number(b"a"), store.number(b"b")
    store.put(a, rows(5, 1))
    store.sync()
    (low,) = store.put(b, rows(3))
    assert store.unsynced == low
    assert origins(store, a) == [1]
    job = store.begin_sync()
    assert job is not None
    job.run()
    assert store.unsynced == low
    assert not origins(store, a)
    store.ended_sync(job, None)
    assert store.unsynced is None
    assert (origins(store, a), origins(store, b)) == ([0], [0])


def test_bytes_and_number_are_bounded(store: PartitionStore) -> None:
    """One message comes however large it is, and none twice because of a bound."""
    number = store.number(b"a")
    store.put(number, rows(*range(10), value=bytes(100)))
    store.sync()
    sizes = [len(store.take_due(number, END, 4, nbytes)) for nbytes in (250, 1, 10_000, 300)]
    assert sizes == [2, 1, 4, 3]
    assert not origins(store, number)


def test_next_is_never_above_what_is_to_come(store: PartitionStore) -> None:
    """It is the start of an hour before the hour is read, and None at the end."""
    number, (first, second) = synced(store, b"a", 5, 7)
    assert store.next(number) == START_MS << SEQUENCE_BITS
    assert not origins(store, number, START_MS + 1 << SEQUENCE_BITS)
    assert store.next(number) == first
    origins(store, number, limit=1)
    assert store.next(number) == second
    origins(store, number)
    assert store.next(number) is None


def test_a_position_is_above_all_that_was_taken_or_seen(store: PartitionStore) -> None:
    """By any partition, and after a restart above what was seen."""
    a, _ = synced(store, b"a", 9)
    b = store.number(b"b")
    (taken,) = [message.position for message in store.take_due(a, END, 9, 9)]
    assert store.put(b, rows(0))[0] > taken
    store.keep(a, b"", 0, taken + (5 << SEQUENCE_BITS))
    store.sync()
    for _ in range(2):
        store = reopened(store)
        assert store.put(b, rows(0))[0] > taken + (5 << SEQUENCE_BITS)


def test_an_ownership_that_begins_anew_takes_what_is_not_ended(store: PartitionStore) -> None:
    """In order, once, with what came to a loaded hour in between, and without what was cancelled."""
    number, positions = synced(store, b"a", 0, 1, 2, 3, HOUR_MS)
    assert origins(store, number, limit=3) == [0, 1, 2]
    store.keep(number, b"", positions[1], 0)
    store.cancel(number, positions[3])
    store.put(number, rows(50, first=5))
    store.rewind(number)
    store.sync()
    assert origins(store, number) == [1, 2, 5, 4]
    assert store.held(number) == 4


def test_a_message_is_found_by_its_position(store: PartitionStore) -> None:
    """Taken or not, in memory or in a file, by its partition alone, and not when it was cancelled."""
    number, (first, second) = synced(store, b"a", 0, 1)
    other = store.number(b"b")
    origins(store, number, limit=1)
    for _ in range(2):
        found = [store.find(number, position) for position in (first, second)]
        assert [held and held.origin for held in found] == [0, 1]
        assert store.find(other, first) is store.find(number, first + 1) is store.find(number, END) is None
        store = reopened(store)
    store.cancel(number, second)
    assert store.find(number, second) is None


# Ending


def test_what_is_below_the_watermark_is_ended(store: PartitionStore) -> None:
    """In this process and the next, with the state; the number that is held is right without reading files."""
    number, positions = synced(store, b"a", *range(10), HOUR_MS, 2 * HOUR_MS)
    origins(store, number, limit=6)
    store.keep(number, b"one", positions[4], 0)
    assert (store.held(number), store.state(number)) == (8, b"one")
    store.close()
    sizes = {path: path.stat().st_size for path in store._folder.path.glob("*.delay")}
    for path in sizes:
        path.rename(path.with_suffix(".away"))
    other = PartitionStore(store._folder.path)
    assert (other.held(number), other.state(number)) == (8, b"one")
    for path in sizes:
        path.with_suffix(".away").rename(path)
    assert origins(other, number) == [*range(4, 12)]


@pytest.mark.parametrize("kind", ["in an hour", "in a later hour"])
def test_a_watermark_above_the_cursor_ends_what_was_not_taken(store: PartitionStore, kind: str) -> None:
    """Of the hour where it lies, and of those before."""
    number, positions = synced(store, b"a", 0, 1, HOUR_MS, HOUR_MS + 1)
    at = 1 if kind == "in an hour" else 3
    origins(store, number, START_MS << SEQUENCE_BITS)
    store.keep(number, b"", positions[at], 0)
    assert store.held(number) == 4 - at
    assert origins(store, number) == [0, 1, 2, 3][at:]


def test_a_lower_watermark_changes_nothing(store: PartitionStore) -> None:
    """What was ended stays so, also in the next process."""
    number, positions = synced(store, b"a", 0, 1)
    origins(store, number)
    store.keep(number, b"", positions[1], 0)
    store.keep(number, b"", positions[0], 0)
    store.sync()
    store = reopened(store)
    assert origins(store, number) == [1]


def test_known_has_what_was_put_above_the_floor(store: PartitionStore) -> None:
    """Ended or not, through restarts; a lower floor brings nothing back, and does not hide what is put then."""
    number, positions = synced(store, b"a", 0, 1, 2, 3)
    assert list(store.known(number)) == [0, 1, 2, 3]
    store.floor(number, 2)
    store.keep(number, b"", positions[3] + 1, 0)
    store.put(number, rows(5, first=1))
    assert list(store.known(number)) == [2, 3]
    store.floor(number, 0)
    store.keep(number, b"", 0, 0)
    store.put(number, rows(6, first=1))
    store.sync()
    for _ in range(2):
        assert list(store.known(number)) == [1, 2, 3]
        store = reopened(store)


def test_what_is_known_is_a_copy(store: PartitionStore) -> None:
    """The caller may change it."""
    number, _ = synced(store, b"a", 0)
    store.known(number).clear()
    assert list(store.known(number)) == [0]


def test_a_cancelled_message_never_comes(store: PartitionStore) -> None:
    """Once; not below the cursor, nor of another partition; and it stays cancelled after a kill and a start."""
    number, (first, second, third) = synced(store, b"a", 0, 1, HOUR_MS)
    other = store.number(b"b")
    origins(store, number, limit=1)
    assert [store.cancel(*of) for of in ((number, first), (other, second), (number, second + 1))] == [False] * 3
    assert [store.cancel(number, position) for position in (second, second, third)] == [True, False, True]
    store.sync()
    for _ in range(2):
        store = reopened(store)
        assert store.held(number) == 1
        assert origins(store, number) == [0]


def test_an_hour_without_messages_that_are_not_ended_has_no_file(store: PartitionStore) -> None:
    """Once every partition is past it, also those that nobody takes from; positions are not given out again."""
    a, _ = synced(store, b"a", 0, HOUR_MS)
    b, positions = synced(store, b"b", 0)
    origins(store, a)
    store.keep(a, b"", START_MS + HOUR_MS << SEQUENCE_BITS, 0)
    for _ in range(3):
        round_of(store)
    store.sync()
    store = reopened(store)
    path = file_of(store._folder.path)
    assert path.exists()
    assert origins(store, b) == [0]
    store.keep(b, b"", positions[0] + 1, 0)
    store.keep(a, b"", 0, START_MS + HOUR_MS << SEQUENCE_BITS)
    size = store.disk_bytes()
    for _ in range(3):
        round_of(store)
    assert not path.exists()
    assert store.disk_bytes() < size
    store = reopened(store)
    assert store.put(b, rows(0))[0] > START_MS + HOUR_MS << SEQUENCE_BITS


# Durability


def test_changes_are_durable_when_their_job_has_ended(store: PartitionStore) -> None:
    """Those before its begin, and not those that came while it ran."""
    number = store.number(b"a")
    store.put(number, rows(0))
    before = store.changes
    job = store.begin_sync()
    assert job is not None
    store.put(number, rows(1))
    assert store.begin_sync() is None
    job.run()
    assert store.synced == 0
    store.ended_sync(job, None)
    assert store.synced == before == store.changes - 1
    round_of(store)
    assert store.synced == store.changes
    assert store.begin_sync() is None


def test_what_was_not_synced_may_be_lost_as_a_whole(store: PartitionStore) -> None:
    """A record is there, or it is not: a put, its partition, the state and the known origins."""
    number = store.number(b"a")
    store.put(number, rows(0))
    store.keep(number, b"state", 0, 0)
    store.sync()
    (log,) = store._folder.path.glob("*.wal")
    os.truncate(log, log.stat().st_size - 1)
    store = reopened(store)
    assert not store.names()
    assert not store.damages


@pytest.mark.parametrize("by_second", [False, True])
def test_a_checkpoint_is_written_while_messages_come(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch, *, by_second: bool
) -> None:
    """At each moment a kill costs nothing and repeats nothing; so where sequence numbers count within a second."""
    for module in (hour, hours, lanes) if by_second else ():
        monkeypatch.setattr(module, "SECOND_SEQUENCES", 0)
    monkeypatch.setattr(lanes, "_FLUSH_FILES", 1)
    monkeypatch.setattr(journal, "WAL_BYTES_MAX", 1_000)
    number, path, origin, switched = store.number(b"a"), store._folder.path, 0, 0
    for _ in range(12):
        store.put(number, rows(*range(0, 5 * HOUR_MS, HOUR_MS), first=origin, value=bytes(60)))
        origin += 5
        before = logs(path)
        round_of(store)
        switched += logs(path) != before
        copy = path / f"copy-{origin}"
        copy.mkdir()
        for file in filter(Path.is_file, path.iterdir()):
            (copy / file.name).write_bytes(file.read_bytes())
        other = PartitionStore(copy)
        taken = origins(other, number)
        assert (sorted(taken), other.held(number), len(other.known(number))) == ([*range(origin)], origin, origin)
    assert switched >= 4
    assert len(logs(path)) <= 2


def test_a_checkpoint_has_nothing_that_came_after_its_job_began(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the log does not have is not half there after a kill: no message, no origin, no state, no cancel."""
    monkeypatch.setattr(journal, "WAL_BYTES_MAX", 0)
    number, (first, _) = synced(store, b"a", 0, 1)
    store.put(number, rows(2, first=2))
    job = store.begin_sync()
    assert job is not None
    store.cancel(number, first)
    store.put(number, rows(3, first=3))
    store.floor(number, 1)
    store.keep(number, b"later", 0, 0)
    job.run()
    assert job.is_saved
    store = reopened(store)
    assert (store.held(number), store.state(number), list(store.known(number))) == (3, None, [0, 1, 2])
    assert origins(store, number) == [0, 1, 2]


@pytest.mark.parametrize("is_late", [False, True])
def test_each_log_that_was_written_is_made_durable(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """The old one and the next, whether a job or a sync instead of it does so; a power cut takes nothing."""
    sizes: dict[str, int] = {}
    monkeypatch.setattr(os, "fdatasync", lambda fd: sizes.update({_name(fd): os.fstat(fd).st_size}))
    monkeypatch.setattr(lanes, "_FLUSH_FILES", 0)
    monkeypatch.setattr(journal, "WAL_BYTES_MAX", 0)
    number, _ = synced(store, b"a", 0, HOUR_MS)
    store.put(number, rows(1, first=2))
    job = store.begin_sync()
    if is_late:
        store.put(number, rows(2, first=3))
        store.sync()
    elif job is not None:
        job.run()
        store.ended_sync(job, None)
    assert len(logs(store._folder.path)) == 2
    assert store.synced == store.changes
    for name in logs(store._folder.path):
        os.truncate(store._folder.path / name, sizes.get(name, 0))
    monkeypatch.setattr(lanes, "_FLUSH_FILES", 32)
    store = reopened(store)
    assert sorted(origins(store, number)) == [*range(3 + is_late)]


def test_a_clean_start_has_nothing_to_repeat(store: PartitionStore) -> None:
    """The log is empty after `close`."""
    synced(store, b"a", 0)
    store.close()
    assert {path.stat().st_size for path in store._folder.path.glob("*.wal")} == {0}


def test_bytes_on_disk_are_counted(store: PartitionStore) -> None:
    """As the files are, before a checkpoint and after it, and in the next process."""
    for _ in range(2):
        synced(store, b"a", 0, HOUR_MS)
        for end in ("kill", "close"):
            paths = [*store._folder.path.glob("*.wal"), *store._folder.path.glob("*.delay")]
            assert store.disk_bytes() == sum(path.stat().st_size for path in paths)
            if end == "close":
                store.close()
            store = reopened(store)


# The disk


def test_a_full_disk_loses_nothing_that_is_in_memory(store: PartitionStore) -> None:
    """`begin_sync` says what to do; when there is room again, the next one makes everything durable."""
    number = store.number(b"a")
    store.put(number, rows(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        for _ in range(2):
            with pytest.raises(StateError, match="No space left on device") as caught:
                store.begin_sync()
            assert "free space" in caught.value.hint
        store.put(number, rows(1, first=1))
        assert not origins(store, number)
    round_of(store)
    store = reopened(store)
    assert origins(store, number) == [0, 1]


def test_a_full_disk_stops_what_memory_cannot_hold(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is refused as a whole, before anything of it is held."""
    monkeypatch.setattr(adoption, "RECORD_BYTES_MAX", 100)
    number = store.number(b"a")
    store.put(number, rows(0, value=bytes(200)))
    changes = store.changes
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        with pytest.raises(StateError, match="No space left on device"):
            store.put(number, rows(1, first=1))
    assert (store.held(number), store.changes, list(store.known(number))) == (1, changes, [0])


def test_a_log_that_could_not_be_made_durable_is_not_trusted_again(store: PartitionStore) -> None:
    """Nothing counts as durable, nothing more is taken in, and the next process has what was written."""
    number = store.number(b"a")
    store.put(number, rows(0))
    job = store.begin_sync()
    assert job is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", _failing)
        with pytest.raises(OSError, match="Input/output error") as caught:
            job.run()
    store.ended_sync(job, caught.value)
    assert store.synced == 0
    for call in store.begin_sync, store.sync, lambda: store.put(number, rows(1)), store.close:
        with pytest.raises(StateError, match="Input/output error"):
            call()
    assert not origins(store, number)
    store = reopened(store)
    assert origins(store, number) == [0]


def test_a_checkpoint_that_cannot_be_written_is_tried_again(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are durable meanwhile, and the old log stays until then."""
    monkeypatch.setattr(journal, "WAL_BYTES_MAX", 0)
    number, _ = synced(store, b"a", 0)
    with monkeypatch.context() as patch:
        patch.setattr("sidecar.files.put", _full)
        for origin in range(1, 4):
            store.put(number, rows(origin, first=origin))
            job = store.begin_sync()
            assert job is not None
            with pytest.raises(OSError, match="No space left on device") as caught:
                job.run()
            store.ended_sync(job, caught.value)
            assert store.synced == store.changes
        assert len(logs(store._folder.path)) == 2
    round_of(store)
    assert len(logs(store._folder.path)) == 1
    store = reopened(store)
    assert origins(store, number) == [0, 1, 2, 3]


def test_a_sync_takes_over_from_a_job(store: PartitionStore) -> None:
    """A job that comes late does nothing, and its end is ignored."""
    number = store.number(b"a")
    store.put(number, rows(0))
    job = store.begin_sync()
    assert job is not None
    store.put(number, rows(1, first=1))
    store.sync()
    assert store.synced == store.changes
    store.put(number, rows(2, first=2))
    job.run()
    assert not job.is_logged
    store.ended_sync(job, None)
    assert store.synced == store.changes - 1


def test_a_sync_counts_what_a_job_has_done_or_not(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a job could not make durable is not trusted afterwards, though its end was not told."""
    monkeypatch.setattr(journal, "WAL_BYTES_MAX", 0)
    synced(store, b"a", 0)
    job = store.begin_sync()
    assert job is not None
    with monkeypatch.context() as patch:
        patch.setattr("sidecar.files.sync", _failing)
        with pytest.raises(OSError, match="Input/output error"):
            job.run()
    for _ in range(2):
        with pytest.raises(StateError, match="Input/output error"):
            store.sync()


def test_a_store_without_its_checkpoint_is_refused(store: PartitionStore) -> None:
    """Nothing else says which partition a message belongs to; the folder stays as it is, and is free."""
    synced(store, b"a", 0)
    store.close()
    path = store._folder.path / CHECKPOINT
    for damage in (lambda: path.write_bytes(b"damaged"), path.unlink):
        damage()
        with pytest.raises(StateError, match=f"{path} cannot be used"):
            PartitionStore(store._folder.path)
    assert list(store._folder.path.glob("*.delay"))


def test_a_store_that_could_not_begin_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full at the very first start leaves nothing that is taken for damage."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _full)
        with pytest.raises(StateError, match="No space left on device"):
            PartitionStore(tmp_path)
    PartitionStore(tmp_path).close()


def test_a_file_that_cannot_be_read_is_read_later(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk is a `StateError`; after it all comes once."""
    number, _ = synced(store, b"a", *range(5))
    store.close()
    store = PartitionStore(store._folder.path)
    assert origins(store, number, limit=2) == [0, 1]
    with monkeypatch.context() as patch:
        patch.setattr("sidecar.delay.disk.hour.read_held", _failing)
        with pytest.raises(StateError, match="cannot read"):
            origins(store, number)
    assert origins(store, number) == [2, 3, 4]


def test_a_file_that_was_cut_off_costs_what_it_lacks(store: PartitionStore) -> None:
    """It is told with its count, and what is held is right again; other hours are as they were."""
    number, _ = synced(store, b"a", 0, 1, HOUR_MS)
    store.close()
    path = file_of(store._folder.path)
    os.truncate(path, 10)
    store = PartitionStore(store._folder.path)
    assert origins(store, number) == [2]
    assert [(damage.path, damage.messages) for damage in store.damages] == [(path, 2)]
    assert store.held(number) == 1


def test_a_file_that_is_removed_while_it_is_read_costs_what_is_left_in_it(store: PartitionStore) -> None:
    """What was taken already is held until its watermark."""
    number, positions = synced(store, b"a", 0, 1, 2)
    store.close()
    store = PartitionStore(store._folder.path)
    assert origins(store, number, limit=1) == [0]
    file_of(store._folder.path).unlink()
    assert not origins(store, number)
    assert store.held(number) == 1
    store.keep(number, b"", positions[0] + 1, 0)
    assert store.held(number) == 0


@pytest.mark.parametrize("row", [rows(-START_MS - 1), [(DUE_MAX_MS + 1, 0, 0, NO_TIMESTAMP, NO_TAGS, None, b"", b"")]])
def test_a_time_that_no_position_has_is_refused(store: PartitionStore, row: list[Row]) -> None:
    """Nothing of the group is held."""
    number = store.number(b"a")
    with pytest.raises(ValueError, match=f"due_ms lie between 0 and {DUE_MAX_MS}"):
        store.put(number, rows(0) + row)
    assert store.held(number) == 0


def _name(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().name


def _full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _failing(*_: object) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_all_files_are_private(store: PartitionStore) -> None:
    """They have messages: logs, hours and the checkpoint, whatever the umask."""
    path, modes = store._folder.path, dict[str, int]()
    before = os.umask(0)
    try:
        synced(store, b"a", 0, HOUR_MS)
        modes |= {each.name: each.stat().st_mode & 0o777 for each in path.iterdir()}
        assert logs(path) and modes.keys() >= {*logs(path)}
        store.close()
        modes |= {each.name: each.stat().st_mode & 0o777 for each in path.iterdir()}
    finally:
        os.umask(before)
    assert CHECKPOINT in modes and any(name.endswith(".delay") for name in modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode != 0o600} == {}
