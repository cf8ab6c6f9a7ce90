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
from sidecar.delay.changelog import cache as cache_module
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.database import DAMAGED
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import HOUR_MS, Held, Kind
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


def vouch(cache: LocalCache, table: bytes) -> None:
    """Vouch durably for the present state."""
    point = cache.point()
    cache.writes.sync()
    cache.vouch(point, table)
    cache.writes.sync()


@pytest.fixture
def number(tmp_path: Path) -> int:
    """The number of a partition with 100 messages in a file and one in a log, in a cache that a process left."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([])
        number = cache.begin_partition(b"p")
        put(cache, number, *range(100))
        cache.drop(cache.begin_partition(b"other"))
        vouch(cache, b"first")
        flushed(cache)
        put(cache, number, 100)
        vouch(cache, b"second")
    return number


def test_a_next_process_finds_what_was_vouched_for(tmp_path: Path, number: int) -> None:
    """With the table."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        assert (cache.vouched, cache.held(number), len(cache.known(number))) == (b"second", 101, 101)


def test_what_came_later_is_not_found(tmp_path: Path, number: int) -> None:
    """Messages that were put, and states that were kept, also if they are durable."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        put(cache, number, 200)
        cache.keep(number, b"later", DUE_MS + 1 << SEQUENCE_BITS, 0)
        cache.writes.sync()
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.held(number), cache.state(number), 200 in cache.known(number)) == (101, None, False)


def test_partitions_that_are_not_retained_are_dropped(tmp_path: Path, number: int) -> None:
    """Nothing is known of them, and their space is given back."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([])
        assert (dict(cache.names()), cache.hours(), cache.disk_bytes()) == ({}, {}, 0)


def test_messages_of_spare_partitions_are_not_counted(tmp_path: Path, number: int) -> None:
    """This process does not hold them before it has taken the partition over."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        before = sum(cache.hours().values())
        cache.use(number)
        assert (before, sum(cache.hours().values())) == (0, 101)


def test_a_number_is_not_used_again_while_its_rows_are_there(tmp_path: Path, number: int) -> None:
    """They are removed once a later point is vouched for."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([])
        begun = cache.begin_partition(b"p")
        assert begun != number
        assert (cache.held(begun), cache.next(begun)) == (0, None)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        assert cache.held(number) == 101
        cache.drop(number)
        vouch(cache, b"third")
        assert not [*cache._database.under(Kind.ROW)]


def test_a_number_is_not_used_again(tmp_path: Path) -> None:
    """What the first one had may still be there."""
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
        assert (cache.vouched, dict(cache.names()), cache.damages) == (None, {}, [])


def test_a_log_that_lost_its_end_has_what_was_vouched_for_before(tmp_path: Path) -> None:
    """As after a loss of power; the changelog tells whether it is too old."""
    cache = LocalCache(tmp_path / "c")
    cache.retain([])
    number = cache.begin_partition(b"p")
    put(cache, number, 1)
    vouch(cache, b"first")
    put(cache, number, 2)
    cache.writes.sync()
    folder = tmp_path / "copy"
    vouch(cache, b"second")
    shutil.copytree(tmp_path / "c", folder)
    raw = log_of(folder).read_bytes()
    os.truncate(log_of(folder), raw.rindex(b"second") + 3)
    with closing(LocalCache(folder)) as cache:
        cache.retain([number])
        assert (cache.vouched, cache.held(number), list(cache.known(number))) == (b"first", 1, [1])


def test_a_log_that_is_damaged_before_its_end_is_not_used(tmp_path: Path) -> None:
    """What follows tells that it was durable."""
    cache = LocalCache(tmp_path / "c")
    cache.retain([])
    number = cache.begin_partition(b"p")
    put(cache, number, 1)
    vouch(cache, b"first")
    folder = tmp_path / "copy"
    shutil.copytree(tmp_path / "c", folder)
    raw = bytearray(log_of(folder).read_bytes())
    raw[raw.rindex(b"x" * 100)] ^= 1
    log_of(folder).write_bytes(raw)
    with closing(LocalCache(folder)) as cache:
        assert cache.vouched is None


def test_files_that_were_found_damaged_are_not_used_again(tmp_path: Path, number: int) -> None:
    """A block is checked when it is read."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        assert cache.vouched == b"second"
        with failing(cache, "iter", error=failing_rows.DAMAGED), pytest.raises(StateError, match="is damaged"):
            cache.take_due(number, END, 1, 1)
        assert "is damaged" in cache.loss
    assert (tmp_path / "c" / DAMAGED).exists()
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.vouched, cache.damages, (tmp_path / "c" / DAMAGED).exists()) == (None, [], False)


def test_files_that_nobody_vouched_for_are_not_used(tmp_path: Path) -> None:
    """They have no table."""
    with closing(PartitionStore(tmp_path / "c")) as store:
        store.number(b"p\0 1")
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.vouched, dict(cache.names())) == (None, {})


def test_files_in_use_are_left_alone(tmp_path: Path, number: int) -> None:
    """Two processes with the same folder are a mistake of their configuration."""
    with closing(LocalCache(tmp_path / "c")):
        with pytest.raises(StateError, match="in use"):
            LocalCache(tmp_path / "c")
        assert list((tmp_path / "c" / "rows").glob("*.sst"))


def test_what_undoes_changes_does_not_grow_without_bound(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nobody vouches for a point for long, the files are not used again."""
    monkeypatch.setattr(cache_module, "UNDO_BYTES_MAX", 1_000)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        cache.use(number)
        put(cache, number, *range(200, 300))
        assert not [*cache._database.under(Kind.UNDO)]
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert cache.vouched is None


def test_a_lapse_ends_with_the_next_point(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was vouched for then is found."""
    monkeypatch.setattr(cache_module, "UNDO_BYTES_MAX", 1_000)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        cache.use(number)
        put(cache, number, *range(200, 300))
        vouch(cache, b"third")
        put(cache, number, 300)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        assert (cache.vouched, cache.held(number)) == (b"third", 201)


def test_what_came_before_a_lapse_cannot_be_vouched_for(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing undoes what came behind such a point."""
    monkeypatch.setattr(cache_module, "UNDO_BYTES_MAX", 1_000)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        cache.use(number)
        point = cache.point()
        put(cache, number, *range(200, 300))
        cache.vouch(point, b"too late")
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert cache.vouched is None


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
