"""What tasks leave to the driver of a ledger: a file for each micro-batch. Light to import: each commit does so."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from sidecar.core.records import TopicPartition
from sidecar.spark.ranges.shared import names, read, remove, write

if TYPE_CHECKING:
    from sidecar.core.claims import ClaimEnd
    from sidecar.core.delivery.output import Carried
    from sidecar.spark.run.outcome import Outcome

LETTERS = "letters"


@dataclass(slots=True)
class Kept:
    """What is left to do for one partition.

    Args:
        scope: Its identity in the names of parts.
        carried: Rows whose keys twins held.
        errors: Dead letters, of which the ledger is to be told.
    """

    tp: TopicPartition
    scope: str
    carried: list[Carried]
    errors: list[ClaimEnd]

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(len(rows.offsets) for rows in self.carried)


class TwinFiles:
    """The files ``twins/<micro-batch>``; one counts once Spark's log has the commit of its micro-batch."""

    def __init__(self, root: Path) -> None:
        self._path = root / "twins"
        self.letters = self._path / LETTERS
        """Folder of the dead letters among the rows."""

    def put_outcomes(self, batch: int, outcomes: Iterable[Outcome]) -> None:
        """Keep what the tasks of a micro-batch left, and nothing of an earlier attempt at it.

        Raises:
            StateError: It could not be written.
        """
        self.put(batch, [Kept(one.tp, one.scope, one.carried, one.errors) for one in outcomes])

    def put(self, batch: int, kept: Collection[Kept]) -> None:
        """Replace what is kept of a micro-batch; raises like `put_outcomes`."""
        found = [_fields(one) for one in kept if one.carried or one.errors]
        path = self._path / str(batch)
        if found:
            write(path, orjson.dumps(found))
        else:
            remove(path)

    def of(self, batch: int) -> list[Kept]:
        """What is kept of a micro-batch.

        Raises:
            StateError: It cannot be read.
        """
        return [_kept(fields) for fields in orjson.loads(read(self._path / str(batch)))]

    def batches(self) -> list[int]:
        """The micro-batches of which something is kept."""
        return sorted(int(name) for name in names(self._path) if name.isdigit())

    def letter_files(self) -> list[Path]:
        """Files with dead letters that are not in the state yet."""
        return [self.letters / name for name in names(self.letters)]

    def forget_letters(self, path: Path) -> None:
        """Remove a file whose dead letters are in the state; if that fails, they are stored again, without effect."""
        with contextlib.suppress(OSError):
            path.unlink()


def _fields(kept: Kept) -> dict[str, Any]:
    return {
        "topic": kept.tp.topic,
        "partition": kept.tp.partition,
        "broker": kept.tp.broker,
        "scope": kept.scope,
        "carried": [
            [_shown(rows.group), rows.first, rows.last, list(rows.offsets), base64.b64encode(rows.keys).decode()]
            for rows in kept.carried
        ],
        "errors": [[list(mark.offsets), base64.b64encode(mark.keys).decode()] for mark in kept.errors],
    }


def _kept(fields: dict[str, Any]) -> Kept:
    from sidecar.core.claims import ClaimEnd, ClaimState, place_of
    from sidecar.core.delivery.output import Carried

    tp = TopicPartition(fields["topic"], fields["partition"], fields.get("broker", ""))
    carried = [
        Carried(tp, _group(group), first, last, offsets, base64.b64decode(keys))
        for group, first, last, offsets, keys in fields["carried"]
    ]
    errors = [
        ClaimEnd(place_of(tp), ClaimState.ERROR, offsets, base64.b64decode(keys)) for offsets, keys in fields["errors"]
    ]
    return Kept(tp, fields["scope"], carried, errors)


def _shown(group: str) -> str:
    return group.encode("utf-8", "surrogateescape").decode("latin-1")  # tags that are not UTF-8 are not valid JSON


def _group(shown: str) -> str:
    return shown.encode("latin-1").decode("utf-8", "surrogateescape")
