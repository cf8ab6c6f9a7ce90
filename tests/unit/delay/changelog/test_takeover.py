"""The takeover of a partition: which records of its changelog are held, which are void, and what is removed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import Other, Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog import takeover
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.records import (
    CLAIM,
    MESSAGE,
    PROOF,
    VOID,
    KeptState,
    MessageKey,
    RecordLineage,
    claim,
    epoch_key,
    message_entry,
    message_key,
    state_entry,
)
from sidecar.delay.changelog.takeover import Start, TakenOver, Takeover
from sidecar.delay.rows import Held
from sidecar.errors import ConfigError
from tests.support.model_changelog import ModelLog
from tests.support.partition_store import TAGS

TP = TopicPartition("orders", 3)
STORE = 7
"""The id of a `ModelLog`."""
LINEAGE, AFTER_RESET, OTHER_TOPIC = RecordLineage(1, 2), RecordLineage(8, 2), RecordLineage(8, 9)
NOW = 1_000
"""Positions below are in the past."""


@dataclass
class Scene:
    """A changelog, and what a takeover gave."""

    log: ModelLog = field(default_factory=lambda: ModelLog(lambda: 0.99))  # nothing is late, nothing is compacted
    rows: list[Held] = field(default_factory=list)
    anew: int = 0

    def claim(self) -> int:
        """The epoch of a new owner."""
        return self.log.add(claim()) + 1

    def put(self, epoch: int, origin: int, position: int | None = None, lineage: RecordLineage = LINEAGE) -> bytes:
        """A message of an owner, by default due in the future; its key."""
        position = NOW + origin if position is None else position
        entry = message_entry(lineage, Held(position, origin, epoch, 5, TAGS, b"key", b"headers", b"%d" % origin))
        self.log.add(entry)
        return entry.key

    def keep(self, epoch: int, *, proved: bool = False, watermark: int = 0) -> ChangelogEntry:
        """A state of the owner with this epoch."""
        entry = state_entry(epoch, KeptState(proved, watermark, watermark, b"of %d" % epoch))
        self.log.add(entry)
        return entry

    def take(self, epoch: int = 0, *, store: int = STORE, seen: int = 0, watermark: int = 0,
             lineage: RecordLineage = LINEAGE, others: tuple[tuple[int, int], ...] = (),
             sizes: list[int] | None = None) -> TakenOver:  # fmt: skip
        """Take over, with this epoch in the commit; `sizes` gets the number of messages of each call."""

        def adopt(rows: list[Held], is_anew: bool) -> None:
            if is_anew:
                self.rows, self.anew = [], self.anew + 1
            self.rows += rows
            if sizes is not None:
                sizes.append(len(rows))

        return Takeover(
            self.log,
            TP,
            Start(Stores(store, tuple(Other(*other) for other in others), epoch), lineage, watermark, seen, NOW),
            adopt,
        ).run()

    @property
    def held(self) -> list[int]:
        """The origins of what was adopted."""
        return [row[1] for row in self.rows]

    @property
    def removed(self) -> list[bytes]:
        """Keys of tombstones."""
        return [record.key for record in self.log.records if record.value is None]


@pytest.fixture
def scene() -> Scene:
    """An empty changelog."""
    return Scene()


def test_the_epoch_is_the_offset_behind_the_claim(scene: Scene) -> None:
    """So each ownership has its own, and later ones have higher ones."""
    first, second = scene.take(store=0), scene.take(1)
    assert (first.epoch, second.epoch) == (1, 2)


def test_what_the_last_owner_put_is_held(scene: Scene) -> None:
    """In the order of the log, with all that the message brought."""
    epoch = scene.claim()
    scene.put(epoch, 1, 3_000)
    scene.put(epoch, 0, 2_000)
    scene.take(epoch)
    assert scene.rows == [
        (3_000, 1, epoch, 5, TAGS, b"key", b"headers", b"1"),
        (2_000, 0, epoch, 5, TAGS, b"key", b"headers", b"0"),
    ]


def test_what_a_zombie_puts_is_void(scene: Scene) -> None:
    """It was appended after the epoch of its successor, and the successor has not seen it."""
    first = scene.claim()
    scene.put(first, 0)
    second = scene.claim()
    scene.put(first, 1)
    scene.put(second, 2)
    scene.take(second)
    assert scene.held == [0, 2]


def test_what_is_void_is_removed_at_once(scene: Scene) -> None:
    """It would count as soon as a commit named the new epoch."""
    first, second = scene.claim(), scene.claim()
    key = scene.put(first, 1)
    scene.take(second)
    assert scene.removed == [key]


def test_a_reset_does_not_bring_back_what_was_void_and_removed(scene: Scene) -> None:
    """It is removed only where the changelog tells of the commit that made it void."""
    first = scene.claim()
    scene.put(first, 0)
    scene.keep(first, proved=True)
    second = scene.claim()
    scene.keep(second)
    scene.put(first, 1)
    scene.keep(first, proved=True, watermark=9)
    scene.take(second)
    found = scene.take(0, store=0)
    assert found.kept is not None
    assert (scene.held, found.kept.state) == ([0], b"of %d" % second)


def test_what_is_void_is_not_removed_if_another_owner_may_not_know(scene: Scene) -> None:
    """Its claim lies before the proof: so all is read again, behind another claim."""
    first, second = scene.claim(), scene.claim()
    key = scene.put(first, 1)
    late, offsets = iter([False, True]), []

    def append(tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        entries = list(entries)
        if next(late, False):
            scene.claim()
        offsets.append(ModelLog.append(scene.log, tp, entries))
        return offsets[-1]

    scene.log.append = append  # type: ignore[method-assign]
    found = scene.take(second)
    kinds = [record.key[:1] for record in scene.log.records if record.offset >= offsets[0]]
    assert kinds == [CLAIM, CLAIM, PROOF, CLAIM, MESSAGE]
    assert (found.epoch, found.next_offset, scene.anew) == (offsets[2] + 1, offsets[3] + 1, 2)
    assert scene.removed == [key]


def test_a_proof_is_appended_once(scene: Scene) -> None:
    """The next takeover finds it, and removes it once its own epoch is proved."""
    first, second = scene.claim(), scene.claim()
    for origin in (1, 2):
        scene.put(first, origin)
        found = scene.take(second)
    (proof,) = [record.key for record in scene.log.records if record.key[:1] == PROOF]
    assert proof in found.garbage


def test_what_was_removed_before_is_not_removed_again(scene: Scene) -> None:
    """A void message that has a tombstone needs no second one."""
    first, second = scene.claim(), scene.claim()
    scene.log.add(ChangelogEntry(scene.put(first, 1), None))
    scene.take(second)
    assert len(scene.removed) == 1


def test_what_an_owner_appends_of_whom_nothing_is_known_is_ignored(scene: Scene) -> None:
    """A commit may have named it that was not read: what it put is neither held nor removed."""
    first = scene.claim()
    scene.put(first, 0)
    scene.put(scene.claim(), 1)
    scene.take(first)
    assert (scene.held, scene.removed) == ([0], [])


def test_a_state_of_an_owner_of_whom_nothing_is_known_is_ignored(scene: Scene) -> None:
    """It is not the state of the last owner, and must not become that."""
    first = scene.claim()
    scene.keep(first)
    scene.keep(scene.claim())
    taken = scene.take(first)
    assert taken.kept is not None
    assert (taken.kept.state, taken.garbage) == (b"of 1", [state_entry(first, taken.kept).key])


def test_without_any_commit_nothing_is_held(scene: Scene) -> None:
    """Nobody was proven to be the owner, so all of it is read again."""
    scene.put(scene.claim(), 0)
    taken = scene.take(store=0)
    assert (scene.held, taken.kept) == ([], None)


def test_the_state_that_counts_last_is_kept(scene: Scene) -> None:
    """That of a zombie comes later, and does not count."""
    first, second = scene.claim(), scene.claim()
    scene.keep(second)
    scene.keep(first)
    taken = scene.take(second)
    assert taken.kept is not None
    assert taken.kept.state == b"of %d" % second


@pytest.mark.parametrize("position", [NOW + 1, 5])
def test_messages_that_were_removed_are_named(scene: Scene, position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were adopted before their tombstones were read, overdue or not."""
    monkeypatch.setattr(takeover, "ROWS_AT_ONCE", 1)
    epoch = scene.claim()
    scene.put(epoch, 0)
    key = scene.put(epoch, 1, position)
    for _ in range(20):  # as many as are read at once
        scene.keep(epoch)
    scene.log.add(ChangelogEntry(key, None))
    assert scene.take(epoch).ended == [MessageKey(position, epoch, 1)]


