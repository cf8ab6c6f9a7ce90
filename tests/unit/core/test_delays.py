"""The rules of delayed messages."""

from __future__ import annotations

from math import inf

import pytest

from sidecar.core.delays import (
    GOES_ON_AT,
    LASTS_MS,
    NAMES_BYTES_MAX,
    NAMES_MAX,
    SEARCH_MS,
    SEQUENCE_BITS,
    STEP_MS,
    SteadyClock,
    StoreTakeover,
    Turn,
    are_many,
    changeable_from,
    commit_may_go_on,
    deliverable_below,
    is_outdated,
    is_replayed,
    may_leave_unread,
    offset_kept_below,
    parked_that_count,
    takeover_of,
    turn_of_change,
    turn_of_request,
    turn_of_search,
    wait_s,
    why_not_read,
)
from sidecar.core.partition_state import STORES_MAX, Other, PartitionState, Stores

NOON_MS = 1_800_000_000_000


def test_it_follows_the_wall_clock() -> None:
    """Drift and small corrections, either way, are followed at once."""
    clock = SteadyClock()
    assert [clock.read(0.0, NOON_MS), clock.read(50.0, NOON_MS + 40), clock.read(60.0, NOON_MS + 9_000)] == [
        NOON_MS,
        NOON_MS + 40,
        NOON_MS + 9_000,
    ]


def test_a_step_back_is_followed_at_once() -> None:
    """Messages wait, even for an hour."""
    clock = SteadyClock()
    clock.read(0.0, NOON_MS)
    assert clock.read(10.0, NOON_MS - 3_600_000) == NOON_MS - 3_600_000


def test_a_step_forward_is_followed_when_it_has_lasted() -> None:
    """Until then time goes on as before."""
    clock, step_ms = SteadyClock(), STEP_MS + 1_000
    clock.read(0.0, NOON_MS)
    assert clock.read(100.0, NOON_MS + 100 + step_ms) == NOON_MS + 100
    assert clock.is_ahead
    almost = LASTS_MS + 99
    assert clock.read(almost, NOON_MS + almost + step_ms) == NOON_MS + almost
    assert clock.read(almost + 1, NOON_MS + almost + 1 + step_ms) == NOON_MS + almost + 1 + step_ms
    assert not clock.is_ahead


def test_a_step_forward_that_is_taken_back_delivers_nothing_early() -> None:
    """An hour ahead for half a minute changes nothing, and another such step has to last again."""
    clock = SteadyClock()
    clock.read(0.0, NOON_MS)
    for _ in range(2):
        assert clock.read(30_000.0, NOON_MS + 3_630_000) == NOON_MS + 30_000
        assert clock.read(40_000.0, NOON_MS + 40_000) == NOON_MS + 40_000
        assert not clock.is_ahead


# Delivery


def at(ms: int, sequence: int = 0) -> int:
    """A position."""
    return (ms << SEQUENCE_BITS) + sequence


def test_all_messages_of_the_present_millisecond_are_due() -> None:
    """Whatever their sequence number; none of the next one."""
    below = deliverable_below(5, 0, None)
    assert at(5, (1 << SEQUENCE_BITS) - 1) < below == at(6)


def test_a_replay_ignores_the_clock() -> None:
    """What an earlier owner read out by its clock is in parts that may have been sent."""
    assert deliverable_below(5, at(900), None) == at(900)
    assert deliverable_below(5, at(2), None) == at(6)


@pytest.mark.parametrize("seen", [0, at(900)], ids=["by the clock", "in a replay"])
def test_nothing_that_is_not_proved_is_delivered(seen: int) -> None:
    """Another owner may have read the same messages, also those of a replay."""
    assert deliverable_below(5, seen, at(3, 7)) == at(3, 7)


