"""What the state file keeps of a queue: marks at growing distances, and what an earlier version wrote."""

from __future__ import annotations

import itertools
import json

from sidecar.sources.rocketmq.progress import MARKS_MAX, MARKS_RATIO, Mark, QueueProgress, with_newest


def test_marks_stand_at_growing_distances() -> None:
    """However many messages were read, a few marks reach far back, none much further than twice the one before."""
    marks: tuple[Mark, ...] = ()
    for offset in range(0, 20_000, 20):
        marks = with_newest(marks, Mark(offset, offset, 0))
        distances = [offset - mark.offset for mark in marks]
        assert len(marks) <= MARKS_MAX
        assert all(b <= MARKS_RATIO * a or b - a <= 20 for a, b in itertools.pairwise(distances[1:]))
    assert distances[-1] > 5_000


def test_a_row_with_one_mark_can_be_read() -> None:
    """So it was written at first."""
    found = QueueProgress.load(json.dumps(["text", 1, 2, 0, [7, 8, 9]]))
    assert found == QueueProgress("text", 1, 2, 0, (Mark(7, 8, 9),))
    assert QueueProgress.load(json.dumps(["text", 1, 2, 0, None])) == QueueProgress("text", 1, 2, 0)
    assert QueueProgress.load(found.dump()) == found
