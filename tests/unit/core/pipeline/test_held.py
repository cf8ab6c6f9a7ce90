"""What the pipeline counts as held, beside what its objects take."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from sidecar.core.pipeline.pipeline import Pipeline
from tests.support.shell import Shell

GROUPS = 3_000
LARGE = 1 << 30


@pytest.mark.parametrize("rows", [1, 2, 20])
@pytest.mark.parametrize("ids", [False, True], ids=["without ids", "with ids"])
def test_open_messages_of_many_groups_are_counted_at_what_they_take(rows: int, *, ids: bool) -> None:
    """With one, two or twenty open rows in each of 3,000 groups memory is 0.75 to 1.1 of what is counted.

    What the allocator adds to each block is counted, and not traced.
    """
    shell = Shell(ids=ids, held=LARGE, linger_ms=LARGE, max_bytes=LARGE, max_messages=LARGE, span_max=LARGE)
    messages = [(i, i % GROUPS, i, b"1") for i in range(rows * GROUPS)]
    shell.read((0, -1, None, b"1"))
    tracemalloc.start()
    try:
        for at in range(1, len(messages), 500):
            shell.read(*messages[at : at + 500])
        gc.collect()
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted_bytes = shell.pipeline.gate.held_bytes + _ids_bytes(shell.pipeline)
    assert 0.75 * counted_bytes < taken_bytes < 1.1 * counted_bytes


def _ids_bytes(pipeline: Pipeline) -> int:
    """Of the ids that are remembered, which are counted apart."""
    return pipeline.remembered_ids().memory_bytes
