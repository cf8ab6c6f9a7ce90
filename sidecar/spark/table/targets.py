"""The tables of a job: that of its rows, and with a schema that of the rejects. Imports no Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.config.spark import Merge
from sidecar.errors import ConfigError

TABLE: Final = "table"
REJECTS: Final = "rejects"


@dataclass(frozen=True, slots=True)
class Target:
    """One query: rows of the source that go to one table.

    With a schema there are two, and the second takes the rows that do not fit. Each has its own checkpoint.
    """

    name: str
    path: str
    checkpoint: str


def targets(checkpoint: str, path: str, schema: str | None, merge: Merge | None) -> list[Target]:
    """The target of the table, and that of the rejects beside it.

    Args:
        checkpoint: Of the job; the queries' are in it.
        schema: Of the JSON values, if they are parsed; what does not fit is a reject.
        merge: How rows replace others, if they do; what has no key or order is a reject.
    """
    chosen = [Target(TABLE, path, f"{checkpoint}/{TABLE}")]
    if schema is not None or merge is not None:
        chosen.append(Target(REJECTS, f"{path.rstrip('/')}-{REJECTS}", f"{checkpoint}/{REJECTS}"))
    return chosen


def schema_text(written: str) -> str:
    """The schema: the text itself if it contains a blank or a colon, otherwise the content of that file.

    Raises:
        ConfigError: There is no such file.
    """
    if re.search(r"[\s:]", written):
        return written
    try:
        return Path(written).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"spark.table.schema: cannot read {written}: {reason}",
            hint="Name a file, or write columns and types, such as `id bigint, amount double`",
        ) from error
