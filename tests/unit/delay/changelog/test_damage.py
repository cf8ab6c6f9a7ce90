"""A store in a changelog whose local files are damaged: what they have lost is in the changelog."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyroaring import BitMap64

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.records import RecordLineage
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.takeover import Start, TakenOver, Takeover
from sidecar.delay.disk.blocks import POSITION_MAX
from sidecar.errors import StateError
from tests.support.model_changelog import ModelChangelog, ModelLog

TP, NAME, LINEAGE = TopicPartition("t", 0), b"t0", RecordLineage(1, 7)
DUE_MS = 1_000_000


@pytest.fixture
def log() -> ModelLog:
    """An empty changelog."""
    return ModelLog(random.Random(1).random)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[LocalCache]:
    """Local files."""
    cache = LocalCache(tmp_path / "cache")
    yield cache
    cache.close()


@pytest.fixture
def store(log: ModelLog, cache: LocalCache) -> ChangelogStore:
    """A store with 100 messages whose bytes are in a file."""
    store = ChangelogStore(cache, ModelChangelog(log))
    number, _ = store.begin_partition(NAME)
    store.own(NAME, number, TP, LINEAGE, TakenOver(7, 1, None, BitMap64(), [], [], is_lost=False))
    store.put(number, [(DUE_MS, origin, 0, 0, NO_TAGS, None, b"", b"%d" % origin) for origin in range(100)])
    store.sync()
    cache._lanes.flush()
    return store


def overwrite(path: Path) -> None:
    """Put zeros in the place of all bytes."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [overwrite, Path.unlink])
def test_what_a_damaged_file_has_lost_is_not_passed_over(
    store: ChangelogStore, log: ModelLog, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """Neither is a later message delivered, nor a state kept that ends it; the daemon stops, and restores it."""
    for path in (tmp_path / "cache").glob("*.delay"):
        harm(path)
    number = store.number(NAME)
    records = list(log.records)
    with pytest.raises(StateError, match="is restored at the next start"):
        store.take_due(number, POSITION_MAX, 1_000, 1 << 20)
    with pytest.raises(StateError, match="is restored at the next start"):
        store.keep(number, b"", DUE_MS + 1 << SEQUENCE_BITS, 0)
    store.sync()
    assert log.records == records
    assert "is restored at the next start" in str(store.broken)


def test_files_that_were_removed_are_no_reason_to_wait(store: ChangelogStore, tmp_path: Path) -> None:
    """The daemon stops instead, and restores them."""
    assert store.broken is None
    for path in (tmp_path / "cache").glob("*.wal"):
        path.unlink()
    assert store.in_place()
    assert "was moved or removed" in str(store.broken)


@pytest.mark.parametrize(("epoch", "is_lost"), [(1, True), (0, False)])
def test_only_a_changelog_that_a_commit_names_can_be_lost(log: ModelLog, epoch: int, *, is_lost: bool) -> None:
    """Before, the messages may have been in a local store, which has an id, too."""
    start = Start(Stores(8, (), epoch), LINEAGE, 0, 0, 0)
    assert Takeover(log, TP, start, lambda _, __: None).run().is_lost == is_lost
