"""Entries of tags in an index: which messages they refuse, and that they count only under the rules of their making."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.masks import TagMask
from sidecar.core.messages.tag_index import ENTRY, ENTRY_BYTES, NO_TAGS, TagIndex
from sidecar.core.messages.tags import TagFilter

RULES = "header"


def leaves(index: TagIndex, entry: bytes) -> bool:
    """Whether a message with this entry is left unread."""
    assert index.leave is not None
    return index.leave(entry)


def test_an_entry_has_the_mask_and_the_rules() -> None:
    """Twelve bytes: a format that files have."""
    index = TagIndex(TagFilter("paid"), RULES)
    assert ENTRY.unpack(index.entries[b"paid"]) == (TagFilter().mask(b"paid"), index.rules)
    assert len(index.entries[b"paid"]) == ENTRY_BYTES == 12


def test_a_message_without_a_wanted_tag_is_left_unread() -> None:
    """One that has it is not, and neither is one whose tags nobody read."""
    index = TagIndex(TagFilter("paid || lost"), RULES)
    assert leaves(index, index.entries[b"viewed"])
    assert leaves(index, index.entries[None])
    assert not leaves(index, index.entries[b"lost"])
    assert not leaves(index, NO_TAGS)


def test_a_subscription_to_all_leaves_nothing_unread() -> None:
    """Messages without a tag are wanted, too."""
    assert TagIndex(TagFilter("*", "viewed"), RULES).leave is None


def test_an_entry_of_another_separator_is_not_believed() -> None:
    """`a,b` was one tag, and is two now: one of them is wanted."""
    before, now = TagIndex(TagFilter("a"), "header"), TagIndex(TagFilter("a", split=","), "header,")
    entry = before.entries[b"a,b"]
    assert leaves(before, entry)
    assert not leaves(now, entry)
    masks = np.array([ENTRY.unpack(entry)[0]], np.uint64)
    assert not before.may_match_each(TagMask([b"a"]), np.array([before.rules], np.uint32), masks).any()
    assert now.may_match_each(TagMask([b"a"]), np.array([before.rules], np.uint32), masks).all()


def test_rules_of_one_index_are_those_of_the_next_process() -> None:
    """They are in files, so they are a fixed number: another one makes all of a store be read."""
    assert TagIndex(TagFilter(), '[["header", "tag"], ""]').rules == 3_607_207_419


@pytest.mark.parametrize("split", ["", ","])
@given(raws=st.lists(st.none() | st.sampled_from([b"a", b"b", b"a,b", b"c , a", (b"a", b"c"), b""]), max_size=20))
def test_what_is_wanted_is_read(split: str, raws: list[Raw]) -> None:
    """Alone or in a column, of the subscription or of one tag."""
    filter_ = TagFilter("a", split=split)
    index = TagIndex(filter_, split)
    entries = [index.entries[raw] for raw in raws]
    masks = np.array([ENTRY.unpack(entry)[0] for entry in entries], np.uint64)
    rules = np.full(len(entries), index.rules, np.uint32)
    found = index.may_match_each(TagMask([b"a"]), rules, masks).tolist()
    for raw, entry, may_match in zip(raws, entries, found, strict=True):
        if filter_.group(*filter_.tags(raw)) is not None:
            assert not leaves(index, entry)
            assert may_match
