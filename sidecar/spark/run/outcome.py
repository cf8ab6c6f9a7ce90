"""Outcomes of ranges, and the books of a micro-batch. Light to import: each commit is a new Python process."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from sidecar.core.books import Books
from sidecar.core.messages.tags import UNWANTED_MAX
from sidecar.core.records import Attempt, TopicPartition
from sidecar.spark.ranges.shared import names, read, remove, write
from sidecar.state.interface import StoredLetter

if TYPE_CHECKING:
    from sidecar.core.claims import ClaimEnd
    from sidecar.core.delivery.output import Carried

LETTERS = "letters"


class TwinFiles:
    """The files ``twins/<micro-batch>``: rows whose keys twins held, and claims of dead letters to be reported.

    A file is valid once Spark's log has the commit of its micro-batch.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "twins"
        self.letters = self._path / LETTERS
        """Folder of the dead letters among the rows."""

    def put(self, batch: int, outcomes: Iterable[Outcome]) -> None:
        """Store what the outcomes of a micro-batch's tasks leave to do, in place of an earlier attempt's."""
        found = [_fields(one) for one in outcomes if one.carried or one.errors]
        path = self._path / str(batch)
        if found:
            write(path, orjson.dumps(found))
        else:
            remove(path)

    def of(self, batch: int) -> list[Outcome]:
        """The outcomes of a micro-batch's tasks, as far as they leave anything to do."""
        return [_rest(fields) for fields in orjson.loads(read(self._path / str(batch)))]

    def batches(self) -> list[int]:
        """The micro-batches with unfinished work."""
        return sorted(int(name) for name in names(self._path) if name.isdigit())

    def letter_files(self) -> list[Path]:
        """Files with dead letters that are not in the state yet."""
        return [self.letters / name for name in names(self.letters)]

    def forget_letters(self, path: Path) -> None:
        """Remove a file whose dead letters are in the state; if that fails, they are stored again, without effect."""
        with contextlib.suppress(OSError):
            path.unlink()


def _fields(rest: Outcome) -> dict[str, Any]:
    return {
        "tp": [*rest.tp],
        "scope": rest.scope,
        "carried": [
            [shown(rows.group), rows.first, rows.last, list(rows.offsets), base64.b64encode(rows.keys).decode()]
            for rows in rest.carried
        ],
        "errors": [[list(mark.offsets), base64.b64encode(mark.keys).decode()] for mark in rest.errors],
    }


def _rest(fields: dict[str, Any]) -> Outcome:
    from sidecar.core.claims import ClaimEnd, ClaimState, place_of
    from sidecar.core.delivery.output import Carried

    tp = TopicPartition(*fields["tp"])
    carried = [
        Carried(tp, group_of(group), first, last, offsets, base64.b64decode(keys))
        for group, first, last, offsets, keys in fields["carried"]
    ]
    errors = [
        ClaimEnd(place_of(tp), ClaimState.ERROR, offsets, base64.b64decode(keys)) for offsets, keys in fields["errors"]
    ]
    return Outcome(tp, carried=carried, errors=errors, scope=fields["scope"])


def shown(group: str) -> str:
    """The name of a group for JSON, which has no tags that are not UTF-8."""
    return group.encode("utf-8", "surrogateescape").decode("latin-1")


def group_of(shown: str) -> str:
    """The group that `shown` names."""
    return shown.encode("latin-1").decode("utf-8", "surrogateescape")


STEM_CHARS = 200
"""A file's name has at most 255 characters; a topic alone may have 249."""
_BYTES = ("row", "envelope")
_TEXTS = ("group_name", "reason")


