"""Which records of a changelog count, given the epoch in the commit."""

from __future__ import annotations

import pytest

from sidecar.delay.changelog.records import NOBODY, counts


def test_what_lies_before_the_epoch_counts() -> None:
    """The owner has read it, whoever appended it."""
    assert counts(5, 4, 1)


def test_what_the_owner_appends_counts() -> None:
    """From the epoch on, its own records do."""
    assert counts(5, 5, 5)


@pytest.mark.parametrize("epoch", [1, 8])
def test_what_others_append_later_does_not_count(epoch: int) -> None:
    """Neither those of an earlier owner, nor those of one that no commit has named."""
    assert not counts(5, 5, epoch)


@pytest.mark.parametrize("offset", [0, 1, 9])
def test_without_a_commit_nothing_counts(offset: int) -> None:
    """No epoch is 0."""
    assert not counts(NOBODY, offset, 1)
