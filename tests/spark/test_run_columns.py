"""How Arrow batches become runs of messages. No Spark is started."""

from __future__ import annotations

import pyarrow as pa

from sidecar.spark.ranges.gathering import RUN_BYTES, RUN_ROWS
from sidecar.spark.run.task import ARROW_COLUMNS, runs
from tests.support.spark.tasks import SCHEMA, TP, batches

SIZES = [0, 10, RUN_BYTES // 3, RUN_BYTES * 2, 1, *[RUN_BYTES // RUN_ROWS + 100] * 700, *[5] * 1_300]
MESSAGES = [(7 + 2 * i, "a", None if size == 10 else b"x" * size) for i, size in enumerate(SIZES)]


def test_where_a_run_ends_does_not_depend_on_the_arrow_batches() -> None:
    """A run ends with its 500th row or with the row that reaches 4 MiB, however Spark cut the rows."""
    wanted, row, held = [], 0, 0
    for at, size in enumerate(SIZES, 1):
        held += 0 if size == 10 else size
        if at - row == RUN_ROWS or held >= RUN_BYTES or at == len(SIZES):
            wanted.append((MESSAGES[row][0], MESSAGES[at - 1][0], at - row))
            row, held = at, 0
    for rows in (1, 7, 499, 500, 501, 10_000):
        found = list(runs(batches(MESSAGES, rows), TP))
        assert [(run.first, run.last, len(run.messages)) for run in found] == wanted
        values = [value for run in found for value in ARROW_COLUMNS.values(run.messages)]
        assert values == [value for _, _, value in MESSAGES]


def test_headers_come_as_they_were_sent() -> None:
    """None, one and several headers a message, repeated names, and values that are null."""
    sent: list[list[list[tuple[str, bytes | None]] | None]] = [
        [[("tag", b"a")], [("tag", None)]],
        [[("tag", b"a"), ("tag", b"\xff"), ("", b"")], None, [], [("id", None)]],
    ]
    for headers in sent:
        rows = [
            {
                "topic": TP.topic,
                "partition": TP.partition,
                "offset": i,
                "headers": None if pairs is None else [{"key": name, "value": value} for name, value in pairs],
            }
            for i, pairs in enumerate(headers)
        ]
        (run,) = runs([pa.RecordBatch.from_pylist(rows, SCHEMA)], TP)
        found = ARROW_COLUMNS.headers(run.messages)
        assert [list(one or ()) for one in found] == [list(one or ()) for one in headers]
