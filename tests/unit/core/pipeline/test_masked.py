"""What the mask of tags refuses in a run is filtered, and counted apart from what the exact look refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.tags import TagFilter
from sidecar.core.records import TopicPartition
from tests.support.shell import TP, Shell

LONG = b"x" * 100
"""So long that it is not remembered."""


def shell_of(tags: TagFilter, raws: dict[int, Raw], *, ids: bool = False) -> Shell:
    """A pipeline with this filter, and the tags of its messages by their offsets."""

    def read_tags(tp: TopicPartition, messages: Sequence[Any]) -> list[Raw]:
        return [raws[row[0]] for row in messages]

    shell = Shell(ids=ids)
    mask = {"may_want": tags.may_want, "plain_mask": tags.plain_mask, "refused": tags.refused}
    shell.pipeline.intake.change(
        replace(shell.pipeline.intake.reading, tags=read_tags, groups=tags.groups, **mask)  # type: ignore[arg-type]
    )
    return shell


@pytest.mark.parametrize("split", ["", ","])
@pytest.mark.parametrize("room", [0, 1, 100])
@pytest.mark.parametrize("ids", [False, True])
def test_refused_messages_are_filtered_and_counted(split: str, room: int, ids: bool) -> None:
    """In each run, whether their contents are remembered or not; what the mask lets through is looked at."""
    tags = TagFilter("paid || created || sent", split=split)
    tags.refused.room = room
    passed = next(tag for tag in (b"user-%d" % number for number in range(9_999)) if tags.may_want(tag))
    found: list[Raw] = [b"paid", b"user-1", b"user-2", LONG, passed, None, (b"a", b"b"), (b"a", b"paid")]
    raws = {offset: found[offset % len(found)] for offset in range(3 * len(found))}
    shell = shell_of(tags, raws, ids=ids)
    for first in range(0, len(raws), len(found)):
        shell.read(*((offset, 0, None, b"v") for offset in range(first, first + len(found))))
    shell.run()
    refused = sum(not tags.may_want(raw) for raw in raws.values())
    assert shell.pipeline.intake.refused == {"mask": refused, "look": 3}
    assert (shell.pipeline.books[TP].filtered, shell.pipeline.books[TP].delivered) == (refused + 3, 6)


def test_a_run_of_wanted_messages_needs_no_mask() -> None:
    """All of it is known by then."""
    tags = TagFilter("paid")
    tags.refused.room = 0
    shell = shell_of(tags, {0: b"paid", 1: b"paid"})
    for offset in range(2):
        shell.read((offset, 0, None, b"v"))
    shell.run()
    assert shell.pipeline.books[TP].delivered == 2
