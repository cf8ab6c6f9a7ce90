"""Which of two memories of a partition is newer, and what to go on from."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import pytest

from sidecar.core.lineage import (
    ANCESTORS_MAX,
    ANCESTORS_NAMED,
    FINGERPRINTS_MAX,
    Basis,
    Committed,
    Fingerprint,
    Lineage,
    Remembered,
    Stamp,
    basis,
    extended,
    inherited,
    recall,
)
from sidecar.core.partition_state import LaneState, PartitionState, SharedIntent, Stores
from tests.support.full_state import FULL


@dataclass
class Log:
    """A log whose message at offset n has digest n, but for those in `other`."""

    high: int = 1_000
    low: int = 0
    other: dict[int, int | None] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def has(self, mark: Fingerprint) -> bool | None:
        """Whether the same message stands there."""
        self.asked.append(mark.offset)
        digest = self.other.get(mark.offset, mark.offset)
        return None if digest is None else digest == mark.digest

    def confirm_end(self, seen: int) -> None:
        """It does end there."""


def marks(*offsets: int) -> tuple[Fingerprint, ...]:
    """Fingerprints as the log has them."""
    return tuple(Fingerprint(offset, offset) for offset in offsets)


OLD = Committed(PartitionState(10, 20), Stamp(1, 5), Stamp(7, 7))
NEW = Remembered(PartitionState(50, 60), Stamp(2, 3), {1: 6}, marks(20, 59))


@pytest.mark.parametrize(
    ("stamp", "parent", "whose"),
    [
        (Stamp(1, 5), None, Basis.FOLDER),
        (Stamp(1, 7), None, Basis.BOTH),
        (Stamp(2, 2), None, Basis.FOLDER),
        (Stamp(2, 3), None, Basis.BROKER),
        (Stamp(2, 9), None, Basis.BROKER),
        (Stamp(9, 1), Stamp(2, 3), Basis.BROKER),
        (Stamp(9, 1), Stamp(2, 2), Basis.BOTH),
        (None, None, Basis.BOTH),
    ],
)
def test_stamps_tell_which_came_after_which(stamp: Stamp | None, parent: Stamp | None, whose: Basis) -> None:
    """An ancestor is older, a descendant newer; where neither is known, both may have gone on from another one."""
    assert basis(Committed(PartitionState(40, 55), stamp, parent), NEW) is whose


LATER = PartitionState(50, 70)
"""A state that may have come after `NEW`: it is not behind it anywhere."""


def followed(owners: int) -> Committed:
    """What the last of so many owners commits that went on from `NEW`, one after the other, without folders."""
    found = Committed(NEW.state, NEW.stamp)
    for token in range(100, 100 + owners):
        lineage = Lineage(token, found.stamp, inherited(found, None))
        found = Committed(LATER, Stamp(token, 4), lineage.parent, lineage.named)
    return found


@pytest.mark.parametrize("owners", range(ANCESTORS_NAMED + 1))
def test_a_folder_knows_its_own_line_behind_eight_owners(owners: int) -> None:
    """Each commit names its parent, and those before it."""
    assert ANCESTORS_NAMED >= 8
    assert basis(followed(owners), NEW) is Basis.BROKER


@pytest.mark.parametrize("owners", [ANCESTORS_NAMED + 2, 30])
def test_behind_more_owners_the_commit_holds_and_nobody_is_blamed(owners: int) -> None:
    """Whether the folder is of this line is unknown: its window is not used, as others may hold what it had settled."""
    found = recall(followed(owners), NEW, Log())
    assert (found.whose, found.state, found.settled_below) == (Basis.UNKNOWN, LATER, LATER.seen)
    assert (found.is_committed, found.compared, found.fresh) == (True, False, False)


@pytest.mark.parametrize(
    "committed",
    [
        Committed(PartitionState(49, 70), Stamp(9, 1)),
        Committed(PartitionState(50, 59), Stamp(9, 1)),
        Committed(LATER, Stamp(9, 1), Stamp(8, 1), (Stamp(1, 6),)),
        Committed(LATER, Stamp(9, 1), Stamp(2, 2)),
    ],
    ids=["watermark behind", "seen behind", "from a common ancestor", "from an earlier commit of the same owner"],
)
def test_a_fork_is_certain(committed: Committed) -> None:
    """No line goes back, and what a commit names of its line has no gap."""
    assert basis(committed, NEW) is Basis.BOTH


def test_after_a_fork_the_commit_holds_where_the_folder_had_parked() -> None:
    """The other member has removed those parts, and reads their messages again: settled here is lost there."""
    memory = replace(NEW, state=replace(NEW.state, parked=3))
    fork = Committed(PartitionState(30, 100, parked=1), Stamp(9, 1))
    found = recall(fork, memory, Log())
    assert (found.whose, found.state, found.settled_below) == (Basis.BOTH, fork.state, 0)


def test_after_a_fork_the_commit_holds_where_messages_are_on_one_host_alone() -> None:
    """What the folder calls settled may be in that host's store, where it is void once another member has read on."""
    memory = replace(NEW, state=replace(NEW.state, stores=Stores(3)))
    fork = Committed(PartitionState(30, 100), Stamp(9, 1))
    found = recall(fork, memory, Log())
    assert (found.whose, found.state, found.settled_below) == (Basis.BOTH, fork.state, 0)


