"""A `PartitionStore` as the daemon sees it, and its folder after all that can happen to one."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.database import DAMAGED, ROWS
from sidecar.delay.partition import COUNTS_MAX
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import DUE_MAX_MS, HEAD, HOUR_MS, Held, Kind, Unread, row_key
from sidecar.errors import StateError
from tests.support import failing_rows
from tests.support.failing_rows import BROKEN, failing
from tests.support.partition_store import END, START_MS, TAGS, killed, log_of, origins, reopened, round_of, rows


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    """A new store; it is not closed."""
    return PartitionStore(tmp_path)


def synced(store: PartitionStore, name: bytes, *dues: int, first: int = 0) -> tuple[int, list[int]]:
    """The number of a partition, and the positions of durable messages that it got."""
    number = store.number(name)
    positions = store.put(number, rows(*dues, first=first))
    store.writes.sync()
    return number, positions


# Partitions


def test_a_partition_keeps_its_number_and_the_store_its_id(store: PartitionStore) -> None:
    """In each process, and after more partitions; another folder has another id."""
    assert [store.number(b"a"), store.number(b"b"), store.number(b"a")] == [0, 1, 0]
    store.writes.sync()
    other = reopened(store)
    assert [other.number(b"c"), other.number(b"b")] == [2, 1]
    assert other.id == store.id < 1 << 48
    other.close()
    assert PartitionStore(store._folder.path / "other").id != store.id


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


# Taking


def test_a_message_may_be_left_unread(store: PartitionStore) -> None:
    """Of its content nothing is read; it has a position, an epoch and an origin, and is taken."""
    number = store.number(b"a")
    other = bytes(12)
    positions = store.put(
        number,
        [Held(START_MS << SEQUENCE_BITS, at, 7, 1, (TAGS, other)[at % 2], b"k", b"h", bytes(99)) for at in range(6)],
    )
    store.writes.sync()
    taken = store.take_due(number, END, 9, 1 << 20, TAGS.__eq__)
    assert [(each.position, each.epoch, each.origin) for each in taken] == [
        (p, 7, at) for at, p in enumerate(positions)
    ]
    assert [type(each) is Unread for each in taken] == [True, False] * 3
    assert [(each.key, each.headers, each.value) for each in taken[:2]] == [(None, b"", None), (b"k", b"h", bytes(99))]
    assert store.take_due(number, END, 9, 1 << 20) == []


def test_next_is_the_position_of_what_is_to_come(store: PartitionStore) -> None:
    """Before anything is read, and after each step; None at the end, or if what was left is cancelled."""
    number, (first, second, third) = synced(store, b"a", 5, 7, HOUR_MS)
    assert store.next(number) == first
    assert not origins(store, number, first)
    origins(store, number, limit=1)
    assert store.next(number) == second
    (earlier,) = store.put(number, rows(6, first=3))
    assert store.next(number) == earlier
    for position in earlier, second, third:
        store.cancel(number, position)
    store.rewind(number)
    assert store.next(number) == first
    store.writes.sync()
    origins(store, number)
    assert store.next(number) is None


def test_a_message_comes_back_as_it_was_put(store: PartitionStore) -> None:
    """After a kill, from the log; after another start, from the file."""
    number = store.number(b"a")
    (position,) = store.put(
        number, [Held(START_MS << SEQUENCE_BITS, 7, 5, START_MS - 1, TAGS, b"key", b"headers", None)]
    )
    store.writes.sync()
    for _ in range(2):
        store = reopened(store)
        (held,) = store.take_due(number, END, 9, 9)
        assert held == (position, 7, 5, START_MS - 1, TAGS, b"key", b"headers", None)


def test_nothing_is_taken_that_is_not_durable(store: PartitionStore) -> None:
    """Nor what is behind it, of any partition, until the job has ended."""
    a, b = store.number(b"a"), store.number(b"b")
    store.put(a, rows(5, 1))
    store.writes.sync()
    (low,) = store.put(b, rows(3))
    assert store.unsynced == low
    assert origins(store, a) == [1]
    job = store.writes.begin_sync()
    assert job is not None
    job.run()
    assert store.unsynced == low
    assert not origins(store, a)
    store.writes.ended_sync(job, None)
    assert store.unsynced is None
    assert (origins(store, a), origins(store, b)) == ([0], [0])


def test_bytes_and_number_are_bounded(store: PartitionStore) -> None:
    """One message comes however large it is, and none twice because of a bound."""
    number = store.number(b"a")
    store.put(number, rows(*range(10), value=bytes(100)))
    store.writes.sync()
    sizes = [len(store.take_due(number, END, 4, nbytes)) for nbytes in (250, 1, 10_000, 300)]
    assert sizes == [2, 1, 4, 3]
    assert not origins(store, number)


def test_a_position_is_above_all_that_was_taken_or_seen(store: PartitionStore) -> None:
    """Of its partition, and after a restart above what was seen."""
    number, _ = synced(store, b"a", 9)
    (taken,) = [message.position for message in store.take_due(number, END, 9, 9)]
    assert store.put(number, rows(0))[0] > taken
    store.keep(number, b"", 0, taken + (5 << SEQUENCE_BITS))
    store.writes.sync()
    for _ in range(2):
        store = reopened(store)
        assert store.put(number, rows(0))[0] > taken + (5 << SEQUENCE_BITS)


def test_an_ownership_that_begins_anew_takes_what_is_not_ended(store: PartitionStore) -> None:
    """In order, once, with what came to a loaded hour in between, and without what was cancelled."""
    number, positions = synced(store, b"a", 0, 1, 2, 3, HOUR_MS)
    assert origins(store, number, limit=3) == [0, 1, 2]
    store.keep(number, b"", positions[1], 0)
    store.cancel(number, positions[3])
    store.put(number, rows(50, first=5))
    store.rewind(number)
    store.writes.sync()
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
    """In this process and the next, with the state."""
    number, positions = synced(store, b"a", *range(10), HOUR_MS, 2 * HOUR_MS)
    origins(store, number, limit=6)
    store.keep(number, b"one", positions[4], 0)
    for _ in range(2):
        assert (store.held(number), store.state(number)) == (8, b"one")
        assert [store.find(number, position) is None for position in positions[:6]] == [True] * 4 + [False] * 2
        store.writes.sync()
        store = reopened(store)
    assert origins(store, number) == [*range(4, 12)]


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
    store.writes.sync()
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
    store.writes.sync()
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
    store.writes.sync()
    for _ in range(2):
        store = reopened(store)
        assert store.held(number) == 1
        assert origins(store, number) == [0]


# Durability


def test_changes_are_durable_when_their_job_has_ended(store: PartitionStore) -> None:
    """Those before its begin, and not those that came while it ran."""
    number = store.number(b"a")
    store.put(number, rows(0))
    before = store.writes.changes
    job = store.writes.begin_sync()
    assert job is not None
    store.put(number, rows(1))
    assert store.writes.begin_sync() is None
    job.run()
    assert store.writes.synced == 0
    store.writes.ended_sync(job, None)
    assert store.writes.synced == before == store.writes.changes - 1
    round_of(store)
    assert store.writes.synced == store.writes.changes
    assert store.writes.begin_sync() is None


def test_what_was_not_synced_may_be_lost_as_a_whole(store: PartitionStore) -> None:
    """Messages, what is counted of them, and the known origins: all of a write, or nothing."""
    number, _ = synced(store, b"a", 0)
    size = log_of(store._folder.path).stat().st_size
    store.put(number, rows(1, 2, first=1))
    folder = killed(store)
    os.truncate(log_of(folder), size + 60)
    store = PartitionStore(folder)
    assert (store.held(number), list(store.known(number)), origins(store, number)) == (1, [0], [0])
    assert not store.damages


def test_many_writes_are_counted_once(store: PartitionStore) -> None:
    """A start reads few counts, and has what was put, ended and known."""
    number, first = store.number(b"a"), COUNTS_MAX * 2 + 10
    for origin in range(first):
        (position,) = store.put(number, rows(origin * 60_000, first=origin))
        if origin % 3 == 0:
            store.cancel(number, position)
    store.writes.sync()
    assert len([*store._database.under(Kind.COUNT)]) <= COUNTS_MAX + 1
    before = store.hours(), store.disk_bytes(), list(store.known(number))
    store = reopened(store)
    assert (store.hours(), store.disk_bytes(), list(store.known(number))) == before
    assert store.put(number, rows(0, first=first))[0] & (1 << SEQUENCE_BITS) - 1 >= 20


def test_bytes_of_what_waits_are_counted(store: PartitionStore) -> None:
    """What was taken waits until it is ended; so it is in the next process."""
    number, positions = synced(store, b"a", 0, 1, HOUR_MS)
    one = store.disk_bytes() // 3
    assert one > 50
    origins(store, number, limit=2)
    assert store.disk_bytes() == 3 * one
    store.keep(number, b"", positions[1], 0)
    store.cancel(number, positions[2])
    assert store.disk_bytes() == one
    store.writes.sync()
    assert reopened(store).disk_bytes() == one


# The disk


def test_a_full_disk_refuses_a_change_as_a_whole(store: PartitionStore) -> None:
    """Nothing is held or ended, and all goes on when there is room again."""
    number, positions = synced(store, b"a", 0, HOUR_MS)
    assert origins(store, number, limit=1) == [0]
    before = store.writes.changes, store.hours(), store.state(number), list(store.known(number)), store.disk_bytes()
    with failing(store, "write"):
        for change in (
            lambda: store.put(number, rows(2, first=2)),
            lambda: store.adopt(number, [Held(END, 2, 0, 0, NO_TAGS, None, b"", b"")]),
            lambda: store.keep(number, b"state", positions[0] + 1, 0),
            lambda: store.cancel(number, positions[1]),
            lambda: store.release(number, positions[1], 0),
        ):
            with pytest.raises(StateError, match="No space left on device") as caught:
                change()
            assert "free space" in caught.value.hint
    assert before == (
        store.writes.changes,
        store.hours(),
        store.state(number),
        [*store.known(number)],
        store.disk_bytes(),
    )
    store.keep(number, b"state", positions[0] + 1, 0)
    store.put(number, rows(2, first=2))
    store.writes.sync()
    assert origins(store, number) == [2, 1]
    assert origins(reopened(store), number) == [2, 1]


def test_a_log_that_could_not_be_made_durable_is_not_trusted_again(store: PartitionStore) -> None:
    """Nothing counts as durable, nothing more is taken in, and the next process has what was written."""
    number = store.number(b"a")
    store.put(number, rows(0))
    with failing(store, "flush_wal", error=BROKEN):
        job = store.writes.begin_sync()
        assert job is not None
        with pytest.raises(OSError, match="Input/output error") as caught:
            job.run()
    store.writes.ended_sync(job, caught.value)
    assert store.writes.synced == 0
    folder = killed(store)
    for call in store.writes.begin_sync, store.writes.sync, lambda: store.put(number, rows(1)), store.close:
        with pytest.raises(StateError, match="Input/output error"):
            call()
    assert origins(PartitionStore(folder), number) == [0]


def test_a_disk_that_was_full_for_a_while_costs_nothing(store: PartitionStore) -> None:
    """What could not be made durable is, once there is room; until then each attempt fails."""
    number = store.number(b"a")
    store.put(number, rows(0))
    job = store.writes.begin_sync()
    assert job is not None
    store.writes.ended_sync(job, OSError(errno.ENOSPC, "full"))
    with failing(store, "put"):
        for call in store.writes.begin_sync, store.writes.sync:
            with pytest.raises(StateError, match="No space left on device"):
                call()
    assert store.writes.broken is None
    round_of(store)
    assert store.writes.synced == store.writes.changes
    assert origins(store, number) == [0]


@contextmanager
def no_file_can_grow() -> Iterator[None]:
    """As with a quota: the system refuses a write in another way than on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


