"""Which records of a changelog count, given the epochs in the commit."""

from __future__ import annotations

import pytest

from sidecar.delay.changelog.epochs import NOBODY, counts, is_void_forever


def test_what_lies_before_the_epoch_counts() -> None:
    """The owner has read it, whoever appended it."""
    assert counts((5,), 4, 1)


def test_what_the_owner_appends_counts() -> None:
    """From the epoch on, its own records do."""
    assert counts((5,), 5, 5)


@pytest.mark.parametrize("epoch", [1, 8])
def test_what_others_append_later_does_not_count(epoch: int) -> None:
    """Neither those of an earlier owner, nor those of one that no commit has named."""
    assert not counts((5,), 5, epoch)


@pytest.mark.parametrize("offset", [0, 1, 9])
def test_without_a_commit_nothing_counts(offset: int) -> None:
    """No epoch is 0."""
    assert not counts(NOBODY, offset, 1)


@pytest.mark.parametrize(("offset", "epoch"), [(4, 1), (5, 5), (8, 5), (9, 9), (20, 9)])
def test_of_two_epochs_each_has_its_stretch(offset: int, epoch: int) -> None:
    """The earlier one up to the later one, and that from there on."""
    assert counts((5, 9), offset, epoch)


@pytest.mark.parametrize(("offset", "epoch"), [(5, 1), (8, 7), (9, 5), (9, 7)])
def test_of_two_epochs_no_other_counts(offset: int, epoch: int) -> None:
    """An owner between them, whom no commit named, has nothing; nor has the earlier one behind the later one."""
    assert not counts((5, 9), offset, epoch)


@pytest.mark.parametrize(("offset", "epoch"), [(4, 9), (9, 1)])
def test_what_the_last_epoch_excludes_is_void_forever(offset: int, epoch: int) -> None:
    """What lies before it, and what earlier owners append after it."""
    assert is_void_forever((5,), offset, epoch)


def test_what_a_later_owner_appended_may_count_yet() -> None:
    """Its commit may have succeeded without our knowing."""
    assert not is_void_forever((5,), 6, 6)
