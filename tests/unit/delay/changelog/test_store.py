"""A `ChangelogStore`: what is durable, what is removed when, and what happens when the broker does not answer."""

from __future__ import annotations

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import Stores
from sidecar.delay.changelog import appends
from sidecar.delay.changelog import store as store_module
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.records import (
    MessageKey,
    claim,
    message_entry,
    message_key,
    read_message_key,
)
from sidecar.delay.changelog.store import NOT_OWNED, UNACKNOWLEDGED_BYTES_MAX, ChangelogStore
from sidecar.delay.changelog.takeover import Start, Takeover
from sidecar.delay.rows import PARKED_FROM, Held
from sidecar.errors import StateError
from tests.support.changelog_scene import END, LINEAGE, NAME, TP, Scene
from tests.support.model_changelog import ModelCache, ModelChangelog


@pytest.fixture
def scene() -> Scene:
    """A process that owns an empty partition."""
    return Scene()


# Messages


def test_nothing_is_taken_before_it_is_acknowledged(scene: Scene) -> None:
    """The broker may not have it, and then the next owner puts it again."""
    scene.put(10)
    assert scene.take() == []
    scene.land()
    assert scene.take() == [0]


def test_nothing_behind_an_unacknowledged_message_is_taken(scene: Scene) -> None:
    """Messages come in the order in which they are due."""
    scene.put(20)
    scene.land()
    scene.put(10, first=1)
    assert scene.take() == []


def test_what_is_before_unacknowledged_messages_is_taken(scene: Scene) -> None:
    """One that is due later holds nothing up."""
    scene.put(10)
    scene.land()
    scene.put(20, first=1)
    assert scene.take() == [0]


def test_records_have_the_epoch_of_the_owner(scene: Scene) -> None:
    """By it, they count or are void."""
    (position,) = scene.put(10, first=4)
    scene.land()
    assert read_message_key(scene.log.records[-1].key) == MessageKey(position, scene.epoch, 4)


def test_the_next_owner_has_what_was_put() -> None:
    """On any host, from the changelog alone."""
    first = Scene()
    first.put(10, 20)
    first.land()
    second = Scene(first.log)
    second.number = second.own(first.epoch)
    assert second.take() == [0, 1]


def test_the_next_owner_knows_the_origins() -> None:
    """It does not put them again."""
    first = Scene()
    first.put(10, 20, first=4)
    first.land()
    second = Scene(first.log)
    assert list(second.store.rows.known(second.own(first.epoch))) == [4, 5]


def test_the_next_owner_has_the_state() -> None:
    """Below its watermark, all is ended."""
    first = Scene()
    position, _ = first.put(10, 20)
    first.store.keep(first.number, b"state", position + 1, position + 1)
    first.land()
    second = Scene(first.log)
    number = second.own(first.epoch)
    assert (second.store.rows.state(number), second.store.rows.held(number)) == (b"state", 1)


def test_what_is_taken_comes_again_after_a_rewind(scene: Scene) -> None:
    """The core gave the partition up, and takes it again."""
    scene.put(10)
    scene.land()
    scene.take()
    scene.store.rewind(scene.number)
    assert scene.take() == [0]


def test_unacknowledged_bytes_stop_puts(scene: Scene) -> None:
    """They are in memory; nothing is put of what is refused."""
    scene.put(10, value=bytes(UNACKNOWLEDGED_BYTES_MAX))
    with pytest.raises(StateError, match="has not acknowledged"):
        scene.put(20, first=1)
    assert scene.store.rows.held(scene.number) == 1


def test_acknowledged_bytes_let_puts_go_on(scene: Scene) -> None:
    """Once the broker has them."""
    scene.put(10, value=bytes(UNACKNOWLEDGED_BYTES_MAX))
    scene.land()
    scene.put(20, first=1)
    assert scene.store.rows.held(scene.number) == 2


# Ends


def test_a_delivered_message_is_not_removed_before_a_commit(scene: Scene) -> None:
    """A state that no commit stands beside may be that of a zombie."""
    (position,) = scene.put(10)
    scene.land()
    scene.take()
    scene.store.keep(scene.number, b"state", position + 1, position + 1)
    scene.land()
    assert scene.removed == []


def test_a_commit_removes_what_is_below_its_watermark(scene: Scene) -> None:
    """And nothing above it."""
    scene.commit()
    first, _ = scene.put(10, 20)
    scene.land()
    scene.take()
    scene.store.committed(scene.number, first + 1)
    scene.land()
    assert scene.removed == [0]


def test_a_commit_does_not_remove_what_is_at_its_watermark(scene: Scene) -> None:
    """It is the first one that is not settled."""
    scene.commit()
    (position,) = scene.put(10)
    scene.land()
    scene.take()
    scene.store.committed(scene.number, position)
    scene.land()
    assert scene.removed == []