def test_a_member_whose_commits_are_lost_too_may_have_removed_parked_parts() -> None:
    """It went on from the commit that is left, which is an ancestor of the folder's: only the store tells of it."""
    memory = replace(NEW, state=replace(NEW.state, parked=3))
    assert recall(OLD, memory, Log()).state == memory.state
    found = recall(OLD, memory, Log(), is_outdated=True)
    assert (found.whose, found.state, found.settled_below) == (Basis.BOTH, OLD.state, 0)
    found = recall(None, memory, Log(), is_outdated=True)
    assert (found.whose, found.state) == (Basis.BOTH, PartitionState(Log().low, Log().low))


def test_a_folder_beyond_another_line_has_parts_that_may_be_removed() -> None:
    """All that the other member had read is settled here, but the store of parked parts is one for both."""
    shared = replace(NEW.state, parked=3, stores=Stores(3, (), 9))
    assert basis(Committed(PartitionState(10, 50)), replace(NEW, state=shared)) is Basis.BOTH


def test_a_settled_state_keeps_all_else() -> None:
    """A state that is made from another one leaves out no field, whichever are added."""
    fork = replace(FULL, watermark=10, seen=100)
    found = recall(Committed(fork, Stamp(9, 1)), NEW, Log())
    assert found.whose is Basis.BOTH
    differs = [each.name for each in fields(fork) if getattr(found.state, each.name) != getattr(fork, each.name)]
    assert differs == ["watermark"]


def test_what_is_wholly_passed_needs_no_stamp() -> None:
    """A state that had read no further than the other's watermark has nothing to add to it."""
    assert basis(Committed(PartitionState(10, 50)), NEW) is Basis.FOLDER
    assert basis(Committed(PartitionState(60, 70)), NEW) is Basis.BROKER
    assert basis(None, NEW) is Basis.FOLDER
    assert basis(OLD, None) is Basis.BROKER


def test_an_older_commit_is_replaced_by_the_folder() -> None:
    """The folder's whole state is gone on from, once the log has proved to be the same."""
    log = Log()
    found = recall(OLD, NEW, log)
    assert (found.state, found.fresh, found.settled_below, log.asked) == (NEW.state, False, 60, [59])


def test_the_usual_start_reads_nothing_again() -> None:
    """Where the broker has the newest commit, its state holds and the log is not looked at."""
    log = Log()
    newest = Committed(PartitionState(50, 60), Stamp(2, 3))
    assert recall(newest, NEW, log).state == newest.state
    assert recall(OLD, None, log).state == OLD.state
    assert log.asked == []


@pytest.mark.parametrize(
    ("other", "start", "fresh"),
    [
        ({59: 0}, 21, True),
        ({59: 0, 20: 0}, 0, True),
        ({59: None}, 50, False),
        ({59: None, 20: 0}, 0, True),
        ({59: None, 20: None}, 10, False),
    ],
    ids=["newest differs", "all differ", "newest is gone", "one is gone, one differs", "all are gone"],
)
def test_a_log_that_is_another_one_is_delivered(other: dict[int, int | None], start: int, fresh: bool) -> None:
    """Delivery goes on behind the last message that is the same, under new names; else, where none is left, as told."""
    found = recall(OLD, NEW, Log(other=other))
    assert (found.state.watermark, found.fresh) == (start, fresh)
    assert found.settled_below <= max(found.agreed or 0, 59) + 1


def test_what_retention_took_is_not_compared() -> None:
    """Fingerprints below the log's start prove nothing."""
    log = Log(low=30, other={59: None})
    assert recall(OLD, NEW, log).agreed is None
    assert log.asked == [59]


def test_a_log_that_ends_early_is_another_one() -> None:
    """Fingerprints beyond the log's end differ, even from what the broker's own commit rests on."""
    found = recall(OLD, NEW, Log(high=40))
    assert (found.state, found.fresh, found.agreed) == (PartitionState(21, 21), True, 20)
    newest = Committed(PartitionState(50, 60), Stamp(2, 3))
    found = recall(newest, NEW, Log(high=40))
    assert (found.state, found.fresh, found.settled_below) == (PartitionState(21, 21), True, 21)
    assert recall(newest, None, Log(high=40)).fresh


