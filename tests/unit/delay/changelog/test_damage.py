"""A store in a changelog whose local files are damaged: what they have lost is in the changelog."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
from sidecar.delay.rows import POSITION_MAX, Held
from sidecar.errors import StateError
from tests.support.failing_rows import DAMAGED, failing
from tests.support.model_changelog import ModelChangelog, ModelLog
from tests.support.partition_store import flushed

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
    store.put(
        number,
        [Held(DUE_MS << SEQUENCE_BITS, origin, 0, 0, NO_TAGS, None, b"", b"%d" % origin) for origin in range(100)],
    )
    store.writes.sync()
    flushed(cache)
    return store


def test_what_a_damaged_file_has_lost_is_not_passed_over(
    store: ChangelogStore, cache: LocalCache, log: ModelLog
) -> None:
    """Neither is a later message delivered, nor a state kept that ends it; the daemon stops, and restores it."""
    number = store.number(NAME)
    records = list(log.records)
    with failing(cache, "iter", error=DAMAGED), pytest.raises(StateError, match="it is restored"):
        store.take_due(number, POSITION_MAX, 1_000, 1 << 20)
    with pytest.raises(StateError, match="is restored at the next start"):
        store.keep(number, b"", DUE_MS + 1 << SEQUENCE_BITS, 0)
    store.writes.sync()
    assert log.records == records
    assert "is restored at the next start" in str(store.writes.broken)


def test_files_that_were_removed_are_no_reason_to_wait(store: ChangelogStore, tmp_path: Path) -> None:
    """The daemon stops instead, and restores them."""
    assert store.writes.broken is None
    (tmp_path / "cache" / "rows").rename(tmp_path / "away")
    assert store.writes.in_place
    assert "was moved or removed" in str(store.writes.broken)


@pytest.mark.parametrize(("epoch", "is_lost"), [(1, True), (0, False)])
def test_only_a_changelog_that_a_commit_names_can_be_lost(log: ModelLog, epoch: int, *, is_lost: bool) -> None:
    """Before, the messages may have been in a local store, which has an id, too."""
    start = Start(Stores(8, (), epoch), LINEAGE, 0, 0, 0)
    assert Takeover(log, TP, start, lambda _, __: None).run().is_lost == is_lost
