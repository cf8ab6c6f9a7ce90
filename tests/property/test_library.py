"""The library's parts beside models that are too simple to be wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar import Progress

STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "read", "settle", "commit", "reload", "advance", "rewind"]), st.integers(0, 30)),
    max_size=150,
)


@given(STEPS)
def test_progress_is_as_a_naive_model(steps: list[tuple[str, int]]) -> None:
    """Gaps, any order of settling, rewinds, snapshots: the commit is the first offset that is read and not settled."""
    progress: Progress[str] = Progress()
    progress.begin("p", 0)
    read: dict[int, bool] = {}  # offset to whether it is settled
    position = committed = 0
    for step, number in steps:
        waiting = [offset for offset, settled in read.items() if not settled]
        if step == "read":
            offset = position + (number if number < 5 else 0)
            assert progress.read("p", offset)
            read[offset] = False
            position = offset + 1
        elif step == "settle" and read:
            offset = list(read)[number % len(read)]
            assert progress.settled("p", offset) is not read[offset]
            read[offset] = True
        elif step == "rewind" and position:
            assert not progress.read("p", number % position)
        elif step == "advance":
            progress.advance("p", position + number)
            position += number
        elif step == "commit":
            for key, offset in progress.to_commit().items():
                progress.committed(key, offset)
                committed = offset
        elif step == "reload":
            blob, progress = progress.dump("p"), Progress()
            progress.load("p", blob)
            progress.begin("p", committed)
            assert progress.dump("p") == blob
            again = progress.to_commit().get("p", committed)
            assert [o for o in range(again, position) if progress.read("p", o)] == sorted(waiting)
        waiting = sorted(offset for offset, settled in read.items() if not settled)
        expected = waiting[0] if waiting else position
        assert progress.to_commit().get("p", committed) == expected
        assert (progress.oldest("p"), progress.unsettled()) == (waiting[0] if waiting else None, len(waiting))
        assert progress.span("p") == position - expected
