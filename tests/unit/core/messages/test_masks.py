"""Masks of tags: what they refuse, and that they refuse it before anything looks at the tags."""

from __future__ import annotations

import pytest

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.masks import MASK_ALL, TagMask, hash_of, mask_of, tag_mask
from sidecar.core.messages.tags import REFUSED_MAX, UNWANTED_MAX, Memo, TagFilter


def test_a_tag_sets_the_bits_that_its_hash_chooses() -> None:
    """Four times six bits of the hash each name a bit: a format that files of state have."""
    number = hash_of(b"paid")
    assert tag_mask(b"paid") == sum({1 << (number >> shift & 63) for shift in (0, 6, 12, 18)}) == 0x640400


def test_a_message_has_the_bits_of_all_its_tags() -> None:
    """A message without a tag has none."""
    assert mask_of([b"a", b"b"]) == tag_mask(b"a") | tag_mask(b"b")
    assert TagFilter(split=",").mask(b"a, b,,") == mask_of([b"a", b"b"])
    assert TagFilter().mask((b"a", b"b")) == mask_of([b"a", b"b"])
    assert TagFilter().mask(None) == 0


@pytest.mark.parametrize("count", [1, 5, 8, 300])
def test_wanted_tags_pass_and_most_others_do_not(count: int) -> None:
    """With few tags their bits decide, with many the set of their hashes: 2 of 100 others pass at most."""
    wanted, others = [b"wanted-%d" % n for n in range(count)], [b"other-%d" % n for n in range(5_000)]
    mask = TagMask(wanted)
    may_have = mask.predicate(lambda raw: (), is_plain=True)
    assert all(map(may_have, wanted))
    assert sum(map(may_have, others)) <= 100
    assert bool(mask.hashes) == (count >= 8)


def test_what_takes_all_refuses_nothing() -> None:
    """A subscription to all has every bit."""
    mask = TagMask(None)
    assert mask.bits == MASK_ALL
    assert mask.predicate(lambda raw: (), is_plain=True)(b"any")
    assert mask.may_match(0)


@pytest.mark.parametrize("count", [1, 40])
def test_masks_of_several_tags_match_if_one_is_wanted(count: int) -> None:
    """The bits of one wanted tag must all be there; those of two that have them together do not count as one."""
    wanted = [b"wanted-%d" % n for n in range(count)]
    mask, others = TagMask(wanted), [mask_of([b"x-%d" % n, b"y-%d" % n]) for n in range(10)]
    assert mask.may_match(mask_of([b"other", wanted[-1]]))
    assert mask.may_match(mask_of([wanted[0]]))
    assert not mask.may_match(0)
    assert sum(map(mask.may_match, others)) <= 1


def test_refused_tags_are_not_looked_at_and_not_remembered() -> None:
    """Of very many tags the memo has the first ones, and the few that need a look."""
    tags, looks = TagFilter("paid || created"), list[Raw]()
    tags._group_of = looks.append  # type: ignore[method-assign,assignment]
    for _ in range(2):
        for number in range(30_000):
            assert tags.groups[b"user-%d" % number] is None
    assert len(looks) < 60
    assert tags.refused.others == 2 * (30_000 - REFUSED_MAX - len(looks))
    assert len(tags.groups) == len(looks) + REFUSED_MAX


def test_a_full_memo_begins_again_with_the_contents_that_were_refused() -> None:
    """They are few, so they may have their places again."""
    tags = TagFilter("paid")
    assert tags.groups[b"user-1"] is tags.groups.clear() is tags.groups[b"user-1"]
    assert list(tags.groups) == [b"user-1"] == list(tags.refused)


def test_long_contents_are_refused_and_not_remembered() -> None:
    """A tag may be a whole key."""
    tags = TagFilter("paid")
    assert tags.groups[b"k" * 65] is tags.groups[(b"k",) * 40] is None
    assert (dict(tags.refused), dict(tags.groups), tags.refused.others) == ({}, {}, 2)


@pytest.mark.parametrize("raw", [b"user-77,other", (b"user-77", b"other"), None, b"", b" , ,"])
def test_several_tags_and_none_are_refused_too(raw: bytes | tuple[bytes, ...] | None) -> None:
    """Each tag of a message is tested; one without a tag is not wanted either."""
    tags = TagFilter("paid", split=",")
    assert tags.groups[raw] is None
    assert list(tags.refused) == [raw]
    assert tags.groups[b"user-77, paid"] == "paid"


def test_gaps_of_a_run_are_filled_by_the_mask() -> None:
    """What is known stays, what the mask refuses is not asked for, and several values are asked for."""
    asked, several = list[Raw](), (b"user-1", b"user-2")

    def ask(raw: Raw) -> str:
        asked.append(raw)
        return "asked"

    filled = TagMask([b"paid"]).fill([b"user-1", b"user-2", b"paid", several, None], ["known", *[None] * 4], ask, "no")
    assert filled == ["known", "no", "asked", "asked", "asked"]
    assert asked == [b"paid", several, None]
    assert TagFilter("paid", split=",").plain_mask is TagFilter().plain_mask is None


def test_the_first_unwanted_tags_are_shown_to_people() -> None:
    """The mask would refuse them unseen, and then nobody knew which tags the messages have."""
    tags = TagFilter("paid")
    assert {tags.group(b"other-%d" % number) for number in range(20)} == {None}
    assert list(tags.unwanted) == [f"'other-{number}'" for number in range(UNWANTED_MAX)]


def test_the_mask_of_a_group_is_that_of_its_tags() -> None:
    """Those that it names, its own name, or the rest of what is subscribed; all where any tag can be in it."""
    tags = TagFilter("a || b || c || d || e", exclude="e", groups={"both": "a || b", "rest": "*"})
    assert tags.mask_of_group("both").bits == mask_of([b"a", b"b"])
    assert tags.mask_of_group("rest").bits == mask_of([b"c", b"d"])
    assert TagFilter().mask_of_group("paid").bits == tag_mask(b"paid")
    assert TagFilter().mask_of_group("").takes_all
    assert TagFilter(groups={"rest": "*"}).mask_of_group("rest").takes_all


def test_excluded_tags_are_refused_by_the_mask() -> None:
    """A tag that is subscribed and excluded is never wanted, so its bits are not among those of the wanted ones."""
    assert TagFilter("a || b", exclude="b").wants.bits == tag_mask(b"a")
    assert not TagFilter("a || b", exclude="b").may_match(tag_mask(b"b"))


def test_a_memo_within_another_remembers_what_that_one_does() -> None:
    """What the mask refuses fills no table behind it either."""
    tags = TagFilter("paid")
    behind = Memo(lambda raw: tags.groups[raw], within=tags.groups)
    assert behind[b"k" * 65] is None
    assert behind[b"paid"] == "paid"
    assert list(behind) == [b"paid"]
