"""A store whose changelog fences: what an owner that was replaced appends never becomes durable."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import NO_STORES
from sidecar.delay.changelog.reach import REACH_KEY, Handed, read_reach
from sidecar.delay.changelog.records import MESSAGE, RecordLineage, read_message_key
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.takeover import FencedTakeover, Start, TakenOver
from sidecar.delay.rows import Held
from sidecar.errors import StateError
from tests.support.changelog_scene import LINEAGE, NAME, TP
from tests.support.model_changelog import ModelCache
from tests.support.model_table import ModelAppender, ModelTable, ModelTables


class Scene:
    """A process that owns the only partition."""

    def __init__(self, table: ModelTable | None = None, lineage: RecordLineage = LINEAGE, at: int = 0) -> None:
        self.table = table or ModelTable(lambda: 0.99)
        self.tables = ModelTables(self.table)
        self.changelog = ModelAppender(self.tables)
        self.store = ChangelogStore(ModelCache().local, self.changelog)
        self.number, _ = self.store.begin_partition(NAME)
        start = Start(NO_STORES, lineage, at, at, 0)
        takeover = FencedTakeover(
            self.tables, TP, start, lambda rows, _: self.store.adopt(self.number, rows), handed=Handed(at)
        )
        self.found: TakenOver = takeover.run()
        self.store.own(NAME, self.number, TP, lineage, self.found)

    def name(self) -> None:
        """The source takes a commit."""
        self.store.keep(self.number, b"state", 0, 0)
        self.store.committed(self.number, 0)
        self.land()

    def put(self, *origins: int) -> Sequence[int]:
        """Put messages."""
        rows: list[Held] = [
            Held(5_000 << SEQUENCE_BITS, origin, 0, None, NO_TAGS, None, b"", b"x") for origin in origins
        ]
        return self.store.put(self.number, rows)

    def land(self) -> None:
        """All ends come."""
        self.changelog.land(1 << 30)
        self.store.writes.poll()

    def held(self) -> list[int]:
        """The origins in the table."""
        records = [record for record in self.table.records if record.key[:1] == MESSAGE]
        return sorted(read_message_key(record.key).origin for record in records)


def test_what_is_refused_is_not_durable() -> None:
    """The partition is lost, and nothing counts as synced until it is left."""
    old = Scene()
    old.name()
    old.put(3)
    Scene(old.table)
    before = old.store.writes.synced
    old.land()
    assert list(old.store.lost()) == [TP]
    assert old.store.writes.synced == before < old.store.writes.changes
    with pytest.raises(StateError, match="another process has claimed"):
        old.store.writes.sync()
    old.store.leave(old.number)
    assert not old.store.lost()
    assert old.store.writes.synced == old.store.writes.changes
    assert old.held() == []


def test_an_end_that_comes_after_the_partition_was_left_is_ignored() -> None:
    """Refused or not."""
    for is_replaced in (False, True):
        old = Scene()
        old.name()
        old.put(3)
        if is_replaced:
            Scene(old.table)
        old.store.leave(old.number)
        old.land()
        assert not old.store.lost()
        assert old.store.writes.synced == old.store.writes.changes


def test_all_that_was_put_is_known_to_the_next_owner() -> None:
    """Also what has ended and is removed: the table tells how far the source was read."""
    old = Scene()
    old.name()
    old.put(3, 8)
    old.land()
    old.table.records = [record for record in old.table.records if record.key[:1] != MESSAGE]
    assert list(Scene(old.table, at=2).found.known) == [2, 3, 4, 5, 6, 7, 8]


def test_nothing_is_appended_before_a_commit_but_the_claim() -> None:
    """A process that is not the source's owner any more changes nothing with what it knows of the source."""
    old = Scene()
    old.name()
    old.put(3, 8)
    old.land()
    records = list(old.table.records)
    zombie = Scene(old.table, RecordLineage(9, LINEAGE.topic), at=5)
    zombie.store.keep(zombie.number, b"other", 0, 0)
    zombie.land()
    assert old.table.records == records
    zombie.store.committed(zombie.number, 0)  # it is the owner, after an operator's reset
    zombie.land()
    assert zombie.held() == [3]


def test_the_last_committed_offset_is_told_until_all_that_was_put_is_below() -> None:
    """A lower offset is recognized as a reset as long as that matters."""
    owner = Scene()
    owner.name()
    owner.put(3, 8)
    told = []
    for committed in (2, 7, 7, 9, 12):
        owner.store.floor(owner.number, committed)
        owner.land()
        raw = owner.tables.find(TP, REACH_KEY)
        assert raw
        told.append(read_reach(raw).committed)
    assert told == [2, 7, 7, 9, 9]


def test_a_takeover_begins_with_nothing() -> None:
    """What the local files have of the partition is another owner's, until the table says otherwise."""
    table = Scene().table
    told: list[tuple[int, bool]] = []
    start = Start(NO_STORES, LINEAGE, 0, 0, 0)
    FencedTakeover(
        ModelTables(table), TP, start, lambda rows, anew: told.append((len(rows), anew)), handed=Handed(0)
    ).run()
    assert told[0] == (0, True)
    assert not any(anew for _, anew in told[1:])
