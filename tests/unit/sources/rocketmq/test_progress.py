"""What the state file keeps of a queue: marks at growing distances."""

from __future__ import annotations

import itertools
import json

import pytest

from sidecar.sources.rocketmq.progress import MARKS_MAX, MARKS_RATIO, QueueMark, QueueProgress, with_newest
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import as_stored
from tests.support.rocketmq_bytes import Stored, stored


def test_marks_stand_at_growing_distances() -> None:
    """However many messages were read, a few marks reach far back, none much further than twice the one before."""
    marks: tuple[QueueMark, ...] = ()
    for offset in range(0, 20_000, 20):
        marks = with_newest(marks, QueueMark(offset, offset, 0))
        distances = [offset - mark.offset for mark in marks]
        assert len(marks) <= MARKS_MAX
        assert all(b <= MARKS_RATIO * a or b - a <= 20 for a, b in itertools.pairwise(distances[1:]))
    assert distances[-1] > 5_000


def test_a_row_of_another_form_is_none() -> None:
    """A row has six values, or the queue is as one without a row."""
    row = QueueProgress("text", 1, 2, 0, (QueueMark(7, 8, 9),))
    assert QueueProgress.load(row.dump()) == row
    assert QueueProgress.load(json.dumps(["text", 1, 2, 0, []])) is None


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (Stored(offset=7, position=50), True),
        (Stored(offset=7, position=3), True),
        (Stored(offset=5, position=50), True),
        (Stored(offset=7, position=50, born_ms=0), False),
        (Stored(offset=9, position=50, born_ms=0), None),
    ],
    ids=["as it was", "moved by compaction", "in its batch", "another message", "removed by compaction"],
)
def test_what_an_answer_tells_of_a_mark(there: Stored, found: bool | None) -> None:
    """Only another message at its offset tells another queue: compaction removes messages, and moves the rest."""
    mark = QueueMark(7, 50, Stored().born_ms + 1)
    answer = Frame(Code.SUCCESS, 1, 1, "", {}, stored(there))
    assert mark.found_in(as_stored(answer.body)) is found
    assert mark.stands(answer) is (found is not False)
