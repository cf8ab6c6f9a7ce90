"""Settings that must not change during a pending micro-batch, kept beside the checkpoint. Files only; no Spark.

The cuts of a range, and the treatment of each message, follow from these settings. While a micro-batch is pending, and
may have been sent in part, other settings would send the same messages under other names.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from sidecar.config.members import decided
from sidecar.config.model import Settings
from sidecar.core.partition_state import derived_scope
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, StateError
from sidecar.spark.ranges.shared import names, read, read_if_there, read_or_make, remove, write
from sidecar.spark.reports import places_in
from sidecar.spark.run.outcome import TwinFiles
from sidecar.state.offset_map import Identity

CUTS_VERSION = 1
"""Version of the code that makes runs and cuts: raised if the same rows may be cut in another way."""


class Checkpoint(NamedTuple):
    """The identity of a checkpoint.

    Args:
        incarnation: Random number, drawn once; 64 bits.
        rules: Hash of the pinned settings.
        ids: The settings that define message ids, as JSON.
        pending: The micro-batch that an earlier process began and did not finish; -1 for none.
    """

    incarnation: int
    cluster_id: str
    group_id: str
    rules: str
    ids: str
    pending: int

    def scope(self, topic_id: str) -> str:
        """The identity of a topic in the names of parts."""
        return derived_scope(self._identity(topic_id), "spark", self.rules)

    def ids_scope(self, topic_id: str) -> str:
        """The identity of a topic for its message ids: under other limits, the ids stay known."""
        return derived_scope(self._identity(topic_id), "ids", self.ids)

    def _identity(self, topic_id: str) -> str:
        return Identity(self.cluster_id, self.group_id, topic_id, self.incarnation).scope


def rules_of(settings: Settings) -> dict[str, Any]:
    """The settings that determine the cuts of a range, by their names in the file."""
    return {"version": CUTS_VERSION, **decided(settings, lambda row: row.is_pinned)}


def open_checkpoint(queries: Sequence[Path], folder: Path, settings: Settings, cluster_id: str) -> Checkpoint:
    """Bind a checkpoint to these settings, or check that it is bound to them.

    Raises:
        ConfigError: It is bound to other settings, and a micro-batch is pending, or the queries have not read equally
            far; or it is another cluster's; or a ledger was removed while messages wait for their twins.
        StateError: Sidecar's folder is missing beside a used checkpoint, or cannot be written.
    """
    incarnation = _incarnation(queries, folder, cluster_id)
    if all(latest_batch(query, "offsets") < 0 for query in queries):
        _forget_start(queries, folder)
    pending = max(map(pending_batch, queries))
    rules = rules_of(settings)
    if settings.dedup.ledger is None and (waiting := TwinFiles(folder).batches()):
        raise ConfigError(
            f"dedup.ledger was removed, and messages of micro-batch {waiting[0]} wait for their twins in the ledger",
            hint="finish them with the previous file (sidecar spark run --once), then remove it",
        )
    path = folder / "rules.json"
    stored = read_if_there(path)
    before = rules if stored is None else orjson.loads(stored)
    if before != rules:
        if pending >= 0:
            raise _changed(before, rules, f"micro-batch {pending} is pending: parts of it may have been sent, cut by")
        if len(set(map(_reached, queries))) > 1:
            raise _changed(before, rules, "the table and its rejects are at different places: both are to be made by")
        write(path, orjson.dumps(rules))
    elif stored is None:
        write(path, orjson.dumps(rules))
    digest = hashlib.blake2b(orjson.dumps(rules, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
    ids = orjson.dumps(decided(settings, lambda row: row.names_ids)).decode()
    return Checkpoint(incarnation, cluster_id, settings.source.group_id, digest, ids, pending)


def pin_reader(folder: Path, reader: str, pending: int, missing: str = "") -> None:
    """Pin the reader of a pending micro-batch: the connector's rows are filtered before they are cut into runs.

    Args:
        reader: The value of `spark.reader`, or its replacement if there is no connector.
        pending: The micro-batch that an earlier process did not finish; -1 for none.
        missing: The connector's package, if Spark lacks it.
    """
    path, before = folder / "reader", pinned_reader(folder)
    if before != reader and pending >= 0:
        needed = f"the package {missing}" if missing else f"spark.reader {before}"
        raise ConfigError(
            f"micro-batch {pending} is pending and was read by the {before}, not by the {reader}: parts of it may have "
            "been sent, cut differently",
            hint=f"finish it once with {needed} (sidecar spark run --once)",
        )
    write(path, reader.encode())


def pinned_reader(folder: Path) -> str:
    """The reader of the last start."""
    return (read_if_there(folder / "reader") or b"connector").decode()


def begun_at(query: Path) -> dict[TopicPartition, int]:
    """The offsets from which a query resumes, or its pending micro-batch is read; empty if it is new."""
    begun = latest_batch(query, "offsets")
    last = begun - 1 if pending_batch(query) >= 0 else begun
    if begun < 0:
        return {}
    if last < 0:  # only for Spark's connector: other sources keep their start themselves
        text = read_if_there(query / "sources" / "0" / "0")
        return places_in(text.decode().partition("\n")[2]) if text else {}
    return places_in(read(query / "offsets" / str(last)).decode().splitlines()[-1])


def _incarnation(queries: Sequence[Path], folder: Path, cluster_id: str) -> int:
    query = queries[0]

    def made() -> bytes:
        if any(latest_batch(one, "offsets") >= 0 for one in queries):
            raise StateError(
                f"{query} was used before, and {folder} beside it is missing: pending parts would get other names",
                hint="restore the folder from a copy, or start over with another spark.checkpoint",
            )
        return orjson.dumps([secrets.randbits(63), cluster_id])

    incarnation, bound = orjson.loads(read_or_make(folder / "incarnation", made))
    if bound != cluster_id:
        raise ConfigError(
            f"the checkpoint {query.parent} belongs to another cluster ({bound}, not {cluster_id})",
            hint="give each cluster its own spark.checkpoint",
        )
    return int(incarnation)


def _forget_start(queries: Sequence[Path], folder: Path) -> None:
    """Remove the start offsets of a start that failed: a daemon may have read on since.

    Nothing was delivered from them, because Spark logs the offsets of a micro-batch before its tasks run.
    """
    remove(folder / "first")
    for query in queries:
        remove(folder / query.name / "first")
        remove(query / "sources")  # the connector's start offsets


def latest_batch(query: Path, log: str) -> int:
    """The highest micro-batch in one of Spark's logs, `offsets` or `commits`; -1 for none."""
    return max((int(name) for name in names(query / log) if name.isdigit()), default=-1)


def pending_batch(query: Path) -> int:
    """The micro-batch that was begun and not finished; -1 for none."""
    begun = latest_batch(query, "offsets")
    return begun if begun > latest_batch(query, "commits") else -1


def _reached(query: Path) -> bytes:
    """The offsets to which a query has read, from Spark's log; empty if there are none."""
    begun = latest_batch(query, "offsets")
    return read(query / "offsets" / str(begun)).splitlines()[-1] if begun >= 0 else b""


def _changed(before: dict[str, Any], now: dict[str, Any], state: str) -> ConfigError:
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return ConfigError(
        f"{', '.join(keys)} changed while {state} the previous settings",
        hint="finish it once with the previous settings (sidecar spark run --once), then change them",
    )
