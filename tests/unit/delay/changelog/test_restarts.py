"""The local files of a changelog at a restart: when they are used, and what is read of the changelog then."""

from __future__ import annotations

import copy

import pytest

from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.changelog import proofs
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.records import CHANGE, claim, kind_of, message_entry, message_key
from sidecar.delay.changelog.store import SPARE_S, ChangelogStore
from sidecar.delay.rows import PARKED_FROM, Held
from sidecar.errors import StateError
from tests.support.changelog_scene import LINEAGE, NAME, Scene
from tests.support.model_changelog import ModelCache


@pytest.fixture
def scene() -> Scene:
    """A process that owns an empty partition, and proved it."""
    scene = Scene()
    scene.commit()
    return scene


def origins(scene: Scene) -> list[int]:
    """The origins of what is held."""
    scene.store.rewind(scene.number)
    return sorted(scene.take())


def foreign(scene: Scene) -> None:
    """Another owner, who was replaced, appends a message."""
    scene.log.add(
        ChangelogEntry(
            message_key(99 << 20, scene.epoch - 1, 77),
            message_entry(LINEAGE, Held(0, 0, 0, 0, NO_TAGS, None, b"", b"")).value,
        )
    )


def removed_changes(scene: Scene) -> int:
    """Number of changes that were removed from the changelog."""
    return sum(kind_of(record.key) == CHANGE and record.value is None for record in scene.log.records)


def is_local(scene: Scene) -> bool:
    """Whether the local files were used."""
    return scene.taken_over.note is not None


def compact(scene: Scene) -> None:
    """Compaction keeps the last record of each key, and no removals."""
    last = {record.key: record for record in scene.log.records}
    scene.log.records = sorted(record for record in last.values() if record.value is not None)


# When they are used


