"""The rows of a changelog on the local disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.disk.blocks import NO_TIMESTAMP, SEQUENCE_BITS
from sidecar.delay.disk.hour import HOUR_MS

DUE_MS = 1_000 * HOUR_MS
END = 1 << 62


def test_a_cache_begins_empty(tmp_path: Path) -> None:
    """What an earlier process left there is gone."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        cache.put(cache.number(b"p"), [(DUE_MS, 1, 0, NO_TIMESTAMP, None, b"", b"x")])
        cache.sync()
    with closing(LocalCache(tmp_path / "c")) as cache:
        assert (cache.held(cache.number(b"p")), list(cache.known(0))) == (0, [])


def test_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    """A message can be taken before it is durable here: the broker has it."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = cache.number(b"p")
        cache.put(number, [(DUE_MS, 1, 0, NO_TIMESTAMP, None, b"", b"x")])
        assert [held.value for held in cache.take(number, END, 9, 9)] == [b"x"]


def test_the_space_of_partitions_that_left_is_given_back(tmp_path: Path) -> None:
    """The file of an hour to come is removed when nothing is left there, and the hour can be used again."""
    with closing(LocalCache(tmp_path / "c")) as cache:
        for take in range(4):
            number = cache.number(b"p%d" % take)
            cache.adopt(
                number, [(DUE_MS << SEQUENCE_BITS | i, i, 1, NO_TIMESTAMP, None, b"", bytes(4096)) for i in range(500)]
            )
            assert cache.held(number) == 500
            cache.sync()
            cache.drop(number)
            for _ in range(8):
                cache.sync()
        assert cache.disk_bytes() < 1 << 20
        number = cache.number(b"last")
        cache.put(number, [(DUE_MS, 1, 0, NO_TIMESTAMP, None, b"", b"x")])
        assert [held.value for held in cache.take(number, END, 9, 9)] == [b"x"]


def test_one_of_several_messages_at_a_position_is_removed(tmp_path: Path) -> None:
    """It is the one with the epoch; the other is held."""
    position = DUE_MS << SEQUENCE_BITS
    with closing(LocalCache(tmp_path / "c")) as cache:
        number = cache.number(b"p")
        for epoch in (3, 5):
            cache.adopt(number, [(position, 1, epoch, NO_TIMESTAMP, None, b"", b"%d" % epoch)])
        assert not cache.remove(number, position, 4)
        assert cache.remove(number, position, 3)
        assert [held.value for held in cache.take(number, END, 9, 9)] == [b"5"]
        assert cache.held(number) == 1