def test_messages_that_were_removed_soon_are_not_adopted(scene: Scene) -> None:
    """A changelog has all of an hour before it is compacted: they would take memory, a log and files."""
    epoch = scene.claim()
    for origin in range(2_000):
        key = scene.put(epoch, origin, origin)
        if origin % 1_000:
            scene.log.add(ChangelogEntry(key, None))
    taken = scene.take(epoch)
    assert (scene.held, taken.ended, list(taken.known)) == ([0, 1_000], [], [0, 1_000])
    assert taken.garbage == []


def test_large_messages_are_adopted_in_pieces(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is bounded in bytes, of those that are not removed."""
    monkeypatch.setattr(takeover, "BYTES_AT_ONCE", 2 * len(b"keyheaders00"))
    epoch, sizes = scene.claim(), list[int]()
    for origin in range(10, 90):
        key = scene.put(epoch, origin)
        if origin % 4:
            scene.log.add(ChangelogEntry(key, None))
    ended = [each.origin for each in scene.take(epoch, sizes=sizes).ended]
    assert sorted({*scene.held} - {*ended}) == list(range(12, 90, 4))
    assert max(sizes) < 10
    assert len(sizes) > 3


def test_a_tombstone_whose_message_was_compacted_away_is_ignored(scene: Scene) -> None:
    """There are as many of them as messages in a day; nothing was adopted that they end."""
    epoch = scene.claim()
    scene.log.add(ChangelogEntry(message_key(5, epoch, 1), None))
    assert scene.take(epoch).ended == []


def test_origins_from_seen_on_are_known(scene: Scene) -> None:
    """They are not put again when they are read; those below are not read, and removed ones do not matter."""
    epoch = scene.claim()
    for origin in (4, 5, 6):
        scene.put(epoch, origin)
    scene.log.add(ChangelogEntry(scene.put(epoch, 7), None))
    assert list(scene.take(epoch, seen=5).known) == [5, 6]


def test_a_reset_drops_what_is_read_again(scene: Scene) -> None:
    """From the offset on, all comes again; what lies below stays."""
    epoch = scene.claim()
    scene.put(epoch, 4)
    scene.put(epoch, 5)
    scene.take(epoch, watermark=5, seen=5, lineage=AFTER_RESET)
    assert scene.held == [4]


def test_what_a_reset_drops_is_removed_after_the_commit(scene: Scene) -> None:
    """The messages go before the rule: as long as there is one, later owners must know that it is void."""
    epoch = scene.claim()
    state = scene.keep(epoch, proved=True)
    again = [scene.put(epoch, 5), scene.put(epoch, 6)]
    found = scene.take(epoch, watermark=5, seen=5, lineage=AFTER_RESET)
    assert (scene.removed, found.garbage) == ([], [*again, epoch_key(VOID, found.epoch), state.key])
    assert found.next_offset == len(scene.log.records)


def test_what_a_reset_drops_without_a_commit_is_held_by_the_next_owner(scene: Scene) -> None:
    """The operator has reset the group again: what lies below the second offset is not read again."""
    epoch = scene.claim()
    scene.put(epoch, 4)
    scene.keep(epoch, proved=True)
    scene.take(store=0, lineage=AFTER_RESET)
    dropped = scene.held
    scene.take(store=0, watermark=5, seen=5, lineage=RecordLineage(9, 2))
    assert (dropped, scene.held) == ([], [4])


def test_what_a_reset_drops_is_void_for_all_that_know_of_the_commit(scene: Scene) -> None:
    """Its removal may come later than the claim of the next owner, which another reset leads to a higher offset."""
    epoch = scene.claim()
    scene.put(epoch, 3)
    scene.put(epoch, 4)
    scene.keep(epoch, proved=True)
    named = scene.take(store=0, watermark=4, seen=4, lineage=AFTER_RESET).epoch
    scene.put(named, 4, lineage=AFTER_RESET)
    scene.keep(named, proved=True)
    held = []
    for incarnation in (9, 10):  # the second one finds the rule in the record of the first
        found = scene.take(store=0, watermark=5, seen=5, lineage=RecordLineage(incarnation, 2))
        scene.keep(found.epoch, proved=True)
        held.append([row[1:3] for row in scene.rows])
    assert held == [[(3, epoch), (4, named)]] * 2


def test_a_rule_whose_messages_are_gone_is_not_repeated(scene: Scene) -> None:
    """It would be repeated for ever."""
    epoch = scene.claim()
    again = scene.put(epoch, 4)
    scene.keep(epoch, proved=True)
    named = scene.take(store=0, lineage=AFTER_RESET).epoch
    scene.log.add(ChangelogEntry(again, None))
    found = scene.take(named, lineage=AFTER_RESET)
    rules = [record.key for record in scene.log.records if record.key[:1] == VOID]
    assert (rules, scene.held) == ([epoch_key(VOID, named)], [])
    assert rules[0] in found.garbage


def test_messages_of_another_incarnation_are_not_known(scene: Scene) -> None:
    """Their offsets are those of other messages."""
    epoch = scene.claim()
    scene.put(epoch, 9, lineage=OTHER_TOPIC)
    assert not scene.take(epoch).known


def test_a_recreated_topic_keeps_all(scene: Scene) -> None:
    """Its offsets start over, and say nothing of the messages that are held."""
    epoch = scene.claim()
    scene.put(epoch, 4)
    scene.put(epoch, 5)
    scene.take(epoch, watermark=0, lineage=OTHER_TOPIC)
    assert (scene.held, scene.removed) == ([4, 5], [])


def test_a_later_commit_than_the_one_that_was_read_counts(scene: Scene) -> None:
    """A reset removed that commit; the changelog tells of it, and the reading begins anew with its epoch."""
    first = scene.claim()
    scene.put(first, 0)
    second = scene.claim()
    scene.keep(second, proved=True)
    scene.put(second, 1)
    scene.take(store=0)
    assert (scene.held, scene.anew) == ([0, 1], 2)


def test_a_state_that_is_not_proved_tells_of_no_commit(scene: Scene) -> None:
    """Each owner keeps one before its commit, which may fail."""
    first = scene.claim()
    scene.put(first, 0)
    scene.keep(first)
    scene.take(store=0)
    assert scene.held == []


def test_states_of_earlier_owners_are_garbage(scene: Scene) -> None:
    """That from which this owner goes on, too: it has kept it under its own epoch before its commit."""
    first = scene.claim()
    old = scene.keep(first)
    second = scene.claim()
    for _ in range(2):
        last = scene.keep(second)
    assert scene.take(second).garbage == [old.key, last.key]


def test_the_state_of_a_zombie_is_garbage(scene: Scene) -> None:
    """It will never count."""
    first, second = scene.claim(), scene.claim()
    void = scene.keep(first)
    assert scene.take(second).garbage == [void.key]


def test_messages_that_were_ended_and_not_removed_are_garbage(scene: Scene) -> None:
    """Their owner died between the commit and the tombstones."""
    epoch = scene.claim()
    ended = scene.put(epoch, 0, 5)
    scene.put(epoch, 1, 10)
    state = scene.keep(epoch, watermark=10)
    assert scene.take(epoch).garbage == [state.key, ended]


def test_garbage_is_not_removed_yet(scene: Scene) -> None:
    """Until the commit, this is not certainly the owner."""
    epoch = scene.claim()
    scene.put(epoch, 0, 5)
    scene.keep(epoch, watermark=10)
    scene.take(epoch)
    assert scene.removed == []


def test_a_changelog_that_is_another_one_is_lost(scene: Scene) -> None:
    """The commit names it, and it holds nothing of that."""
    taken = scene.take(5, store=STORE + 1)
    assert (taken.is_lost, taken.store) == (True, STORE)


@pytest.mark.parametrize("store", [0, STORE])
def test_a_new_changelog_is_not_lost(scene: Scene, store: int) -> None:
    """Nor is the one that the commit names."""
    assert not scene.take(store=store).is_lost


def test_the_epochs_of_another_changelog_do_not_count(scene: Scene) -> None:
    """They are offsets in that one."""
    scene.put(scene.claim(), 0)
    scene.take(50, store=STORE + 1)
    assert scene.held == []


def test_what_comes_behind_the_claim_is_not_read(scene: Scene) -> None:
    """It cannot be told from what comes after the takeover."""
    epoch = scene.claim()
    append = scene.log.append

    def and_more(tp: TopicPartition, entries: list[ChangelogEntry]) -> int:
        offset = append(tp, entries)
        scene.put(epoch, 1)
        return offset

    scene.log.append = and_more  # type: ignore[assignment,method-assign]
    scene.take(epoch)
    assert scene.held == []


def test_a_record_of_a_later_version_ends_the_daemon(scene: Scene) -> None:
    """With the cure; messages must not be lost by an older version that ignores them."""
    epoch = scene.claim()
    message = message_entry(LINEAGE, Held(1, 0, epoch, 0, NO_TAGS, None, b"", None))
    scene.log.add(message._replace(value=b"\3" + (message.value or b"")[1:]))
    with pytest.raises(ConfigError, match="version 3") as refused:
        scene.take(epoch)
    assert "later one" in refused.value.hint


def test_what_an_owner_with_another_store_read_on_is_void(scene: Scene) -> None:
    """It has these messages, too: those that were put and not committed when it took the partition."""
    epoch = scene.claim()
    scene.keep(epoch, proved=True)
    scene.put(epoch, 3)
    twice = scene.put(epoch, 4)
    taken = scene.take(store=STORE + 1, others=((STORE, 4),), seen=9)
    assert (scene.held, scene.removed, list(taken.known)) == ([3], [], [])
    assert taken.garbage[0] == twice


@pytest.mark.parametrize("key", [b"", b"m", b"s", b"message of another program", b"x" * 25])
def test_what_another_program_appends_is_ignored(scene: Scene, key: bytes) -> None:
    """It costs no message."""
    epoch = scene.claim()
    for value in (b"value", None):
        scene.log.add(ChangelogEntry(key, value))
    scene.put(epoch, 1)
    scene.take(epoch)
    assert scene.held == [1]