@pytest.mark.parametrize(
    ("below", "following", "is_over"),
    [(at(9), None, True), (at(9), at(9), True), (at(9), at(8), False), (at(8), None, False)],
)
def test_a_replay_is_over_when_its_last_messages_are_gone(below: int, following: int | None, is_over: bool) -> None:
    """Not while one is left, nor while one may come that is not deliverable yet."""
    assert is_replayed(below, at(9), following) is is_over


def test_a_replay_and_a_tap_read_messages_that_no_tag_wants() -> None:
    """A part needs all of its messages; a tap shows them."""
    rules = [(False, False), (True, False), (False, True)]
    assert [may_leave_unread(is_replaying=one, is_tapped=other) for one, other in rules] == [True, False, False]


def test_the_wait_is_until_the_first_message_that_the_clock_alone_holds_back() -> None:
    """Not for one that a commit must prove first, nor for a store that is empty."""
    assert wait_s([(None, None), (at(700), None), (at(500), at(500)), (at(600), at(600, 1))], 100) == 0.5
    assert wait_s([(at(700), None)], 900) == 0.0
    assert wait_s([(None, at(3)), (at(3), at(3)), (at(3), 0)], 100) == inf


# Reading and committing


def reason(undone: str = "", used: int = 0, *, was_full: bool = False, searches_are_many: bool = False) -> str:
    """Why no partition is read, with a store of at most 100 bytes."""
    return why_not_read(undone=undone, used=used, most=100, was_full=was_full, searches_are_many=searches_are_many)


def test_partitions_are_not_read_while_the_store_is_full() -> None:
    """Until there is room again: else each message that ends would begin and stop the reading."""
    assert [bool(reason(used=used)) for used in (100, 101)] == [False, True]
    assert [bool(reason(used=used, was_full=True)) for used in (int(100 * GOES_ON_AT), 91)] == [False, True]


def test_partitions_are_not_read_while_the_store_refuses_or_is_searched() -> None:
    """What the store could not do comes first: its reason is the one that an operator can remove."""
    assert reason("no space left", 101, searches_are_many=True) == "no space left"
    assert "being searched" in reason(searches_are_many=True)
    assert "disk_max" in reason(used=101, searches_are_many=True)


def test_names_that_wait_are_bounded_in_number_size_and_time() -> None:
    """A hundred thousand, 16 MiB, or a second in which no commit could go on."""
    assert not are_many(NAMES_MAX, NAMES_BYTES_MAX, SEARCH_MS)
    assert are_many(NAMES_MAX + 1, 0, 0)
    assert are_many(1, NAMES_BYTES_MAX + 1, 0)
    assert are_many(1, 0, SEARCH_MS + 1)


def test_a_commit_waits_for_what_is_to_be_held_and_to_be_cancelled() -> None:
    """Else it would settle messages that are nowhere, or that have cancelled nothing."""
    cases = [(True, True), (True, False), (False, True), (False, False)]
    assert [commit_may_go_on(is_all_held=one, is_all_cancelled=other) for one, other in cases] == [True] + 3 * [False]


# Takeovers

HERE, THERE = 7, 8
STATE = PartitionState(50, 60, stores=Stores(THERE, (Other(HERE, 40),)))


def taken(
    state: PartitionState = STATE, *, incarnation: bool = True, topic: bool = True, held_below: int | None = None
) -> StoreTakeover:
    """What counts of the store here."""
    return takeover_of(state, HERE, is_same_incarnation=incarnation, is_same_topic=topic, held_below=held_below)


def test_what_another_owner_read_on_from_is_void() -> None:
    """From the offset on that the list of stores has; a store that no commit named has nothing that counts."""
    assert taken() == StoreTakeover(void_from=40)
    assert taken(PartitionState(50, 60, stores=Stores(THERE))) == StoreTakeover(void_from=0)


def test_all_counts_if_this_store_is_the_last_owners_or_nobody_has_committed() -> None:
    """Nobody else has read any of it."""
    assert taken(PartitionState(50, 60, stores=Stores(HERE))) == taken(PartitionState(50, 60)) == StoreTakeover()