def test_a_write_that_the_system_refused_costs_nothing(store: PartitionStore) -> None:
    """What was written is read meanwhile; once files can grow again, writes go on behind all that there was."""
    number, _ = synced(store, b"a", 0)
    store.put(number, rows(1, first=1))
    with no_file_can_grow():
        for call in lambda: store.put(number, rows(9, first=9)), store.writes.begin_sync, store.writes.sync:
            with pytest.raises(StateError, match="File too large"):
                call()
        assert origins(store, number) == [0]
    store.put(number, rows(2, first=2))
    store.writes.sync()
    assert origins(store, number) == [1, 2]
    assert origins(reopened(store), number) == [0, 1, 2]


def test_a_sync_behind_a_refused_write_proves_nothing_of_the_disk(store: PartitionStore) -> None:
    """Its job is repeated after the write."""
    number = store.number(b"a")
    store.put(number, rows(0))
    job = store.writes.begin_sync()
    assert job is not None
    with no_file_can_grow(), pytest.raises(StateError, match="File too large"):
        store.put(number, rows(1, first=1))
    store.writes.ended_sync(job, OSError(errno.EFBIG, "of the write"))
    round_of(store)
    assert (store.writes.broken, store.writes.synced) == (None, store.writes.changes)
    assert origins(reopened(store), number) == [0]


