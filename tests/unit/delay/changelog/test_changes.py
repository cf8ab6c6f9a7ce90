"""Messages of a changelog that were cancelled or brought forward: what the next owner makes of them."""

from __future__ import annotations

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.partition_state import Stores
from sidecar.delay.changelog.records import CANCELLED, CHANGE, change_entry, message_key, read_change
from sidecar.delay.changelog.takeover import Start, Takeover
from tests.support.changelog_scene import LINEAGE, TP, Scene


@pytest.fixture
def scene() -> Scene:
    """A process that owns an empty partition, and proved it."""
    scene = Scene()
    scene.commit()
    return scene


def restarted(scene: Scene) -> Scene:
    """The process that follows, with what the log has."""
    scene.land()
    return Scene(scene.log, scene.epoch)


def changes(scene: Scene) -> list[bool]:
    """Of each record of a change, whether it is there or removed."""
    return [record.value is not None for record in scene.log.records if record.key[:1] == CHANGE]


def test_a_cancelled_message_is_not_restored(scene: Scene) -> None:
    """Neither before nor after it was removed from the changelog, where its change goes last."""
    first, _ = scene.put(1_000, 2_000)
    scene.land()
    assert scene.store.cancel(scene.number, first)
    assert not scene.store.cancel(scene.number, first)
    assert restarted(scene).take() == [1]
    scene.store.forget_cancelled(scene.number, [first])
    assert restarted(scene).take() == [1]
    assert scene.removed == [0]
    assert changes(scene) == [True, False]
    assert [record.key[:1] for record in scene.log.records if record.value is None][-2:] == [b"m", CHANGE]


def test_a_message_brought_forward_is_restored_there(scene: Scene) -> None:
    """After one change and after two; once it is ended, message and changes are removed."""
    first, second = scene.put(5_000_000, 2_000)
    scene.land()
    moved = scene.store.release(scene.number, first, 1_000_000)
    assert moved is not None
    scene.land()
    again = scene.store.release(scene.number, moved, 500)
    assert again is not None
    after = restarted(scene)
    assert [held.position for held in after.cache.take_due(after.number, 1 << 62, 9, 9)] == [again, second]
    scene.land()
    assert scene.take() == [0, 1]
    scene.store.keep(scene.number, b"", second, 0)
    scene.store.committed(scene.number, second)
    scene.land()
    assert scene.removed == [0]
    assert changes(scene) == [True, True, False, False]
    assert restarted(scene).take() == [1]


def test_a_message_brought_forward_can_be_cancelled(scene: Scene) -> None:
    """All that the changelog has of it is removed."""
    (first,) = scene.put(5_000_000)
    scene.land()
    moved = scene.store.release(scene.number, first, 500)
    assert moved is not None
    scene.land()
    assert scene.store.cancel(scene.number, moved)
    assert restarted(scene).take() == []
    scene.store.forget_cancelled(scene.number, [moved])
    scene.land()
    assert (scene.removed, changes(scene)) == ([0], [True, True, False, False])


def test_a_message_that_is_being_changed_is_not_changed_again(scene: Scene) -> None:
    """It is found at neither position, until the broker has acknowledged the first change."""
    first, second = scene.put(5_000_000, 6_000_000)
    before = scene.store.cancel(scene.number, first), scene.store.release(scene.number, second, 500)
    scene.land()
    moved = scene.store.release(scene.number, second, 500)
    assert (before, scene.store.is_moving(scene.number)) == ((False, None), True)
    assert moved is not None
    assert [scene.store.cancel(scene.number, position) for position in (second, moved)] == [False, False]
    scene.land()
    assert not scene.store.is_moving(scene.number)
    assert scene.store.cancel(scene.number, moved)


def test_nothing_is_taken_before_its_new_time_is_acknowledged(scene: Scene) -> None:
    """The broker may not have it, and then the next owner delivers it at the old one."""
    (first,) = scene.put(5_000_000)
    scene.land()
    scene.store.release(scene.number, first, 500)
    assert scene.take() == []
    scene.land()
    assert scene.take() == [0]


def test_a_change_of_an_owner_that_was_replaced_does_not_count(scene: Scene) -> None:
    """Its record lies behind the claim of the next owner, which removes it."""
    (first,) = scene.put(1_000)
    after = restarted(scene)
    after.store.committed(after.number, 0)
    after.land()
    scene.store.cancel(scene.number, first)
    last = restarted_after(after, scene)
    assert last.take() == [0]
    assert changes(scene) == [True, False]


def restarted_after(after: Scene, zombie: Scene) -> Scene:
    """The owner behind `after`; what `zombie` appended has arrived."""
    zombie.land()
    return restarted(after)


def test_what_ended_at_its_new_time_is_not_restored(scene: Scene) -> None:
    """The watermark that counts is above its new position, and its removal was lost."""
    first, _ = scene.put(5_000_000, 6_000_000)
    scene.land()
    moved = scene.store.release(scene.number, first, 500)
    assert moved is not None
    scene.store.keep(scene.number, b"state", moved + 1, 0)
    after = restarted(scene)
    assert after.take() == [1]
    after.store.committed(after.number, 0)
    after.land()
    after.land()
    assert after.removed == [0]


def test_a_cancelled_message_that_is_read_again_stays_known(scene: Scene) -> None:
    """The source's commit is below it: its records stay, so that each owner to come knows that it was put."""
    (position,) = scene.put(1_000, first=3)
    scene.land()
    scene.store.cancel(scene.number, position)
    scene.land()
    start = Start(Stores(7, (), scene.epoch), LINEAGE, 0, 2, 0)
    taken_over = Takeover(scene.log, TP, start, lambda rows, _: None).run()
    assert (list(taken_over.known), [each.origin for each in taken_over.ended]) == ([3], [3])
    assert message_key(position, scene.epoch, 3) not in taken_over.garbage


def test_a_change_has_a_key_for_each_new_position() -> None:
    """So a key never comes twice: compaction keeps the last record of a key, which may be one that does not count."""
    message = message_key(7 << SEQUENCE_BITS, 3, 9)
    entries = [change_entry(message, 4, position) for position in (5, 6, CANCELLED)]
    assert len({entry.key for entry in entries}) == 3
    assert [read_change(*entry) for entry in entries] == [(message, 4, 5), (message, 4, 6), (message, 4, CANCELLED)]
    for value in (b"", b"\x02"):
        with pytest.raises(ValueError, match=r"empty|version 02"):
            read_change(entries[0].key, value)