class LetterFiles:
    """Stores the letters of one task attempt: one file per call, with the attempt's own stem."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        digest = hashlib.blake2b(stem.encode(), digest_size=16).hexdigest()
        self._stem = stem if len(stem) <= STEM_CHARS else f"{stem[: STEM_CHARS - len(digest)]}{digest}"
        self.names: list[str] = []
        """The files written so far."""

    def put(self, letters: Sequence[StoredLetter]) -> int:
        """Make the letters durable."""
        name = f"{self._stem}-{len(self.names)}"
        write(self._folder / name, b"\n".join(map(_line, letters)))
        self.names.append(name)
        return len(letters)


def letters_in(path: Path) -> list[StoredLetter]:
    """The letters of one file."""
    return [_letter(line) for line in read(path).splitlines()]


def _line(letter: StoredLetter) -> bytes:
    fields = asdict(letter)
    for name in _BYTES:
        fields[name] = None if fields[name] is None else base64.b64encode(fields[name]).decode()
    for name in _TEXTS:  # may have surrogates, which JSON cannot have
        fields[name] = base64.b64encode(fields[name].encode("utf-8", "surrogatepass")).decode()
    fields["attempts"] = [[*attempt[:3], attempt[3].encode("utf-8", "replace").decode()] for attempt in letter.attempts]
    return orjson.dumps(fields)


def _letter(line: bytes) -> StoredLetter:
    fields: dict[str, Any] = orjson.loads(line)
    for name in _BYTES:
        fields[name] = None if fields[name] is None else base64.b64decode(fields[name])
    for name in _TEXTS:
        fields[name] = base64.b64decode(fields[name]).decode("utf-8", "surrogatepass")
    fields["attempts"] = tuple(Attempt(*attempt) for attempt in fields["attempts"])
    return StoredLetter(**fields)


@dataclass(slots=True)
class Outcome:
    """The outcome of a range."""

    tp: TopicPartition
    last: int = -1
    """Offset of the range's last row that was not filtered out earlier."""
    books: Books = field(default_factory=Books)
    cuts: Mapping[str, int] = field(default_factory=dict)
    sends: Mapping[tuple[str, str], int] = field(default_factory=dict)
    batches: Mapping[tuple[str, str], int] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)
    """Files with dead letters."""
    refused: int = 0
    """Number of messages that the receiver permanently refused."""
    carried: list[Carried] = field(default_factory=list)
    """Rows whose keys twins held; they count as in flight."""
    errors: list[ClaimEnd] = field(default_factory=list)
    """Claims of dead letters, to be reported to the ledger when the micro-batch is committed."""
    scope: str = ""
    """Identity of the partition in the names of parts."""
    lane: str | None = None
    """The reason why the fast lane did not read the range, empty if it did; None if the settings do not want it."""
    odd_ids: int = 0
    """Messages whose id cannot be compared."""
    tags_refused: Mapping[str, int] = field(default_factory=dict)
    """Messages that a task filtered, by the step that refused their tags: see `LOOKS`."""
    unwanted: Collection[str] = ()
    """Unwanted tags, for display."""
    expired: int = 0
    """Offsets before the range that expired before they were read."""

    @property
    def waiting(self) -> int:
        """Number of rows whose keys twins held."""
        return sum(len(rows.offsets) for rows in self.carried)


_Rows: TypeAlias = "Iterable[Sequence[Any]]"


def _counts(several: Iterable[_Rows]) -> list[list[Any]]:
    """Rows of a key and a count: a row for each key, with the sum."""
    total: Counter[tuple[Any, ...]] = Counter()
    for *key, count in chain.from_iterable(several):
        total[tuple(key)] += count
    return [[*key, count] for key, count in total.items()]


def _texts(several: Iterable[_Rows]) -> list[Any]:
    """Texts, each once."""
    return list(dict.fromkeys(chain.from_iterable(several)))


COUNTERS: Final[Mapping[str, Callable[[Iterable[_Rows]], list[Any]]]] = {
    "partitions": lambda several: list(chain.from_iterable(several)),
    "letters": _texts,
    "lane": _texts,
    "unwanted": lambda several: _texts(several)[:UNWANTED_MAX],
    **dict.fromkeys(("expired", "odd_ids", "cuts", "sends", "batches", "tags_refused"), _counts),
}
"""What the books of a range, a micro-batch and a run have, each a list in JSON, and how it adds up."""
BY_LABELS: Final = ("cuts", "sends", "batches", "tags_refused")
"""Counters of an outcome whose keys are labels of metrics."""


def books_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The books of a micro-batch, as JSON."""
    return joined([_books_of(outcome) for outcome in outcomes])


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several books as one."""
    return {name: add([part[name] for part in parts]) for name, add in COUNTERS.items()}


def _books_of(outcome: Outcome) -> dict[str, Any]:
    counts = {
        name: [[*([key] if isinstance(key, str) else key), count] for key, count in getattr(outcome, name).items()]
        for name in BY_LABELS
    }
    return {
        "partitions": [[*outcome.tp, asdict(outcome.books)]],
        "letters": outcome.letters,
        "lane": [] if outcome.lane is None else [outcome.lane],
        "unwanted": outcome.unwanted,
        "expired": [[*outcome.tp, outcome.expired]] if outcome.expired else [],
        "odd_ids": [[outcome.odd_ids]],
        **counts,
    }


def labelled(books: Mapping[str, Any], name: str) -> dict[Any, int]:
    """A counter of books by its label, or by its labels if it has several."""
    return {labels[0] if len(labels) == 1 else tuple(labels): count for *labels, count in books[name]}