def test_what_is_removed_is_removed_once(scene: Scene) -> None:
    """Each tombstone is kept for a day."""
    scene.commit()
    (position,) = scene.put(10)
    scene.land()
    scene.take()
    for _ in range(2):
        scene.store.committed(scene.number, position + 1)
    scene.land()
    assert scene.removed == [0]


def test_a_message_that_was_taken_twice_is_removed_once(scene: Scene) -> None:
    """It was taken again after a rewind."""
    scene.commit()
    (position,) = scene.put(10)
    scene.land()
    scene.take()
    scene.store.keep(scene.number, b"state", 0, 0)
    scene.store.rewind(scene.number)
    scene.take()
    scene.store.committed(scene.number, position + 1)
    scene.land()
    assert scene.removed == [0]


def test_what_other_owners_left_is_removed_once_the_first_commit_is_proved() -> None:
    """Not before: a reset removes the commit, and then some of it may count."""
    first = Scene()
    (position,) = first.put(10)
    first.store.keep(first.number, b"state", position + 1, position + 1)
    first.land()
    second = ChangelogStore(ModelCache().local, changelog := ModelChangelog(first.log))
    start = Start(Stores(7, (), first.epoch), LINEAGE, 0, 0, END)
    taken_over = Takeover(first.log, TP, start, lambda *_: None).run()
    second.own(NAME, number := second.begin_partition(NAME)[0], TP, LINEAGE, taken_over)
    changelog.land(100)
    assert first.removed == []
    second.committed(number, 0)
    changelog.land(100)
    assert first.removed == []
    second.writes.poll()
    changelog.land(100)
    assert first.removed == [0]


# Epochs


def test_all_owners_have_the_same_place() -> None:
    """So the commit of one tells the next one where the messages are."""
    first = Scene()
    second = Scene(first.log)
    places = [scene.store.place(scene.number) for scene in (first, second)]
    assert len({(place.store, place.scope) for place in places}) == 1


def test_the_place_names_the_epoch(scene: Scene) -> None:
    """It goes into the commit."""
    assert scene.store.place(scene.number).epoch == scene.epoch


def test_a_state_before_the_first_commit_proves_nothing(scene: Scene) -> None:
    """The commit may fail."""
    scene.store.keep(scene.number, b"state", 0, 0)
    scene.land()
    assert scene.proofs == [False]


def test_the_changelog_is_told_of_the_first_commit(scene: Scene) -> None:
    """An operator's reset removes the commit, and then nothing else has the epoch."""
    scene.store.keep(scene.number, b"state", 0, 0)
    scene.store.committed(scene.number, 0)
    scene.land()
    assert scene.proofs == [False, True]


def test_it_is_told_once(scene: Scene) -> None:
    """Later commits prove nothing new."""
    scene.store.keep(scene.number, b"state", 0, 0)
    for _ in range(2):
        scene.store.committed(scene.number, 0)
    scene.land()
    assert scene.proofs == [False, True]


def test_the_epoch_is_proved_once_the_changelog_has_it(scene: Scene) -> None:
    """The commit alone is not enough, nor is an entry on the way."""
    scene.store.keep(scene.number, b"state", 0, 0)
    scene.store.committed(scene.number, 0)
    assert not scene.store.is_proved(NAME)
    scene.land()
    assert scene.store.is_proved(NAME)


def test_a_commit_of_the_source_alone_is_proved(scene: Scene) -> None:
    """It names the epoch, too; what it settles may be in records of this owner, which would not count after a reset."""
    scene.store.keep(scene.number, b"state", 0, 0)
    scene.store.floor(scene.number, 0)
    scene.land()
    assert (scene.proofs, scene.store.is_proved(NAME)) == ([False, True], True)


@pytest.mark.parametrize("is_committed", [False, True])
def test_nothing_is_removed_before_the_epoch_is_proved(is_committed: bool) -> None:
    """After a reset that took the commit away, a parked part that is void for this owner may count."""
    first = Scene()
    first.commit()
    first.store.park(first.number, Held(position := PARKED_FROM, 3, 0, None, NO_TAGS, None, b"", b"rows"))
    first.land()
    second = Scene(first.log, first.epoch)
    if is_committed:
        second.store.committed(second.number, 0)
    assert second.store.cancel(second.number, position)
    second.store.forget_cancelled(second.number, [position])
    second.changelog.land(1 << 30)
    assert first.removed == []
    second.store.writes.poll()
    second.land()
    assert first.removed == ([3] if is_committed else [])


def test_a_proof_behind_a_record_of_another_owner_is_none(scene: Scene) -> None:
    """It may be a claim, and whoever made it has not read the proof: the partition is taken over anew."""
    scene.store.keep(scene.number, b"state", 0, 0)
    scene.log.append(TP, [claim()])
    scene.store.committed(scene.number, 0)
    scene.land()
    assert not scene.store.is_proved(NAME)
    assert list(scene.store.lost()) == [TP]
    scene.store.leave(scene.number)
    assert not scene.store.lost()


