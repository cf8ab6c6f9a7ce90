"""The rows of a changelog on the local disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay import journal
from sidecar.delay.changelog import cache as cache_module
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.disk import hours
from sidecar.delay.disk.blocks import NO_TIMESTAMP
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.partitions import PartitionStore
from sidecar.errors import StateError

DUE_MS = 1_000 * HOUR_MS
END = 1 << 62


def put(cache: LocalCache, number: int, *origins: int) -> None:
    """Put messages that are due at the same time."""
    cache.put(number, [(DUE_MS, origin, 0, NO_TIMESTAMP, NO_TAGS, None, b"", b"x" * 100) for origin in origins])


def vouch(cache: LocalCache, table: bytes) -> None:
    """Vouch durably for the present state."""
    point = cache.point()
    cache.sync()
    cache.vouch(point, table)
    cache.sync()
    cache.allow(point)


@pytest.fixture
def number(tmp_path: Path) -> int:
    """The number of a partition with 100 messages in a file and one in a log, in a cache that a process left."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([])
        number = cache.begin_partition(b"p")
        put(cache, number, *range(100))
        cache.drop(cache.begin_partition(b"other"))
        while not cache.asks:
            cache._journal._do(cache._journal.begin_sync(ends=True))
        vouch(cache, b"first")
        cache.sync()
        assert list((tmp_path / "c").glob("*.delay"))
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
        cache.sync()
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.held(number), cache.state(number), 200 in cache.known(number)) == (101, None, False)


def test_partitions_that_are_not_retained_are_dropped(tmp_path: Path, number: int) -> None:
    """Nothing is known of them, and their space is given back."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([])
        assert (cache.held(number), cache.hours()) == (0, {})


def test_messages_of_spare_partitions_are_not_counted(tmp_path: Path, number: int) -> None:
    """This process does not hold them before it has taken the partition over."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        before = sum(cache.hours().values())
        cache.use(number)
        assert (before, sum(cache.hours().values())) == (0, 101)


def test_a_number_is_never_used_again(tmp_path: Path, number: int) -> None:
    """Rows of an earlier partition may be in the files."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([])
        assert cache.begin_partition(b"p") not in {0, 1, 2}


def cut(path: Path) -> None:
    """Let a file lose its second half."""
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    """Put zeros in the place of all bytes."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("pattern", "harm"),
    [("*.delay", Path.unlink), ("*.delay", cut), ("*.wal", Path.unlink), ("*.wal", zero)]
    + [("checkpoint", harm) for harm in (Path.unlink, cut, zero)],
)
def test_files_that_are_damaged_are_not_used(
    tmp_path: Path, number: int, pattern: str, harm: Callable[[Path], None]
) -> None:
    """All of them are removed: the changelog has what they had."""
    for path in (tmp_path / "c").glob(pattern):
        harm(path)
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.vouched, cache.names(), list((tmp_path / "c").glob("*.delay"))) == (None, {b"": 0}, [])


def test_a_log_that_lost_its_end_has_what_was_vouched_for_before(tmp_path: Path, number: int) -> None:
    """As after a loss of power; the changelog tells whether it is too old."""
    (log,) = (path for path in (tmp_path / "c").glob("*.wal") if path.stat().st_size)
    cut(log)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        assert (cache.vouched, cache.held(number)) == (b"first", 100)


def test_a_log_whose_last_record_is_damaged_is_not_used(tmp_path: Path, number: int) -> None:
    """What follows it tells that it was durable."""
    (log,) = (path for path in (tmp_path / "c").glob("*.wal") if path.stat().st_size)
    raw = bytearray(log.read_bytes())
    at = raw.rindex(b"x" * 100)  # the message that was put before the last point
    raw[at] ^= 1
    log.write_bytes(raw)
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert cache.vouched is None


def test_files_that_were_found_damaged_are_not_used_again(tmp_path: Path, number: int) -> None:
    """A block is checked when its hour is read."""
    for path in (tmp_path / "c").glob("*.delay"):
        zero(path)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([number])
        assert cache.vouched == b"second"
        cache.take_due(number, END, 1, 1)
        assert "is damaged" in cache.loss
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert cache.vouched is None


def test_files_of_an_earlier_version_are_not_used(tmp_path: Path) -> None:
    """They have no table."""
    with closing(PartitionStore(tmp_path / "c")) as store:
        store.number(b"p\0 1")
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.vouched, cache.names()) == (None, {b"": 0})


def test_files_with_many_numbers_are_not_used(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takeover takes one, and there are 65,536."""
    monkeypatch.setattr(cache_module, "NUMBERS_MAX", 3)
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.vouched, cache.names()) == (None, {b"": 0})


def test_files_in_use_are_left_alone(tmp_path: Path, number: int) -> None:
    """Two processes with the same folder are a mistake of their configuration."""
    with closing(LocalCache(tmp_path / "c")):
        with pytest.raises(StateError, match="in use"):
            LocalCache(tmp_path / "c")
        assert list((tmp_path / "c").glob("*.delay"))


def test_a_log_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is written that nobody has vouched for, and the files are not used again."""
    monkeypatch.setattr(journal, "ASKED_BYTES_MAX", 1_000)
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.retain([])
        number = cache.begin_partition(b"p")
        while not cache.asks:
            put(cache, number, 1)
            cache._journal._do(cache._journal.begin_sync(ends=True))
        put(cache, number, *range(2, 100))
        for _ in range(3):
            cache.sync()
        assert not cache.asks
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert cache.vouched is None


def test_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    """A message can be taken before it is durable here: the broker has it."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = cache.number(b"p")
        cache.put(number, [(DUE_MS, 1, 0, NO_TIMESTAMP, NO_TAGS, None, b"", b"x")])
        assert [held.value for held in cache.take_due(number, END, 9, 9)] == [b"x"]


def test_the_space_of_partitions_that_left_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of an hour to come is removed when nothing is left there, and the hour can be used again."""
    monkeypatch.setattr(hours, "WASTE_BYTES_MAX", 1 << 20)
    with closing(LocalCache(tmp_path / "c")) as cache:
        for take in range(4):
            number = cache.number(b"p%d" % take)
            cache.adopt(
                number,
                [
                    (DUE_MS << SEQUENCE_BITS | i, i, 1, NO_TIMESTAMP, NO_TAGS, None, b"", bytes(4096))
                    for i in range(500)
                ],
            )
            assert cache.held(number) == 500
            cache.sync()
            cache.drop(number)
            for _ in range(8):
                cache.sync()
        assert cache.disk_bytes() < 1 << 20
        number = cache.number(b"last")
        cache.put(number, [(DUE_MS, 1, 0, NO_TIMESTAMP, NO_TAGS, None, b"", b"x")])
        assert [held.value for held in cache.take_due(number, END, 9, 9)] == [b"x"]


def test_one_of_several_messages_at_a_position_is_removed(tmp_path: Path) -> None:
    """It is the one with the epoch; the other is held."""
    position = DUE_MS << SEQUENCE_BITS
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = cache.number(b"p")
        for epoch in (3, 5):
            cache.adopt(number, [(position, 1, epoch, NO_TIMESTAMP, NO_TAGS, None, b"", b"%d" % epoch)])
        assert not cache.remove(number, position, 4)
        assert cache.remove(number, position, 3)
        assert [held.value for held in cache.take_due(number, END, 9, 9)] == [b"5"]
        assert cache.held(number) == 1
