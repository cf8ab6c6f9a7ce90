"""The local files of a changelog at a restart: when they are used, and what is read of the changelog then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.changelog import proofs, vouching
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.records import (
    BOOKMARK,
    CHANGE,
    STATE,
    claim,
    epoch_key,
    kind_of,
    message_entry,
    message_key,
)
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.vouching import SPARE_S
from sidecar.delay.rows import PARKED_FROM, Held
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


# When they are used


def test_no_note_is_taken_before_all_is_removed_that_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with the note reads nothing before the bookmark, and would not find the rest."""
    monkeypatch.setattr(proofs, "GARBAGE_AT_ONCE", 1)
    first = Scene()
    first.commit()
    second = Scene(first.log, first.epoch)
    second.store.keep(second.number, b"state", 0, 0)
    second.land()
    third = Scene(first.log, second.epoch)
    third.commit()
    for _ in range(2):
        third.note()
    appended = [record.key for record in third.log.records if record.value is None or kind_of(record.key) == BOOKMARK]
    states, bookmark = [epoch_key(STATE, each.epoch) for each in (first, second)], epoch_key(BOOKMARK, third.epoch)
    assert appended == [*states, bookmark]


def test_a_restart_reads_what_came_since_the_note(scene: Scene) -> None:
    """The bookmark, and what follows."""
    scene.put(10, 20, 30)
    scene.land()
    scene.note()
    scene.put(40, first=3)
    scene.land()
    after = scene.restarted()
    assert (origins(after), after.taken_over.read) == ([0, 1, 2, 3], 2)


def test_what_was_put_since_the_note_and_not_acknowledged_is_gone(scene: Scene) -> None:
    """The source is read again from the commit, and it is put then."""
    scene.put(10)
    scene.land()
    scene.note()
    scene.put(20, first=1)
    scene.sync()
    after = scene.restarted()
    assert (origins(after), list(after.store.rows.known(after.number))) == ([0], [0])


def test_what_was_on_the_way_at_the_note_is_in_the_files(scene: Scene) -> None:
    """The bookmark is behind it."""
    scene.put(10)
    scene.note()
    after = scene.restarted()
    assert (origins(after), after.taken_over.note is not None) == ([0], True)


def test_nothing_counts_before_the_bookmark_is_acknowledged(scene: Scene) -> None:
    """The messages before it may be nowhere else."""
    scene.put(10)
    scene.now_s += vouching.NOTE_S
    for _ in range(4):
        scene.sync()
    assert origins(scene.restarted()) == []


def test_another_owner_makes_the_files_worthless(scene: Scene) -> None:
    """The commit names its epoch."""
    scene.put(10)
    scene.land()
    scene.note()
    other = Scene(scene.log, scene.epoch)
    other.commit()
    after = scene.restarted(other.epoch)
    assert (origins(after), after.taken_over.note) == ([0], None)


def test_a_log_that_lost_its_end_makes_the_files_worthless(scene: Scene) -> None:
    """What they have may be put again."""
    scene.put(10)
    scene.land()
    scene.note()
    del scene.log.records[-1]
    assert scene.restarted().taken_over.note is None


def test_no_note_is_taken_behind_what_another_owner_appended(scene: Scene) -> None:
    """It would count later, since nobody reads and removes it."""
    foreign(scene)
    scene.put(10)
    scene.land()
    scene.note()
    after = scene.restarted()
    assert (origins(after), after.taken_over.note) == ([0], None)
    assert after.removed == [77]


def test_what_another_owner_appends_behind_the_note_is_removed(scene: Scene) -> None:
    """It is read."""
    scene.put(10)
    scene.land()
    scene.note()
    foreign(scene)
    after = scene.restarted()
    assert (after.taken_over.note is not None, after.removed) == (True, [77])


def test_no_note_follows_a_claim_of_another_owner(scene: Scene) -> None:
    """It is an owner as soon as a commit says so."""
    scene.log.add(claim())
    scene.put(10)
    scene.land()
    scene.note()
    assert scene.restarted().taken_over.note is None


