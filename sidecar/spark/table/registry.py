"""The offsets of a Delta table's micro-batches, by query and number, in small files beside it. No Spark call.

    PATH/_sidecar/<query>/<micro-batch>     the source, and the offsets after it, in the checkpoint's form

The file of a micro-batch is created before its rows are committed, and never replaced; the table itself names its
micro-batches. So two checkpoints of one query, such as a copy, cannot put different rows under one number, and a new
checkpoint can go on where the table ends. Metadata of a commit, except its number, is lost when Delta cleans up its
log. `VACUUM` and readers ignore folders whose names begin with an underscore.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from sidecar.config.spark import Resume
from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.spark.table.pinned import SparkStorage, latest, query_of
from sidecar.spark.table.plan import TABLE, Target

FOLDER: Final = "_sidecar"
_KEPT: Final = 2
"""Number of files of a query: for a micro-batch, and for the last one in the table."""


class Beginning(NamedTuple):
    """The place up to which a query has read.

    Args:
        batch: The query's last micro-batch in the table.
        offsets: The offsets after it, in the form of the source.
    """

    batch: int
    offsets: dict[str, Any]


class Registry:
    """The micro-batches of one table."""

    def __init__(self, storage: SparkStorage, target: Target, source: str) -> None:
        self._storage = storage
        self._target = target
        self._source = source
        self._folder = f"{target.path.rstrip('/')}/{FOLDER}"

    def claim(self, query: str, batch: int) -> None:
        """Register a micro-batch, whose offsets are in the checkpoint, before any of its rows is written."""
        path = f"{self._folder}/{query}/{batch}"
        text = json.dumps({"source": self._source, "offsets": self._planned(batch)}).encode()
        if not self._storage.create(path, text):
            found = self._found(query, batch)
            if found is None:  # torn by a crash, so none of its rows was written
                self._storage.write(path, text)
            self._refuse_other(batch, found, f"; if a power loss took it from the checkpoint, remove {path}")
        self._storage.remove(f"{self._folder}/{query}/{batch - _KEPT}")

    def check(self, query: str, batch: int) -> None:
        """Compare the last micro-batch of a query in the table with that in the checkpoint."""
        self._refuse_other(batch, self._found(query, batch))

    def _refuse_other(self, batch: int, found: Mapping[str, Any] | None, way: str = "") -> None:
        if found is not None and found["offsets"] != self._planned(batch):
            raise ConfigError(
                f"the table {self._target.path} has other messages in micro-batch {batch} than the checkpoint "
                f"{self._target.checkpoint}: another copy of this checkpoint fills it too, or did",
                hint="Go on with the copy that filled the table last; or start over with another path of the table and "
                f"another spark.checkpoint{way}",
            )

    def _planned(self, batch: int) -> Any:
        return loads(self._storage.read(f"{self._target.checkpoint}/offsets/{batch}").splitlines()[-1])

    def _found(self, query: str, batch: int) -> Mapping[str, Any] | None:
        """The content of a file; None if it is missing, or a crash has torn it."""
        folder = f"{self._folder}/{query}"
        if str(batch) not in self._storage.names(folder):
            return None
        try:
            found: Mapping[str, Any] = loads(self._storage.read(f"{folder}/{batch}"))
        except ValueError:
            return None
        return found

    def earlier(self, query: str, last: Callable[[str], int | None], first: Mapping[str, Any]) -> Beginning | None:
        """The place of the earlier query that read furthest in the same topics or writers; None if there was none.

        Args:
            query: The present query; empty if it has no id yet.
            last: Returns the last micro-batch of a query in the table; -1 or None for none.

        Raises:
            ConfigError: An earlier query has filled the table, and its place is lost.
        """
        places: list[Beginning] = []
        for name in self._storage.names(self._folder):
            batch = None if name == query else last(name)
            if batch is None or batch < 0:
                continue
            found = self._found(name, batch)
            if found is None:
                raise ConfigError(
                    f"the table {self._target.path} has {batch + 1} micro-batches of another checkpoint, and the file "
                    f"{self._folder}/{name}/{batch}, which says what they have, is missing or torn",
                    hint="Bring it back; or use another path of the table; or set spark.table.resume: beside, if rows "
                    "may be in the table twice",
                )
            if found["source"] == self._source and found["offsets"].keys() & first.keys():
                places.append(Beginning(batch, found["offsets"]))
        return max(places, key=lambda place: _sum(place.offsets), default=None)


def _sum(offsets: Any) -> int:
    """A number that grows with each message, and with each new partition or writer."""
    return sum(map(_sum, offsets.values())) if isinstance(offsets, Mapping) else int(offsets) + 1


def beginnings(
    storage: SparkStorage,
    targets: Sequence[Target],
    source: str,
    first: Callable[[], Mapping[str, Any]],
    last: Callable[[str, str], int | None],
    resume: Resume,
) -> dict[str, Beginning]:
    """The places at which new queries resume, by name of the target; queries without one start where the source begins.

    Args:
        source: Name of the cluster or the zone: within it, the name of a topic or a writer identifies it forever.
        first: Returns the offsets at which a new checkpoint begins, in the form of the source.
        last: Returns the last micro-batch of a query in the table at a path; -1 or None for none.
    """
    new = [target for target in targets if latest(storage, f"{target.checkpoint}/offsets") < 0]
    if resume == "beside" or not new:
        return {}
    begun = first()
    found = {
        target.name: Registry(storage, target, source).earlier(
            query_of(storage, target), partial(last, target.path), begun
        )
        for target in targets
    }
    for target in new:
        place = found[target.name]
        if place is not None and resume == "stop":
            raise ConfigError(
                f"the table {target.path} has the same messages in {place.batch + 1} micro-batches of another "
                f"checkpoint, and the checkpoint {target.checkpoint} is new: all of them would be appended again",
                hint="Bring back the checkpoint that filled it; or set spark.table.resume: from_table to go on where "
                "the table ends; or use another path of the table",
            )
    places = {target.name: found[target.name] or found[TABLE] for target in new}
    return {name: place for name, place in places.items() if place is not None}
