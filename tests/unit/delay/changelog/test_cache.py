"""The rows of a changelog on the local disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.database import DAMAGED
from sidecar.delay.rows import HOUR_MS, PARKED_FROM, Held, Kind, held_of
from sidecar.delay.stored import IDENTITY
from sidecar.errors import StateError
from tests.support import failing_rows
from tests.support.failing_rows import failing
from tests.support.partition_store import flushed, log_of

DUE_MS = 1_000 * HOUR_MS
END = 1 << 62


def put(cache: LocalCache, number: int, *origins: int) -> None:
    """Put messages that are due at the same time."""
    cache.put(
        number, [Held(DUE_MS << SEQUENCE_BITS, origin, 0, None, NO_TAGS, None, b"", b"x" * 100) for origin in origins]
    )


def owned(cache: LocalCache, name: bytes = b"p") -> int:
    """The number of a partition whose changes wait."""
    number = cache.begin_partition(name)
    cache.own(number)
    return number


def enter(cache: LocalCache, number: int, place: bytes | None = b"place") -> None:
    """What was changed enters the files."""
    cache.enter(number, cache.prepared(number), place)


@pytest.fixture
def number(tmp_path: Path) -> int:
    """The number of a partition with 100 messages in a file and one in a log, in a cache that a process left."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = owned(cache)
        put(cache, number, *range(100))
        enter(cache, number, b"first")
        cache.drop(cache.begin_partition(b"other"))
        flushed(cache)
        put(cache, number, 100)
        enter(cache, number, b"second")
    return number


def test_a_next_process_finds_what_has_entered(tmp_path: Path, number: int) -> None:
    """With its notes."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.spare(b"p"), cache.held(number), len(cache.known(number))) == (number, 101, 101)
        assert cache.notes(number) == {b"": b"second"}


def test_what_has_not_entered_is_not_found(tmp_path: Path, number: int) -> None:
    """Messages that were put, and states that were kept: memory has them alone."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.use(number)
        cache.own(number)
        enter(cache, number)
        cache.keep(number, b"later", DUE_MS + 1 << SEQUENCE_BITS, 0)
        put(cache, number, 200)
        assert (cache.held(number), cache.state(number)) == (1, b"later")
        cache.writes.sync()
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.held(number), cache.state(number), 200 in cache.known(number)) == (101, None, False)


def test_a_change_enters_with_its_note(tmp_path: Path, number: int) -> None:
    """One is not there without the other."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.use(number)
        cache.own(number)
        put(cache, number, 200)
        cache.note(number, {b"key": b"value"})
        enter(cache, number, b"third")
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.held(number), cache.notes(number)) == (102, {b"": b"third", b"key": b"value"})


def test_what_is_on_the_way_is_counted_and_not_found(tmp_path: Path) -> None:
    """Neither taken, nor listed, nor cancelled; it is after it has entered."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = owned(cache)
        put(cache, number, 1)
        changes = cache.prepared(number)
        position = DUE_MS << SEQUENCE_BITS
        before = cache.held(number), cache.take_due(number, END, 9, 9), cache.listed(number)
        assert (*before, cache.cancel(number, position)) == (1, [], [], False)
        cache.enter(number, changes, None)
        assert [each.origin for each in cache.listed(number)] == [1]
        assert [held.origin for held in cache.take_due(number, END, 9, 9)] == [1]


