"""What outlives a task beside Spark's checkpoint, as small files on storage that driver and executors share.

    incarnation, rules.json        of the checkpoint (see `pinned`)
    topics/<topic>                 the topic's id when it was first read
    first, added                   where the checkpoint, and partitions new to it, begin (see `range_source`)
    halved/<micro-batch>/<topic>-<partition>/<hash>     a part that was replaced by its halves
    ids/<scope>-<partition>/<micro-batch>               windows of message ids (see `windows`)
    letters/<micro-batch>/<topic>-<partition>-<attempt> dead letters (see `letters`)
    books/<micro-batch>            what its tasks came to
    answers                        how many of the last messages the receiver refused
    notes/<topic>-<partition>      why a task gets no further just now
    hold                           the first micro-batch that must not begin, while the query is being stopped

Every file is whole or not there: written under a hidden name, synced, renamed, and its folder synced. No Spark here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from sidecar import files
from sidecar.core.backoff import REFUSED_WINDOW
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError

if TYPE_CHECKING:
    from sidecar.spark.run.executor.ranges import Halved

HALVED_KEPT = 2
"""Micro-batches: a task that was given up may still look for the halves of the one before."""


class RunFolder:
    """The folder of one checkpoint.

    Args:
        path: Made when it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    # Parts that were halved

    def halved(self, batch: int, tp: TopicPartition) -> list[Halved]:
        """The parts of a partition's range that were replaced by their halves."""
        folder = self._halved(batch, tp)
        found = [orjson.loads(read(folder / name)) for name in names(folder)]
        return [(raw.encode("latin-1").decode("utf-8", "surrogateescape"), first, last) for raw, first, last in found]

    def add_halved(self, batch: int, tp: TopicPartition, parts: Collection[Halved]) -> None:
        """Make durable that these parts were replaced.

        Raises:
            StateError: They could not be written.
        """
        for group, first, last in parts:
            raw = group.encode("utf-8", "surrogateescape")  # tags that are not UTF-8 are no JSON
            name = hashlib.blake2b(b"%d-%d-%s" % (first, last, raw), digest_size=16).hexdigest()
            write(self._halved(batch, tp) / name, orjson.dumps([raw.decode("latin-1"), first, last]))

    def _halved(self, batch: int, tp: TopicPartition) -> Path:
        return self.path / "halved" / str(batch) / f"{tp.topic}-{tp.partition}"

    # Topics

    def claim_topic(self, topic: str, topic_id: str) -> str:
        """The id under which this checkpoint knows the topic: this one, when it knows none yet."""
        path = self.path / "topics" / topic
        if not path.exists():
            write(path, topic_id.encode(), exclusive=True)
        return read(path).decode()

    def known_topics(self) -> dict[str, str]:
        """The topics read so far, with their ids."""
        return {name: read(self.path / "topics" / name).decode() for name in names(self.path / "topics")}

    # Books

    def put_books(self, batch: int, books: dict[str, Any]) -> None:
        """Keep what a micro-batch came to."""
        write(self.path / "books" / str(batch), orjson.dumps(books))

    def books(self, batch: int) -> dict[str, Any] | None:
        """What a micro-batch came to; None when it is not known (any more)."""
        path = self.path / "books" / str(batch)
        return orjson.loads(read(path)) if path.exists() else None

    def batches_with_books(self) -> list[int]:
        """The micro-batches whose books are kept."""
        return sorted(int(name) for name in names(self.path / "books") if name.isdigit())

    # The receiver's answers

    def answers(self) -> list[tuple[int, int]]:
        """Of each micro-batch among the last 1,000 messages: how many were taken, and refused for good."""
        path = self.path / "answers"
        return [(taken, refused) for taken, refused in orjson.loads(read(path))] if path.exists() else []

    def add_answers(self, taken: int, refused: int) -> None:
        """Remember what a micro-batch was answered; nothing is kept while nothing is refused."""
        known = [*self.answers(), (taken, refused)]
        while len(known) > 1 and sum(map(sum, known[1:])) >= REFUSED_WINDOW:
            del known[0]
        if any(one for _, one in known):
            write(self.path / "answers", orjson.dumps(known))
        else:
            (self.path / "answers").unlink(missing_ok=True)

    # Notes

    def note(self, tp: TopicPartition, text: str) -> None:
        """Tell the driver why a task gets no further; empty when it does. A note that is lost harms nothing."""
        path = self.path / "notes" / f"{tp.topic}-{tp.partition}"
        with contextlib.suppress(OSError, StateError):
            if text:
                write(path, text.encode("utf-8", "replace"))
            else:
                path.unlink(missing_ok=True)

    def notes(self) -> dict[str, str]:
        """By partition, why its task gets no further."""
        found = {}
        for name in names(self.path / "notes"):
            with contextlib.suppress(OSError, StateError):
                found[name] = read(self.path / "notes" / name).decode("utf-8", "replace")
        return found

    def clear_notes(self) -> None:
        """Those of an earlier life say nothing any more."""
        shutil.rmtree(self.path / "notes", ignore_errors=True)

    # Stopping

    def hold_from(self, batch: int | None) -> None:
        """No task of this micro-batch and of later ones may begin; None lets all begin."""
        if batch is None:
            (self.path / "hold").unlink(missing_ok=True)
        else:
            write(self.path / "hold", b"%d" % batch)

    def held(self, batch: int) -> bool:
        """Whether a task of this micro-batch must not begin."""
        path = self.path / "hold"
        return path.exists() and batch >= int(read(path))

    # The past

    def forget_halved(self, batch: int) -> None:
        """Remove what no replay can ask for once micro-batch `batch` is about to be committed."""
        for name in names(self.path / "halved"):
            if name.isdigit() and int(name) <= batch - HALVED_KEPT:
                _remove(self.path / "halved" / name)

    def forget_books(self, batch: int) -> None:
        """The books of a micro-batch were entered, and its letters, like those of all before it, are in the state."""
        books, letters = self.path / "books" / str(batch), self.path / "letters"
        _remove(books)
        if not books.exists():  # else a next life would look for the letters that it names
            for name in names(letters):
                if name.isdigit() and int(name) <= batch:
                    _remove(letters / name)


def names(folder: Path) -> list[str]:
    """What stands in a folder, hidden names left out; nothing when it is not there."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []


def read(path: Path) -> bytes:
    """A file as a whole.

    Raises:
        StateError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise _error("read", path, error) from error


def write(path: Path, data: bytes, *, exclusive: bool = False) -> None:
    """Make a file durable, whole or not at all, in place of one that is there.

    Args:
        path: Its folder is made when it is missing.
        data: The content.
        exclusive: One that is there stays as it is.

    Raises:
        StateError: It could not be written.
    """
    try:
        files.make_folder(path.parent)
        files.put_shared(path, data, exclusive=exclusive)
    except OSError as error:
        raise _error("write", path, error) from error


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another attempt removes it too; what stays is removed next time
        shutil.rmtree(path) if path.is_dir() else files.remove(path)


def _error(action: str, path: Path, error: OSError) -> StateError:
    return StateError(
        f"cannot {action} {path}: {error.strerror or error}",
        hint="spark.checkpoint must be on storage that the driver and all executors share and can write to",
    )