def test_without_a_commit_the_folder_goes_on() -> None:
    """Its state holds unless a message differs or the log ends early; what compaction took proves neither."""
    assert recall(None, NEW, Log()).state == NEW.state
    assert recall(None, NEW, Log(other={20: None, 59: None})).state == NEW.state
    assert recall(None, NEW, Log(other={20: None, 59: 0})).state == PartitionState(0, 0)
    assert recall(None, NEW, Log(other={20: None}, high=40)).state == PartitionState(0, 0)
    unread = Remembered(PartitionState(50, 50), Stamp(2, 3))
    assert recall(None, unread, Log()).state == unread.state
    assert recall(None, unread, Log(high=40)).fresh


def test_after_a_fork_the_brokers_intents_hold() -> None:
    """What lies below the folder's watermark is settled; an intent that reaches beyond it stays whole."""
    fork = PartitionState(
        10,
        100,
        {
            1: LaneState(15, ((10, 20), (45, 55))),
            2: LaneState(None, ((30, 49),)),
            3: LaneState(70, ()),
        },
        80,
        (SharedIntent(25, 40), SharedIntent(48, 60)),
    )
    found = recall(Committed(fork, Stamp(9, 1)), NEW, Log())
    assert found.whose is Basis.BOTH
    assert found.state == PartitionState(
        45, 100, {1: LaneState(50, ((45, 55),)), 3: LaneState(70, ())}, 80, (SharedIntent(48, 60),)
    )


def test_what_the_window_knows_beyond_is_compared_too() -> None:
    """After a rewind the folder knows messages beyond the state that it wrote since: they count up to what agrees.

    Where one differs, the names of those that were sent there are not used again, or the receiver would drop others.
    """
    since = Remembered(PartitionState(10, 20), Stamp(3, 1), {2: 3}, marks(19, 40, 59))
    found = recall(Committed(PartitionState(10, 20), Stamp(3, 1)), since, Log())
    assert (found.whose, found.state, found.settled_below) == (Basis.BROKER, PartitionState(10, 20), 60)
    found = recall(Committed(PartitionState(10, 20), Stamp(3, 1)), since, Log(other={59: 0}))
    assert (found.state, found.fresh, found.settled_below) == (PartitionState(10, 10), True, 41)
    found = recall(OLD, Remembered(PartitionState(10, 20), Stamp(2, 3), {1: 6}, marks(59)), Log(other={59: 0}))
    assert (found.state, found.fresh, found.settled_below) == (PartitionState(0, 0), True, 0)


def test_what_was_read_between_two_fingerprints_is_not_trusted_when_the_later_differs() -> None:
    """Another member read up to 40, which no fingerprint here tells: the log may differ from 21 on."""
    memory = Remembered(PartitionState(10, 40), Stamp(2, 3), {1: 6}, marks(20, 59))
    found = recall(OLD, memory, Log(other={59: 0}))
    assert (found.state, found.fresh, found.settled_below) == (PartitionState(10, 10), True, 21)


def test_ancestors_are_bounded_and_newest_last() -> None:
    """The oldest ownerships are forgotten first."""
    many = Remembered(PartitionState(0, 0), Stamp(1_000, 1), dict.fromkeys(range(1, 200), 1))
    table = inherited(Committed(PartitionState(0, 0), Stamp(5, 9), None), many)
    assert len(table) == ANCESTORS_MAX
    assert list(table)[-2:] == [1_000, 5]
    assert table[5] == 9
    assert inherited(None, None) == {}


def test_fingerprints_stand_at_growing_distances() -> None:
    """However far a log is read, few fingerprints are kept: the newest, and others up to half as far back again."""
    trail: tuple[Fingerprint, ...] = ()
    for offset in range(0, 2_000_000, 997):
        trail = extended(trail, Fingerprint(offset, offset))
    kept = [mark.offset for mark in trail]
    assert len(kept) <= FINGERPRINTS_MAX
    newest = kept[-1]
    gaps = [(newest - a, newest - b) for a, b in pairwise(kept[1:])]
    assert all(far <= 2 * near + 2 * 997 for far, near in gaps)


def test_a_message_that_is_read_again_replaces_its_fingerprint() -> None:
    """What is known beyond stays."""
    trail = extended(extended(marks(5, 9), Fingerprint(5, 77)), Fingerprint(7, 7))
    assert trail == (Fingerprint(5, 77), Fingerprint(7, 7), Fingerprint(9, 9))