def test_files_are_used_again_after_an_attempt_that_failed(scene: Scene) -> None:
    """A broker that is down for a second costs no restore."""
    scene.put(10)
    scene.land()
    scene.note()
    store = ChangelogStore(scene.cache.restarted(lambda: 0.99), scene.changelog)
    number, note = store.begin_partition(NAME)
    store.abandon(number)
    assert store.begin_partition(NAME) == (number, note)
    assert note is not None


def test_files_that_nobody_needs_are_removed(scene: Scene) -> None:
    """The partition is on another host."""
    scene.put(10)
    scene.land()
    scene.note()
    cache = scene.cache.restarted(lambda: 0.99)
    store = ChangelogStore(cache, scene.changelog, lambda: scene.now_s)
    before = sum(map(cache.held, cache.numbers()))
    scene.now_s += SPARE_S
    store.writes.begin_sync()
    assert (before, sum(map(cache.held, cache.numbers())), store.begin_partition(NAME)[1]) == (1, 0, None)


# What is read


def test_the_state_is_that_of_the_note_if_none_follows(scene: Scene) -> None:
    """The changelog has it below the bookmark."""
    scene.note()
    kept = scene.restarted().taken_over.kept
    assert kept is not None
    assert kept.state == b"state"


def test_what_was_delivered_since_the_note_is_ended_and_removed(scene: Scene) -> None:
    """The watermark tells, also if the process could not remove it."""
    first, _ = scene.put(10, 20)
    scene.land()
    scene.note()
    scene.take()
    scene.store.keep(scene.number, b"later", first + 1, first + 1)
    scene.land()
    after = scene.restarted()
    after.store.committed(after.number, first + 1)
    after.land()
    after.land()
    assert (origins(after), after.removed) == ([1], [0])


def test_a_message_that_was_moved_before_the_note_stays_there(scene: Scene) -> None:
    """All of its records are removed with it."""
    (position,) = scene.put(10_000)
    scene.land()
    earlier = scene.store.release(scene.number, position, 10)
    scene.land()
    scene.note()
    after = scene.restarted()
    after.commit()
    assert [held.position for held in after.store.take_due(after.number, 1 << 62, 9, 99)] == [earlier]
    after.store.keep(after.number, b"", 1 << 40, 1 << 40)
    after.store.committed(after.number, 1 << 40)
    after.land()
    assert (after.removed, removed_changes(after)) == ([0], 1)


def test_a_message_that_was_moved_twice_is_where_it_was_moved_last(scene: Scene) -> None:
    """Once before the note, and once behind it."""
    (position,) = scene.put(10_000)
    scene.land()
    earlier = scene.store.release(scene.number, position, 5_000)
    scene.land()
    scene.note()
    last = scene.store.release(scene.number, earlier or 0, 10)
    scene.land()
    after = scene.restarted()
    assert [held.position for held in after.store.take_due(after.number, 1 << 62, 9, 99)] == [last]


# What is removed


def cancelled(scene: Scene) -> None:
    """A message is cancelled for good, after the first note."""
    (position,) = scene.put(10)
    scene.land()
    scene.note()
    scene.store.cancel(scene.number, position)
    scene.land()
    scene.store.forget_cancelled(scene.number, position)
    scene.land()


def test_records_of_a_cancelled_message_stay_until_it_is_noted(scene: Scene) -> None:
    """Compaction would hide from the next start that it was cancelled."""
    cancelled(scene)
    assert scene.removed == []
    scene.note()
    assert (scene.removed, removed_changes(scene)) == ([0], 1)


def test_an_older_copy_does_not_bring_a_cancelled_message_back(scene: Scene) -> None:
    """Its removal was compacted away."""
    cancelled(scene)
    copy = scene.cache.copies[-1]
    scene.note()
    last = {record.key: record for record in scene.log.records}
    scene.log.records = [record for record in last.values() if record.value is not None]
    scene.log.records.sort()
    after = Scene(scene.log, scene.epoch, ModelCache(1, copy))
    assert (origins(after), after.taken_over.note) == ([], None)


