"""Held messages of a tag or a tag group: what their rows refuse, and what they tell themselves."""

from __future__ import annotations

import numpy as np
import pytest

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.tag_index import ENTRY, NO_TAGS, TagIndex
from sidecar.core.messages.tags import TagFilter
from sidecar.core.records import TopicPartition
from sidecar.delay.rows import Held
from sidecar.delay.sought import Sought

FILTER = TagFilter("x || y || z", groups={"last": "y || z"}, split=",")
INDEX = TagIndex(FILTER, "value")
VALUES = [b"x", b"y", b"z", b"x,y", b"other", b""]
SOUGHT = [
    (None, None, {b"x", b"y", b"z", b"x,y", b"other", b""}),
    ("x", None, {b"x", b"x,y"}),
    ("other", None, {b"other"}),
    (None, "last", {b"y", b"z"}),
    (None, "x", {b"x", b"x,y"}),
    ("y", "last", {b"y"}),
    ("y", "x", {b"x,y"}),
    ("x", "last", set()),
]


def sought(tag: str | None, group: str | None) -> Sought:
    """What is sought; the tags of a message are its value."""

    def read(_: object, messages: object) -> list[Raw]:
        return [held.value for held in messages]  # type: ignore[attr-defined]

    return Sought(FILTER, read, INDEX, tag, group)


@pytest.mark.parametrize(("tag", "group", "expected"), SOUGHT)
def test_a_message_tells_whether_it_is_sought(tag: str | None, group: str | None, expected: set[bytes]) -> None:
    """With several tags, its group is that of the first one that is wanted."""
    found = sought(tag, group)
    messages = [Held(0, 0, 0, None, NO_TAGS, None, b"", value) for value in VALUES]
    matches = found.matches(TopicPartition("t", 0), messages)
    assert {value for value, is_sought in zip(VALUES, matches, strict=True) if is_sought} == expected
    assert found.needs_content == (tag is not None or group is not None)


@pytest.mark.parametrize(("tag", "group", "expected"), SOUGHT)
def test_rows_refuse_most_others_and_none_that_is_sought(
    tag: str | None, group: str | None, expected: set[bytes]
) -> None:
    """With a tag and a group, both must be possible; a message of both groups' tags may be of either."""
    masks = np.array([ENTRY.unpack(INDEX.entries[value])[0] for value in VALUES], np.uint64)
    may_match = sought(tag, group).may_match(np.full(len(VALUES), INDEX.rules, np.uint32), masks)
    found = {value for value, may in zip(VALUES, may_match, strict=True) if may}
    assert expected <= found <= expected | {b"x,y"}
