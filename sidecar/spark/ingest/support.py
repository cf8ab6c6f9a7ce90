"""What the ingest job needs of the settings: where from, where to, under which names. No Spark is imported."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.config.document import Document, KeyPath, Place, Problem, parse
from sidecar.config.loader import InvalidConfigError, load
from sidecar.config.model import Settings
from sidecar.config.spark import Spark, Table
from sidecar.errors import ConfigError

REJECTS: Final = "rejects"
_NEEDED: Final = {
    ("sink", "spark"): "is missing: sink.spark.landing is the zone that the table is filled from",
    ("spark",): "is missing: spark.checkpoint says where the query keeps how far it came, spark.table what it fills",
    ("spark", "table"): "is missing: it says what is filled",
}


@dataclass(frozen=True, slots=True)
class Target:
    """One query: rows of the zone that go to one table.

    A schema makes two of them, and the second one takes what does not fit. Each has a checkpoint of its own, and is a
    consumer of its own in the zone.
    """

    name: str
    path: str
    checkpoint: str
    consumer: str


def targets(spark: Spark, table: Table) -> list[Target]:
    """The table, and with a schema the one for what does not fit, beside it."""
    found = [_target(spark, "table", table.path, f"{spark.checkpoint}/table")]
    if table.schema_ is not None:
        path = f"{table.path.rstrip('/')}-{REJECTS}"
        found.append(_target(spark, REJECTS, path, f"{spark.checkpoint}/{REJECTS}"))
    return found


def _target(spark: Spark, name: str, path: str, checkpoint: str) -> Target:
    # One name for one checkpoint: under the name of an earlier one, rows that this one needs may be gone by now.
    digest = hashlib.blake2b(f"{spark.checkpoint}\n{path}".encode(), digest_size=4).hexdigest()
    label = re.sub(r"[^A-Za-z0-9_-]", "_", path.rstrip("/").rpartition("/")[2])[:64]
    return Target(name, path, checkpoint, f"ingest-{label}-{digest}")


def schema_text(written: str) -> str:
    """The schema itself: what is written when a blank or a colon is in it, else what the file of that name has.

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


def load_for_ingest(path: str | Path) -> Settings:
    """The settings in a file that has all that the job needs.

    Raises:
        ConfigError: The file cannot be used, or something is missing: with its line.
    """
    settings = load(path)
    missing = [key for key in _NEEDED if _lacks(settings, key)]
    if missing:
        document = parse(Path(path).read_text("utf-8-sig"), lambda text, _: text)
        problems = [Problem(_place(document, key), key, _NEEDED[key]) for key in missing]
        raise InvalidConfigError(str(path), sorted(problems, key=lambda problem: problem.place))
    return settings


def _lacks(settings: Settings, key: KeyPath) -> bool:
    if key == ("spark", "table"):
        return settings.spark is not None and settings.spark.table is None
    return (settings.spark if key == ("spark",) else settings.sink.spark) is None


def _place(document: Document, key: KeyPath) -> Place:
    while key not in document.keys and key:
        key = key[:-1]
    return document.keys.get(key) or Place(1, 1)