def test_files_are_not_used_before_all_is_removed_that_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with them does not read it, and would not remove it."""
    monkeypatch.setattr(proofs, "GARBAGE_AT_ONCE", 1)
    first = Scene()
    first.commit()
    second = Scene(first.log, first.epoch)
    second.store.keep(second.number, b"state", 0, 0)
    second.land()
    third = Scene(first.log, second.epoch)
    third.commit()
    found = []
    for _ in range(2):
        third.land()
        found.append(is_local(Scene(copy.deepcopy(first.log), third.epoch, third.cache.restarted(lambda: 0.99))))
    assert found == [False, True]


def test_a_restart_reads_what_has_not_entered_the_files(scene: Scene) -> None:
    """And the last record that has."""
    scene.put(10, 20, 30)
    scene.land()
    scene.put(40, first=3)
    scene.changelog.land(1)
    after = scene.restarted()
    assert (origins(after), after.taken_over.read) == ([0, 1, 2, 3], 2)


def test_what_was_put_and_not_acknowledged_is_not_in_the_files(scene: Scene) -> None:
    """The source is read again from the commit, and it is put then."""
    scene.put(10)
    scene.land()
    scene.put(20, first=1)
    after = scene.restarted()
    assert (origins(after), list(after.store.rows.known(after.number))) == ([0], [0])


def test_another_owner_makes_the_files_worthless(scene: Scene) -> None:
    """The commit names its epoch."""
    scene.put(10)
    scene.land()
    other = Scene(scene.log, scene.epoch)
    other.commit()
    after = scene.restarted(other.epoch)
    assert (origins(after), is_local(after)) == ([0], False)


def test_a_log_that_lost_its_end_makes_the_files_worthless(scene: Scene) -> None:
    """What they have may be put again."""
    scene.put(10)
    scene.land()
    del scene.log.records[-1]
    assert not is_local(scene.restarted())


def test_a_later_record_of_the_owner_shows_that_the_log_did_not_lose_its_end(scene: Scene) -> None:
    """Compaction has removed the last record that the files have."""
    scene.put(10)
    scene.land()
    place = scene.log.records[-1]
    scene.put(20, first=1)
    scene.changelog.land(1)
    scene.log.records.remove(place)
    assert is_local(scene.restarted())


def test_files_are_not_used_behind_what_another_owner_appended(scene: Scene) -> None:
    """It would count later, since nobody reads and removes it."""
    foreign(scene)
    scene.put(10)
    scene.land()
    after = scene.restarted()
    assert (origins(after), is_local(after)) == ([0], False)
    assert after.removed == [77]


def test_what_another_owner_appends_behind_the_files_is_removed(scene: Scene) -> None:
    """It is read."""
    scene.put(10)
    scene.land()
    foreign(scene)
    after = scene.restarted()
    assert (is_local(after), after.removed) == (True, [77])


def test_files_are_not_used_behind_a_claim_of_another_owner(scene: Scene) -> None:
    """It is an owner as soon as a commit says so."""
    scene.log.add(claim())
    scene.put(10)
    scene.land()
    assert not is_local(scene.restarted())


def test_files_are_used_again_after_an_attempt_that_failed(scene: Scene) -> None:
    """A broker that is down for a second costs no restore."""
    scene.put(10)
    scene.land()
    store = ChangelogStore(scene.cache.restarted(lambda: 0.99).local, scene.changelog)
    number, note = store.begin_partition(NAME)
    store.abandon(number)
    assert store.begin_partition(NAME) == (number, note)
    assert note is not None


def test_files_of_a_partition_that_comes_back_are_used(scene: Scene) -> None:
    """As they were without what was on the way, which may never come."""
    scene.put(10)
    scene.land()
    scene.put(20, first=1)
    scene.store.leave(scene.number)
    scene.number = scene.own(scene.epoch)
    assert (is_local(scene), origins(scene)) == (True, [0])


def test_files_that_nobody_needs_are_removed(scene: Scene) -> None:
    """The partition is on another host."""
    scene.put(10)
    scene.land()
    cache = scene.cache.restarted(lambda: 0.99)
    store = ChangelogStore(cache.local, scene.changelog, lambda: scene.now_s)
    before = sum(map(cache.held, cache.numbers()))
    scene.now_s += SPARE_S
    store.writes.begin_sync()
    assert (before, sum(map(cache.held, cache.numbers())), store.begin_partition(NAME)[1]) == (1, 0, None)


def test_files_of_a_takeover_that_did_not_end_are_not_used(scene: Scene) -> None:
    """Some of what was read is in them."""
    scene.put(10)
    scene.land()
    after = scene.restarted()
    assert is_local(after)
    assert not is_local(after.restarted(scene.epoch))


# What is read


def test_the_state_is_that_of_the_files_if_none_follows(scene: Scene) -> None:
    """The changelog has it before the place."""
    kept = scene.restarted().taken_over.kept
    assert kept is not None
    assert kept.state == b"state"


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_was_delivered_is_ended_and_removed(scene: Scene, is_kept: bool) -> None:
    """The watermark tells, also if the process could not remove it, or note the state."""
    first, _ = scene.put(10, 20)
    scene.land()
    scene.take()
    scene.store.keep(scene.number, b"later", first + 1, first + 1)
    scene.changelog.land(1)
    if is_kept:
        scene.store.writes.poll()
    after = scene.restarted()
    after.store.committed(after.number, first + 1)
    after.land()
    after.land()
    assert (origins(after), after.removed, is_local(after)) == ([1], [0], True)


def test_a_message_that_was_moved_stays_there(scene: Scene) -> None:
    """All of its records are removed with it."""
    (position,) = scene.put(10_000)
    scene.land()
    earlier = scene.store.release(scene.number, position, 10)
    scene.land()
    after = scene.restarted()
    after.commit()
    assert is_local(after)
    assert [held.position for held in after.store.take_due(after.number, 1 << 62, 9, 99)] == [earlier]
    after.store.keep(after.number, b"", 1 << 40, 1 << 40)
    after.store.committed(after.number, 1 << 40)
    after.land()
    assert (after.removed, removed_changes(after)) == ([0], 1)


def test_a_message_that_was_moved_twice_is_where_it_was_moved_last(scene: Scene) -> None:
    """The second move has not entered the files."""
    (position,) = scene.put(10_000)
    scene.land()
    earlier = scene.store.release(scene.number, position, 5_000)
    scene.land()
    last = scene.store.release(scene.number, earlier or 0, 10)
    scene.changelog.land(1)
    after = scene.restarted()
    assert is_local(after)
    assert [held.position for held in after.store.take_due(after.number, 1 << 62, 9, 99)] == [last]


# What is removed


def cancelled(scene: Scene) -> ModelCache:
    """A message is cancelled for good; the files as they were before."""
    (position,) = scene.put(10)
    scene.land()
    before = scene.cache.restarted(lambda: 0.99)
    scene.store.cancel(scene.number, position)
    scene.land()
    scene.store.forget_cancelled(scene.number, [position])
    scene.land()
    return before


def test_records_of_a_cancelled_message_are_removed(scene: Scene) -> None:
    """The files have the change, so a start uses them."""
    cancelled(scene)
    assert (scene.removed, removed_changes(scene)) == ([0], 1)
    after = scene.restarted()
    assert (origins(after), is_local(after)) == ([], True)


def test_an_older_copy_does_not_bring_a_cancelled_message_back(scene: Scene) -> None:
    """Its removal was compacted away."""
    before = cancelled(scene)
    compact(scene)
    after = Scene(scene.log, scene.epoch, before)
    assert (origins(after), is_local(after)) == ([], False)


def test_an_older_copy_does_not_bring_a_moved_message_back(scene: Scene) -> None:
    """It was delivered at its new time, which is below the watermark, and the old one is not."""
    (position,) = scene.put(10_000)
    scene.land()
    before = scene.cache.restarted(lambda: 0.99)
    scene.store.release(scene.number, position, 10)
    scene.land()
    scene.take()
    scene.store.keep(scene.number, b"later", 1 << 31, 1 << 31)
    scene.land()
    scene.store.committed(scene.number, 1 << 31)
    scene.land()
    compact(scene)
    after = Scene(scene.log, scene.epoch, before)
    assert (scene.removed, origins(after), is_local(after)) == ([], [], False)


def test_an_older_copy_does_not_bring_a_parked_part_back(scene: Scene) -> None:
    """The changelog tells of its end behind the place."""
    scene.store.park(scene.number, Held(PARKED_FROM, 4, 0, None, NO_TAGS, None, b"", b"part"))
    scene.land()
    before = scene.cache.restarted(lambda: 0.99)
    assert scene.store.cancel(scene.number, PARKED_FROM)
    scene.changelog.land(1)
    after = Scene(scene.log, scene.epoch, before)
    assert is_local(after)
    assert not after.store.rows.parked(after.number)


def test_nothing_is_written_while_nothing_comes(scene: Scene) -> None:
    """A daemon that is idle leaves its disk and the changelog alone."""
    scene.put(10)
    scene.land()
    before = scene.cache.writes.changes, list(scene.log.records)
    for _ in range(3):
        scene.now_s += 60
        scene.sync()
        scene.land()
    assert (scene.cache.writes.changes, scene.log.records) == before


def test_a_full_disk_delays_what_is_acknowledged(scene: Scene) -> None:
    """No more is put, and nothing is lost."""
    scene.put(10)
    scene.cache.refuses = True
    scene.land()
    with pytest.raises(StateError, match="full"):
        scene.put(20, first=1)
    before = scene.take(), scene.store.writes.synced == scene.store.writes.changes
    scene.cache.refuses = False
    scene.land()
    after = scene.take(), scene.store.writes.synced == scene.store.writes.changes
    assert (before, after) == (([], False), ([0], True))