def test_what_is_being_cancelled_is_not_found(tmp_path: Path) -> None:
    """It is counted as cancelled at once, and once."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = owned(cache)
        put(cache, number, 1)
        enter(cache, number)
        position = DUE_MS << SEQUENCE_BITS
        assert cache.cancel(number, position)
        assert (cache.cancel(number, position), cache.listed(number), cache.held(number)) == (False, [], 0)
        enter(cache, number)
        assert cache.find(number, position) is None


def test_a_parked_part_on_the_way_is_found_and_cannot_be_removed(tmp_path: Path) -> None:
    """The core takes it again, and removes it once the broker has acknowledged it."""
    part = Held(PARKED_FROM, 1, 0, None, NO_TAGS, None, b"", b"rows")
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = owned(cache)
        cache.park(number, part)
        assert (cache.find(number, PARKED_FROM), len(cache.parked(number))) == (part, 1)
        with pytest.raises(StateError, match="not acknowledged"):
            cache.cancel(number, PARKED_FROM)
        enter(cache, number)
        assert len(cache.parked(number)) == 1
        assert cache.cancel(number, PARKED_FROM)
        assert cache.parked(number) == []


def test_a_position_of_a_full_hour_waits_for_what_is_on_the_way(tmp_path: Path) -> None:
    """It is the one behind the last that is written."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = owned(cache)
        put(cache, number, 1)
        cache._partitions[number].of(DUE_MS // HOUR_MS).sequence = 1 << SEQUENCE_BITS
        with pytest.raises(StateError, match="not acknowledged"):
            put(cache, number, 2)
        enter(cache, number)
        put(cache, number, 2)
        enter(cache, number)
        taken = [(held.origin, held.position) for held in cache.take_due(number, END, 9, 1_000)]
        assert taken == [(1, DUE_MS << SEQUENCE_BITS), (2, (DUE_MS << SEQUENCE_BITS) + 1)]


def test_ended_messages_are_found_until_they_are_forgotten(tmp_path: Path) -> None:
    """Their records may still be in the changelog."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = owned(cache)
        put(cache, number, 1, 2)
        enter(cache, number)
        first, second = cache.take_due(number, END, 9, 1_000)
        cache.keep(number, b"", second.position, 0)
        enter(cache, number)
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert [held.origin for held in cache.ended(number, second.position)] == [1]
        assert (cache.held(number), cache.find(number, first.position)) == (1, None)
        cache.own(number)
        cache.forget_below(number, second.position)
        enter(cache, number)
        assert [*cache.ended(number, END)] == [held_of((*second[:3], None, second.tags, None, b"", None))]


def test_a_partition_without_a_note_is_dropped(tmp_path: Path, number: int) -> None:
    """Nothing is known of it, and its space is given back."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.use(number)
        cache.use(number)
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (dict(cache.names()), cache.hours(), cache.disk_bytes(), cache.spare(b"p")) == ({}, {}, 0, None)
        assert not [*cache._database.under(Kind.ROW)]


def test_messages_of_spare_partitions_are_not_counted(tmp_path: Path, number: int) -> None:
    """This process does not hold them before it has taken the partition over."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        before = sum(cache.hours().values())
        cache.use(number)
        assert (before, sum(cache.hours().values())) == (0, 101)


def test_a_number_is_not_used_again(tmp_path: Path) -> None:
    """What the first one had may still be in a view."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        numbers = [cache.begin_partition(b"p")]
        for _ in range(3):
            cache.drop(numbers[-1])
            numbers.append(cache.begin_partition(b"p"))
        assert numbers == sorted({*numbers})


def cut(path: Path) -> None:
    """Let a file lose its second half."""
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    """Put zeros in the place of all bytes."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("pattern", "harm"),
    [("rows/*.sst", Path.unlink), ("rows/*.sst", cut), ("rows/MANIFEST-*", zero), ("rows/CURRENT", Path.unlink)]
    + [(IDENTITY, harm) for harm in (Path.unlink, cut, zero)],
)
def test_files_that_are_damaged_are_not_used(
    tmp_path: Path, number: int, pattern: str, harm: Callable[[Path], None]
) -> None:
    """All of them are removed: the changelog has what they had."""
    for path in (tmp_path / "c").glob(pattern):
        harm(path)
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (dict(cache.names()), cache.damages) == ({}, [])


def test_a_log_that_lost_its_end_has_what_entered_before(tmp_path: Path) -> None:
    """As after a loss of power; the changelog tells whether it is too old."""
    cache = LocalCache(tmp_path / "c")
    number = owned(cache)
    put(cache, number, 1)
    enter(cache, number, b"first")
    cache.writes.sync()
    put(cache, number, 2)
    enter(cache, number, b"second")
    folder = tmp_path / "copy"
    shutil.copytree(tmp_path / "c", folder)
    raw = log_of(folder).read_bytes()
    os.truncate(log_of(folder), raw.rindex(b"second") + 3)
    with closing(LocalCache(folder)) as cache:
        found = cache.notes(number), cache.held(number), list(cache.known(number))
        assert found == ({b"": b"first"}, 1, [1])


def test_a_log_that_is_damaged_before_its_end_is_not_used(tmp_path: Path) -> None:
    """What follows tells that it was durable."""
    cache = LocalCache(tmp_path / "c")
    number = owned(cache)
    for origin in (1, 2):
        put(cache, number, origin)
        enter(cache, number)
    folder = tmp_path / "copy"
    shutil.copytree(tmp_path / "c", folder)
    raw = bytearray(log_of(folder).read_bytes())
    raw[raw.index(b"x" * 100)] ^= 1
    log_of(folder).write_bytes(raw)
    with closing(LocalCache(folder)) as cache:
        assert dict(cache.names()) == {}


def test_files_that_were_found_damaged_are_not_used_again(tmp_path: Path, number: int) -> None:
    """A block is checked when it is read."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.use(number)
        cache.own(number)
        enter(cache, number)
        with failing(cache, "iter", error=failing_rows.DAMAGED), pytest.raises(StateError, match="is damaged"):
            cache.take_due(number, END, 1, 1)
        assert "is damaged" in cache.loss
    assert (tmp_path / "c" / DAMAGED).exists()
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (dict(cache.names()), cache.damages, (tmp_path / "c" / DAMAGED).exists()) == ({}, [], False)


def test_files_in_use_are_left_alone(tmp_path: Path, number: int) -> None:
    """Two processes with the same folder are a mistake of their configuration."""
    with closing(LocalCache(tmp_path / "c")):
        with pytest.raises(StateError, match="in use"):
            LocalCache(tmp_path / "c")
        assert list((tmp_path / "c" / "rows").glob("*.sst"))


def test_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    """A message can be taken before it is durable here: the broker has it."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = cache.number(b"p")
        cache.put(number, [Held(DUE_MS << SEQUENCE_BITS, 1, 0, None, NO_TAGS, None, b"", b"x")])
        assert [held.value for held in cache.take_due(number, END, 9, 9)] == [b"x"]


def test_one_of_several_messages_at_a_position_is_removed(tmp_path: Path) -> None:
    """It is the one with the epoch; the other is held."""
    position = DUE_MS << SEQUENCE_BITS
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = cache.number(b"p")
        for epoch in (3, 5):
            cache.adopt(number, [Held(position, 1, epoch, None, NO_TAGS, None, b"", b"%d" % epoch)])
        assert not cache.remove(number, position, 4)
        assert cache.remove(number, position, 3)
        assert [held.value for held in cache.take_due(number, END, 9, 9)] == [b"5"]
        assert cache.held(number) == 1