def unparked(scene: Scene) -> None:
    """A parked part is removed, after a note has it."""
    scene.store.park(scene.number, Held(PARKED_FROM, 4, 0, None, NO_TAGS, None, b"", b"part"))
    scene.land()
    scene.note()
    assert scene.store.cancel(scene.number, PARKED_FROM)
    scene.store.forget_cancelled(scene.number, PARKED_FROM)
    scene.land()


def test_the_record_of_a_parked_part_stays_until_its_end_is_noted(scene: Scene) -> None:
    """Compaction would hide from the next start that it has ended."""
    unparked(scene)
    assert scene.removed == []
    scene.note()
    assert (scene.removed, removed_changes(scene)) == ([4], 1)


def test_an_older_note_does_not_bring_a_parked_part_back(scene: Scene) -> None:
    """The changelog tells of its end behind the note."""
    unparked(scene)
    after = scene.restarted()
    assert after.taken_over.note is not None
    assert not after.store.rows.parked(after.number)


def test_records_that_are_too_many_for_a_note_are_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """No note holds any more, then."""
    monkeypatch.setattr(vouching, "KEYS_MAX", 0)
    cancelled(scene)
    assert scene.removed == [0]
    assert scene.restarted().taken_over.note is None


def test_records_of_a_cancelled_message_are_removed_if_no_note_follows(scene: Scene) -> None:
    """Another owner has appended something."""
    (position,) = scene.put(10)
    scene.land()
    scene.note()
    foreign(scene)
    scene.store.cancel(scene.number, position)
    scene.land()
    scene.store.forget_cancelled(scene.number, position)
    scene.land()
    assert scene.removed == [0]
    assert scene.restarted().taken_over.note is None


def test_nothing_is_noted_when_nothing_happens(scene: Scene) -> None:
    """An idle process writes nothing."""
    scene.note()
    scene.note()
    records = list(scene.log.records)
    scene.note()
    assert scene.log.records == records


# Bookmarks that no broker acknowledges


def bookmark_on_the_way(scene: Scene) -> None:
    """A note is being taken, and the broker has not acknowledged its bookmark."""
    scene.put(10)
    scene.now_s += vouching.NOTE_S
    for _ in range(3):
        scene.sync()


def leave(scene: Scene) -> None:
    """The partition moves to another owner."""
    scene.store.leave(scene.number)


def lose(scene: Scene) -> None:
    """A later owner claims the partition, and the broker refuses the bookmark; then the partition leaves."""
    Scene(scene.log, scene.epoch)
    scene.changelog.refuse()
    scene.store.writes.poll()
    leave(scene)


@pytest.mark.parametrize("end", [leave, lose])
def test_a_partition_that_leaves_with_its_bookmark_on_the_way_stops_no_later_note(
    scene: Scene, end: Callable[[Scene], None]
) -> None:
    """The next owner of the same process takes notes, so checkpoints go on."""
    bookmark_on_the_way(scene)
    end(scene)
    scene.land()
    scene.number = scene.own(scene.epoch)
    scene.commit()
    scene.put(20, first=1)
    scene.note()
    scene.note()
    assert scene.restarted().taken_over.note is not None


def test_a_note_that_is_taken_while_a_partition_leaves_is_of_the_others_alone(scene: Scene) -> None:
    """The partition's bookmark never came, so nothing vouches for its files."""
    bookmark_on_the_way(scene)
    leave(scene)
    scene.note()
    assert scene.restarted().taken_over.note is None


# When notes are taken


def test_nothing_is_written_while_nothing_comes(scene: Scene) -> None:
    """A daemon that is idle leaves its disk alone."""
    scene.put(10)
    scene.land()
    scene.note()
    before = scene.cache.writes.changes
    for _ in range(3):
        scene.note()
    assert scene.cache.writes.changes == before


def test_a_note_comes_before_its_time_where_much_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a restart would read all of it again."""
    scene = Scene()
    scene.store = ChangelogStore(scene.cache, scene.changelog, lambda: scene.now_s, entries_max=3)
    scene.number = scene.own()
    scene.commit()
    scene.put(10, 20, 30)
    scene.land()
    for _ in range(4):
        scene.sync()
        scene.land()
    assert scene.restarted().taken_over.note is not None