def test_all_counts_if_a_full_list_lacks_the_store() -> None:
    """A commit may have listed it once; its parked parts count, too."""
    others = tuple(Other(100 + number, 1) for number in range(STORES_MAX))
    found = taken(PartitionState(50, 60, stores=Stores(THERE, others)))
    assert found == StoreTakeover(is_unlisted=True)
    assert found.counts_all_parked
    assert [parked_that_count(found, before, 5) for before in (3, 9)] == [5, 9]


def test_a_reset_drops_what_is_read_again() -> None:
    """From the watermark on, or from the offset that another owner handed on; parked parts before it count."""
    assert taken(incarnation=False) == StoreTakeover(50, restarts=True)
    found = taken(incarnation=False, held_below=30)
    assert found == StoreTakeover(30, restarts=True)
    assert found.counts_all_parked
    assert parked_that_count(found, 9, 5) == 5
    assert [offset_kept_below(STATE, below) for below in (None, 30)] == [50, 30]


def test_a_recreated_topic_leaves_all_that_is_held() -> None:
    """Its offsets denote other messages."""
    assert taken(incarnation=False, topic=False) == StoreTakeover(None, restarts=True)


def test_parked_parts_count_as_the_last_owner_kept_it() -> None:
    """Later ones have their intent in the partition's state."""
    assert not StoreTakeover().counts_all_parked
    assert parked_that_count(StoreTakeover(), 3, 5) == 3


@pytest.mark.parametrize(
    ("parked", "store", "last_named", "outdated"),
    [(2, HERE, 6, True), (2, HERE, 5, False), (2, THERE, 6, False), (0, HERE, 6, False)],
)
def test_a_state_folder_is_outdated_if_a_later_owner_may_have_removed_parked_parts(
    parked: int, store: int, last_named: int, outdated: bool
) -> None:
    """Only parts in the same store, which owners share, of a state that has any."""
    state = PartitionState(50, 60, stores=Stores(HERE, (), 5), parked=parked)
    assert is_outdated(state, store, last_named) is outdated


# Changes


def test_what_an_owner_has_read_out_is_not_changed() -> None:
    """It is in a part; before the core has the partition, nothing was read out."""
    assert [changeable_from(at(5)), changeable_from(None)] == [at(5), 0]


def test_a_canceller_waits_for_the_store_and_ends_with_its_ownership() -> None:
    """The next owner reads it again."""
    cases = [(False, True), (False, False), (True, False), (True, True)]
    turns = [turn_of_search(is_expected=one, has_store=other) for one, other in cases]
    assert turns == [Turn.DROP, Turn.DROP, Turn.WAIT, Turn.GO_ON]
    assert turn_of_search(is_expected=True, has_store=True, is_moving=True) is Turn.WAIT


def test_a_change_is_final_once_a_commit_has_proved_the_ownership() -> None:
    """It is lost with the ownership, though a commit has proved it before."""
    cases = [(False, True), (False, False), (True, False), (True, True)]
    turns = [turn_of_change(is_owned=one, is_proved=other) for one, other in cases]
    assert turns == [Turn.DROP, Turn.DROP, Turn.WAIT, Turn.GO_ON]


@pytest.mark.parametrize(
    ("owned", "loading", "store", "behind", "turn"),
    [
        (False, False, False, False, Turn.DROP),
        (False, True, False, False, Turn.WAIT),
        (True, True, True, False, Turn.WAIT),
        (True, False, False, False, Turn.WAIT),
        (True, False, True, True, Turn.WAIT),
        (True, False, True, False, Turn.GO_ON),
    ],
)
def test_a_request_waits_until_what_is_held_is_known(
    owned: bool, loading: bool, store: bool, behind: bool, turn: Turn
) -> None:
    """A partition that is taken over is asked about later, one of another member not at all."""
    assert turn_of_request(is_owned=owned, is_loading=loading, has_store=store, is_behind=behind) is turn
