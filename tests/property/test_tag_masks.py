"""The mask of tags never refuses what the exact look would take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.messages.tags import TagFilter

NAMES = [f"t{number}" for number in range(30)]
TAGS = st.sampled_from([name.encode() for name in NAMES]) | st.binary(max_size=3)
RAWS = st.none() | TAGS | st.tuples(TAGS, TAGS) | st.lists(TAGS, max_size=4).map(b" , ".join)


@st.composite
def filters(draw: st.DrawFn) -> TagFilter:
    """Any subscription, with exclusions, groups, a rest, and tags that are split."""
    wanted = draw(st.none() | st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    subscribed = wanted or NAMES
    excluded = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    named = [name for name in draw(st.lists(st.sampled_from(subscribed), unique=True)) if name not in excluded]
    groups = {named[0]: " || ".join(named)} if named else {}
    if draw(st.booleans()):
        groups["rest"] = "*"
    subscribe = " || ".join(wanted) if wanted else "*"
    return TagFilter(subscribe, " || ".join(excluded), groups, draw(st.sampled_from(["", ","])))


@given(filters(), st.lists(RAWS, max_size=40))
def test_what_the_look_takes_passes_the_mask(tags: TagFilter, raws: list[bytes | tuple[bytes, ...] | None]) -> None:
    """By its mask, by what its group's mask says, and by the path of messages, whatever was looked at before."""
    groups = list(map(tags.look, raws))
    if tags.plain_mask is not None:
        assert tags.plain_mask.fill(raws, [None] * len(raws), tags.look, None) == groups
    for raw, group in zip(raws, groups, strict=True):
        assert tags.groups[raw] == group
        if group is not None:
            assert tags.may_want(raw)
            assert tags.may_match(tags.mask(raw))
            assert tags.mask_of_group(group).may_match(tags.mask(raw))