# Partitions that leave


def test_a_partition_that_left_has_no_number(scene: Scene) -> None:
    """Other owners have its messages."""
    scene.put(10)
    scene.store.leave(scene.number)
    assert (scene.store.number(NAME), scene.store.rows.held(scene.number)) == (NOT_OWNED, 0)


def test_nothing_is_found_of_a_partition_that_left(scene: Scene) -> None:
    """Its dead letters are those of the next owner; another partition may have that position."""
    other, _ = scene.store.begin_partition(b"orders 4")
    taken_over = Takeover(scene.log, TP, Start(Stores(), LINEAGE, 0, 0, 0), lambda *_: None).run()
    scene.store.own(b"orders 4", other, TP, LINEAGE, taken_over)
    (position,) = scene.store.put(other, [Held(10 << SEQUENCE_BITS, 0, 0, None, NO_TAGS, None, b"", b"")])
    scene.store.leave(scene.number)
    assert scene.store.rows.find(scene.store.number(NAME), position) is None


def test_a_late_commit_of_a_partition_that_left_removes_nothing(scene: Scene) -> None:
    """Its result came after the revocation."""
    (position,) = scene.put(10)
    scene.land()
    scene.take()
    scene.store.leave(scene.number)
    scene.store.committed(scene.number, position + 1)
    scene.land()
    assert scene.removed == []


def test_a_late_acknowledgement_of_a_partition_that_left_is_counted(scene: Scene) -> None:
    """Else nothing would be put any more at some time."""
    scene.put(10)
    scene.store.leave(scene.number)
    scene.land()
    assert scene.store.writes.synced == scene.store.writes.changes


def test_a_partition_that_comes_back_is_another_one(scene: Scene) -> None:
    """The rows of before may still lie in the files."""
    before = scene.number
    scene.store.leave(before)
    assert scene.own() != before


# Durability


def test_changes_are_synced_when_they_are_acknowledged(scene: Scene) -> None:
    """The commit waits for them."""
    scene.put(10)
    assert scene.store.writes.synced < scene.store.writes.changes
    scene.land()
    assert scene.store.writes.synced == scene.store.writes.changes


def test_sync_waits_for_the_broker(scene: Scene) -> None:
    """A revocation needs it."""
    scene.put(10)
    scene.store.writes.sync()
    assert scene.store.writes.synced == scene.store.writes.changes


def test_sync_ends_when_the_broker_does_not_answer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance must not wait for ever."""
    monkeypatch.setattr(appends, "SYNC_PATIENCE_S", 0.05)
    monkeypatch.setattr(scene.changelog, "land", lambda _: None)
    scene.put(10)
    with pytest.raises(StateError, match="has not acknowledged"):
        scene.store.writes.sync()


def test_a_broken_changelog_breaks_the_store(scene: Scene) -> None:
    """With the reason, which has the cure."""
    scene.changelog.broken = "the topic was deleted"
    assert str(scene.store.writes.broken) == "the topic was deleted"


def test_sync_does_not_wait_for_a_broken_changelog(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing will be acknowledged."""
    monkeypatch.setattr(scene.changelog, "land", lambda _: None)
    scene.put(10)
    scene.changelog.broken = "the topic was deleted"
    with pytest.raises(StateError, match="was deleted"):
        scene.store.writes.sync()


def test_a_broker_that_does_not_acknowledge_is_told(scene: Scene) -> None:
    """Commits that wait for it are given up, and the problem has the reason."""
    scene.changelog.waiting = "too few replicas"
    with pytest.raises(StateError, match="too few replicas"):
        scene.store.writes.begin_sync()


def test_nothing_waits_for_the_local_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it loses is restored: a full disk is told by `put` alone."""
    monkeypatch.setattr(store_module, "CACHE_CHANGES", 0)
    scene.put(10)
    scene.cache.refuses = True
    assert scene.store.writes.begin_sync() is None


# Positions that two owners gave


def test_of_two_messages_at_a_position_the_right_one_is_removed() -> None:
    """A position is unique with its epoch only; the tombstone names both."""
    first = Scene()
    (position,) = first.put(10)
    first.land()
    second = first.log.add(claim()) + 1
    first.log.add(
        ChangelogEntry(
            message_key(position, second, 5),
            message_entry(LINEAGE, Held(0, 0, 0, None, NO_TAGS, None, b"", None)).value,
        )
    )
    first.log.add(ChangelogEntry(message_key(position, first.epoch, 0), None))
    third = Scene(first.log)
    third.number = third.own(second)
    assert third.take() == [5]
