"""Where an owner goes on whose changelog fences."""

from __future__ import annotations

import pytest

from sidecar.delay.changelog.reach import DoubtError, Handed, PutReach, Resumed, read_reach, resumed
from sidecar.delay.changelog.records import RecordLineage

ONE, OTHER, TOPIC = RecordLineage(1, 7), RecordLineage(2, 7), RecordLineage(3, 8)
KNOWN = PutReach(ONE, 10, 30)
BARE = Handed(12, continues=True, end=50)


def test_a_reach_is_read_as_it_was_written() -> None:
    """Each field has its place; anything else is an error."""
    reach = PutReach(RecordLineage(1 << 63, 1 << 31), 1 << 40, 1 << 41)
    raw = reach.entry().value
    assert raw
    assert read_reach(raw) == reach
    for wrong in (b"", raw[:-1], b"\2" + raw[1:]):
        with pytest.raises(ValueError, match=r"cut off|version 2"):
            read_reach(wrong)


def test_a_new_changelog_begins_where_the_source_does() -> None:
    """Nothing is dropped, and nothing below is known."""
    assert resumed(None, ONE, 5, 9, Handed(5), 1) == Resumed(PutReach(ONE, 9, 9), None)


def test_the_same_incarnation_goes_on() -> None:
    """The source's commit tells that its offsets count the same."""
    assert resumed(KNOWN, ONE, 12, 20, Handed(12), 1) == Resumed(KNOWN, None)


def test_another_incarnation_is_a_reset() -> None:
    """What is read again is dropped; messages of a topic that was recreated are others, and stay."""
    assert resumed(KNOWN, OTHER, 12, 12, Handed(12), 1) == Resumed(PutReach(OTHER, 12, 12), 12)
    assert resumed(KNOWN, TOPIC, 12, 12, Handed(12), 1) == Resumed(PutReach(TOPIC, 12, 12), None)


def test_a_bare_offset_goes_on_with_the_lineage_of_the_changelog() -> None:
    """Whatever incarnation its new owner has drawn."""
    assert resumed(KNOWN, OTHER, 0, 12, BARE, 1) == Resumed(KNOWN, None)


def test_a_lower_offset_is_a_reset_if_the_source_repeats_it() -> None:
    """First it is a doubt; then what is read again is dropped, under a lineage that nothing had before."""
    lower = BARE._replace(offset=9)
    with pytest.raises(DoubtError) as doubt:
        resumed(KNOWN, OTHER, 0, 9, lower, 77)
    assert doubt.value.reach == KNOWN
    again = lower._replace(doubted=KNOWN)
    assert resumed(KNOWN, OTHER, 0, 9, again, 77) == Resumed(PutReach(RecordLineage(77, 7), 9, 9), 9)
    with pytest.raises(DoubtError):  # an owner has committed meanwhile
        resumed(KNOWN._replace(committed=11), OTHER, 0, 9, again, 78)


def test_a_log_that_is_shorter_has_other_messages() -> None:
    """Nothing of it is known, and what is held stays: the broker has lost it."""
    short = BARE._replace(end=29, doubted=KNOWN)
    assert resumed(KNOWN, ONE, 0, 12, short, 77) == Resumed(PutReach(RecordLineage(77, 7), 12, 12), None)
    assert resumed(KNOWN, ONE, 0, 12, BARE._replace(end=30), 77) == Resumed(KNOWN, None)
