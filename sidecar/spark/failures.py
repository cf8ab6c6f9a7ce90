"""The cause of a query's end, from Spark's report with stack traces, and whether a restart helps. No Spark call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from sidecar.errors import EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, SidecarError, UnavailableError

PLAN: Final = "=== Streaming Query ==="
"""Begins the part of a report that has offsets and the query's plan; no error is in it."""
LINE_CHARS_MAX: Final = 500
AGAIN: Final = "start it again: it resumes where it stopped"
UNKNOWN: Final = f"{AGAIN}; if it ends with the same error, remove its cause first"
PERSON: Final = "remove the cause first: the same error ends each start until then"

_RAISED: Final = re.compile(r"[\w.$]+(Error|Exception): ")
_MODULE: Final = re.compile(r"^sidecar\.[\w.]*\.(?=\w+:)")
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]{5,}\]")


class Failure(NamedTuple):
    """The end of a query, and the process's exit code: `EXIT_CONFIG` if a restart would end in the same way."""

    cause: str
    exit_code: int
    hint: str


_KINDS: Final = (
    Failure(r"The error could be transient", EXIT_UNAVAILABLE, AGAIN),
    Failure(
        r"available in Kafka any more|\[KAFKA_DATA_LOSS",
        EXIT_CONFIG,
        "if messages expired, set spark.on_gap: log_start, and the next start goes on where the log begins; if the "
        "topic was deleted or created again, start over with another spark.checkpoint",
    ),
    Failure(
        r"\[DELTA_VIOLATE_CONSTRAINT|\[DELTA_(NEW_)?(NOT_NULL|MISSING_NOT_NULL)|\[DELTA_EXCEED_CHAR_VARCHAR"
        r"|failed validation check|[Ii]nvariant violation",
        EXIT_CONFIG,
        "rows violate a constraint of the table: drop it (ALTER TABLE ... DROP CONSTRAINT, or DROP NOT NULL) and start "
        "again. Such rows are rejects if there is a table of them (spark.table.schema) and the constraint was there at "
        "the start",
    ),
    Failure(
        r"\[DELTA_(UNSUPPORTED_FEATURES|INVALID_PROTOCOL_VERSION)|Unsupported table features|DeltaProtocolError",
        EXIT_CONFIG,
        "remove the feature from the table (ALTER TABLE ... DROP FEATURE), or use a version of Delta that has it",
    ),
    Failure(
        r"\[DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED|MAX_COMMIT_RETRIES)|Concurrent\w*Exception"
        r"|(Metadata|Protocol)ChangedException|CommitFailedError",
        EXIT_UNAVAILABLE,
        f"another program changed the table at that moment; {AGAIN}",
    ),
    Failure(r"No space left on device|Disk quota exceeded|\bENOSPC\b", EXIT_UNAVAILABLE, f"free some space; {AGAIN}"),
    Failure(
        r"OutOfMemoryError|Cannot allocate memory",
        EXIT_UNAVAILABLE,
        f"give it more memory (spark.driver.memory, spark.executor.memory); {AGAIN}",
    ),
    Failure(
        r"(Topic|Group|Cluster|TransactionalId)?Authorization\w*Exception|\w*AuthenticationException",
        EXIT_NO_PERMISSION,
        "check the credentials, and what this account may read",
    ),
    Failure(
        r"AccessControlException|AccessDenied|Permission denied|PermissionError",
        EXIT_CONFIG,
        "give this account access to the files of checkpoint and table",
    ),
    Failure(
        r"SchemaMismatchError|\[DELTA_(FAILED_TO_MERGE|METADATA_MISMATCH|CANNOT_MODIFY_APPEND_ONLY|GENERATED_COLUMN"
        r"|IDENTITY_COLUMN|COLUMN_NOT_FOUND|UPDATE_SCHEMA|SCHEMA_)|\[(CAST_|DIVIDE_BY_ZERO|ARITHMETIC_OVERFLOW"
        r"|NUMERIC_VALUE_OUT|UNRESOLVED_|DATATYPE_MISMATCH|INVALID_)",
        EXIT_CONFIG,
        PERSON,
    ),
    Failure(
        r"TimeoutException|Connection(Refused|Reset)?(Error|Exception)|Connection (refused|reset)|UnknownHostException"
        r"|SocketException|FetchFailed|ExecutorLostFailure|failed to connect back|Stale file handle",
        EXIT_UNAVAILABLE,
        AGAIN,
    ),
)
"""In the order in which they are tried: the first that is in the report, with a pattern in place of the cause."""
_HINTS: Final = {EXIT_CONFIG: PERSON, EXIT_NO_PERMISSION: "check the credentials, and what this account may read"}
"""For errors of Sidecar by exit code; a restart helps against those that are not listed."""


def failure_of(report: str) -> Failure:
    """The cause of a report, and what to do about it."""
    report = report.partition(PLAN)[0]
    cause = cause_of(report)
    own = _class_of(cause)
    if own is not None:
        again = AGAIN if issubclass(own, UnavailableError) else UNKNOWN
        return Failure(cause, own.exit_code, _HINTS.get(own.exit_code, again))
    for kind in _KINDS:
        if re.search(kind.cause, report):
            return kind._replace(cause=cause)
    return Failure(cause, EXIT_UNAVAILABLE, UNKNOWN)


def cause_of(report: str) -> str:
    """The line of the cause in a report with stack traces: Sidecar's, a condition's, Python's, or the first."""
    report = report.partition(PLAN)[0]
    lines = [line.strip(": \t") for line in report.splitlines() if line.strip(": \t")]
    ours = [line for line in lines if line.startswith("sidecar.")]
    own = [line for line in lines if "Python Proxy" not in line]  # errors of `foreachBatch` follow the proxy's line
    reasons = [line for line in lines if line.startswith("Reason: ")]  # of Spark's connector, behind four lines of text
    raised = [line for line in own if _RAISED.match(line) and not line.startswith("py4j.")]
    named = [line for line in raised if _CONDITION.search(line)]
    cause = (ours[-1:] or named or reasons or raised or own or ["no reason given"])[0]
    return _MODULE.sub("", cause)[:LINE_CHARS_MAX]


def _class_of(cause: str) -> type[SidecarError] | None:
    """The class of Sidecar's error whose line this is."""
    name = cause.partition(":")[0]
    return next((found for found in _subclasses(SidecarError) if found.__name__ == name), None)


def _subclasses(parent: type[SidecarError]) -> Iterator[type[SidecarError]]:
    for found in parent.__subclasses__():
        yield found
        yield from _subclasses(found)
