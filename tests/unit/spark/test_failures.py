"""Why a query ended, and whether a restart helps, by the reports of Spark, Delta, deltalake, Kafka and Sidecar."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sidecar import errors
from sidecar.spark.driver import QueryError, fail, not_started
from sidecar.spark.failures import AGAIN, UNKNOWN, cause_of, failure_of
from sidecar.spark.ranges.broker import ExpiredError

IN_TASK = """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/x/sidecar/spark/run/tables/reader.py", line 37, in read
    yield from rows_of_range(pickle.loads(self._job), partition)
sidecar.errors.{text}
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: table [id = b8b96484]
Logical Plan: Filter (tag = Permission denied)
"""
BY_PROXY = """\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/sidecar/spark/table/upserts.py", line 35, in write
    builder.whenMatched(LATER).updateAll().whenNotMatched().insertAll().execute()
{raised}


=== Streaming Query ===
Identifier: table [id = 1c9a7983]
"""
OF_JAVA = "py4j.protocol.Py4JJavaError: An error occurred while calling o3070.execute.\n: {raised}\n - offset : 12"
VIOLATED = (
    "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: [DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK "
    "constraint small (offset < 12) violated by row with values:"
)
DATA_LOSS = """\
Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason: Could not read records in offset [1004, 2008) for topic partition t-0
"""
KINDS = [
    # What a person must decide: a service manager does not repeat it.
    (IN_TASK.format(text="PositionError: t[0] was read to 7, and its log begins at 90"), 78, "remove the cause first"),
    (IN_TASK.format(text="ConfigError: option topics"), 78, "remove the cause first"),
    (DATA_LOSS, 78, "spark.on_gap: log_start.*another spark.checkpoint"),
    ("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint small (offset < 12) violated by row", 78, "drop it"),
    (BY_PROXY.format(raised=OF_JAVA.format(raised=VIOLATED)), 78, "drop it"),
    ("[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: tag.", 78, "drop it"),
    (
        BY_PROXY.format(
            raised="_internal.DeltaError: Generic DeltaTable error: External error: Invalid data found: 4 rows failed "
            "validation check."
        ),
        78,
        "drop it",
    ),
    ("[DELTA_UNSUPPORTED_FEATURES_FOR_WRITE] Unsupported Delta write feature", 78, "DROP FEATURE"),
    (
        BY_PROXY.format(raised="_internal.CommitFailedError: Unsupported table features required: [RowTracking]"),
        78,
        "DROP FEATURE",
    ),
    ("[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'a' and 'b'", 78, "remove the cause first"),
    ("[CAST_INVALID_INPUT] The value 'x' of the type STRING cannot be cast to INT", 78, "remove the cause first"),
    ("java.nio.file.AccessDeniedException: /table", 78, "access to the files"),
    (IN_TASK.format(text="CredentialsError: refused"), 77, "credentials"),
    ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", 77, "credentials"),
    # What passes by itself.
    (IN_TASK.format(text="UnavailableError: the broker has returned nothing"), 69, AGAIN),
    (IN_TASK.format(text="StateError: cannot write /x: Stale file handle"), 73, AGAIN),
    ("[DELTA_CONCURRENT_APPEND] Transaction conflict detected.", 69, f"another program changed the table.*{AGAIN}"),
    (BY_PROXY.format(raised="_internal.CommitFailedError: Metadata changed"), 69, "another program"),
    ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", 69, AGAIN),
    ("[MISMATCHED] Kafka data source in Trigger.AvailableNow ... The error could be transient - restart", 69, AGAIN),
    ("java.io.IOException: No space left on device", 69, f"free some space; {AGAIN}"),
    ("java.lang.OutOfMemoryError: Java heap space", 69, f"more memory.*{AGAIN}"),
    ("java.lang.IllegalStateException: nobody knows it", 69, UNKNOWN),
]


class Ends:
    """Takes how the job ended."""

    problem = ""

    def ended(self, problem: str = "") -> None:
        """Its problem."""
        self.problem = problem


@pytest.mark.parametrize(("report", "code", "hint"), KINDS)
def test_each_kind_has_a_code_and_a_hint_that_is_true(report: str, code: int, hint: str) -> None:
    """Only what may pass by itself says that a restart helps, and has a code after which a service is restarted."""
    found = failure_of(report)
    assert (found.exit_code, bool(re.search(hint, found.hint))) == (code, True), found
    assert (AGAIN in found.hint) == (code not in {77, 78})


def test_the_end_of_a_job_has_cause_code_and_hint() -> None:
    """They are those of the report, at the start of a query and later."""
    ends: Any = Ends()
    report = RuntimeError(DATA_LOSS)
    with pytest.raises(QueryError, match="the query ended: Reason: Could not read records") as caught:
        fail(ends, report)
    assert ends.problem.startswith("Reason: Could not read records in offset [1004, 2008)")
    told = not_started(report)
    assert {caught.value.exit_code, told.exit_code} == {78}
    assert caught.value.hint == told.hint == failure_of(DATA_LOSS).hint


@pytest.mark.parametrize(
    ("report", "cause"),
    [
        (IN_TASK.format(text="StateError: cannot write"), "StateError: cannot write"),
        (BY_PROXY.format(raised=OF_JAVA.format(raised=VIOLATED)), VIOLATED.rstrip(":")),
        (BY_PROXY.format(raised="_internal.DeltaError: 4 rows"), "_internal.DeltaError: 4 rows"),
        ("no such table", "no such table"),
        ("", "no reason given"),
    ],
)
def test_the_cause_is_one_line(report: str, cause: str) -> None:
    """Neither the call that failed nor the plan is the cause, but what was raised."""
    assert cause_of(report) == cause


OF_SIDECAR = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SidecarError)
]


@pytest.mark.parametrize("kind", [*OF_SIDECAR[1:], ExpiredError])
def test_an_error_of_sidecar_keeps_its_code(kind: type[errors.SidecarError]) -> None:
    """Whatever is raised in a task or in planning ends the job with the code of its class."""
    report = IN_TASK.replace("sidecar.errors.{text}", f"{kind.__module__}.{kind.__name__}: x")
    found = failure_of(report)
    assert (found.cause, found.exit_code) == (f"{kind.__name__}: x", kind.exit_code)