def test_a_database_that_cannot_be_opened_again_is_tried_again(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk took the probe, and no more than that."""
    number, _ = synced(store, b"a", 0)
    with no_file_can_grow(), pytest.raises(StateError, match="File too large"):
        store.put(number, rows(1, first=1))
    with monkeypatch.context() as patched, pytest.raises(StateError, match="quota"):
        patched.setattr("sidecar.delay.database.opened", Mock(side_effect=OSError(errno.EDQUOT, "quota")))
        store.put(number, rows(1, first=1))
    store.put(number, rows(1, first=1))
    store.writes.sync()
    assert origins(store, number) == [0, 1]


def test_writes_that_are_gone_after_a_refused_one_end_the_process(store: PartitionStore) -> None:
    """It has them in its books: the next one repeats them."""
    number, _ = synced(store, b"a", 0)
    store.put(number, rows(1, first=1))
    with no_file_can_grow(), pytest.raises(StateError, match="File too large"):
        store.put(number, rows(2, first=2))
    os.truncate(log_of(store._folder.path), 0)
    with pytest.raises(StateError, match="writes are missing"):
        store.put(number, rows(2, first=2))
    assert store.writes.broken is not None


def test_a_folder_that_is_gone_is_not_made_again_after_a_refused_write(store: PartitionStore) -> None:
    """Its messages would be forgotten; put back, it goes on."""
    number, _ = synced(store, b"a", 0)
    path = store._folder.path / ROWS
    with no_file_can_grow(), pytest.raises(StateError, match="File too large"):
        store.put(number, rows(1, first=1))
    path.rename(path.with_name("moved"))
    with pytest.raises(StateError, match="No such file"):
        store.put(number, rows(1, first=1))
    path.with_name("moved").rename(path)
    store.put(number, rows(1, first=1))
    assert origins(store, number) == [0]
    store.writes.sync()
    assert origins(reopened(store), number) == [0, 1]


def test_a_job_that_comes_late_does_not_count(store: PartitionStore) -> None:
    """A sync took its place."""
    number = store.number(b"a")
    job = store.writes.begin_sync()
    assert job is not None
    store.put(number, rows(0))
    store.writes.sync()
    store.put(number, rows(1, first=1))
    job.run()
    store.writes.ended_sync(job, None)
    assert store.writes.synced == store.writes.changes - 1


def test_damage_that_is_found_in_writing_ends_all_writes(store: PartitionStore) -> None:
    """The next start copies what can be read: it finds a mark."""
    number, _ = synced(store, b"a", 0)
    with (
        failing(store, "write", error=failing_rows.DAMAGED),
        pytest.raises(StateError, match="is damaged: start again"),
    ):
        store.put(number, rows(1))
    assert "is damaged: start again, and what can be read is kept" in str(store.writes.broken)
    with pytest.raises(StateError, match="is damaged"):
        store.put(number, rows(1))
    folder = killed(store)
    assert (folder / DAMAGED).exists()
    store = PartitionStore(folder)
    assert (origins(store, number), store.state(number), [*store.known(number)]) == ([0], None, [0])
    assert [damage.messages for damage in store.damages] == [0]
    assert not (folder / DAMAGED).exists()


def test_a_folder_that_was_moved_is_noticed(store: PartitionStore) -> None:
    """What is written there now is not found by the next process."""
    assert store.writes.in_place
    (store._folder.path / "rows").rename(store._folder.path / "away")
    assert not store.writes.in_place


def test_no_other_user_can_read_what_is_held(store: PartitionStore) -> None:
    """Whatever the umask: the files are in a folder of this user alone."""
    before = os.umask(0)
    try:
        synced(store, b"a", 0, HOUR_MS)
        path = PartitionStore(store._folder.path / "new" / "store")._folder.path
    finally:
        os.umask(before)
    for each in (store._folder.path / "rows", path / "rows"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir() if each.is_file()} == {0o600}


@pytest.mark.parametrize(
    "row", [rows(-START_MS - 1), [Held((DUE_MAX_MS + 1) << SEQUENCE_BITS, 0, 0, None, NO_TAGS, None, b"", b"")]]
)
def test_a_time_that_no_position_has_is_refused(store: PartitionStore, row: list[Held]) -> None:
    """Nothing of the group is held."""
    number = store.number(b"a")
    with pytest.raises(ValueError, match=f"due_ms lie between 0 and {DUE_MAX_MS}"):
        store.put(number, rows(0) + row)
    assert store.held(number) == 0


@pytest.mark.parametrize("value", [b"short", HEAD.pack(0, 0, TAGS, 100, 100)])
def test_a_row_of_an_unknown_form_is_refused_in_words(store: PartitionStore, value: bytes) -> None:
    """It is not delivered in another form; a listing has it, and a state can end it."""
    number, (position,) = synced(store, b"a", 5)
    store._database._rows.put(row_key(number, position, 0), value)
    for call in (lambda: store.take_due(number, END, 9, 9), lambda: store.find(number, position)):
        with pytest.raises(StateError, match="a form that this version does not know"):
            call()
    assert [row.position for row in store.listed(number)] == [position]
    store.keep(number, b"", position + 1, 0)
    assert store.held(number) == 0
