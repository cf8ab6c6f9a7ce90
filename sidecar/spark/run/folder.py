"""Data that outlives a task, beside Spark's checkpoint: small files on storage that driver and executors share.

    incarnation, rules.json        of the checkpoint (see `pinned`)
    topics/<topic>                 Kafka: the topic's id when it was first read
    marks/<topic>-<queue>          RocketMQ: the last message of the last range (see `sources.rocketmq`)
    first, added                   start offsets of the checkpoint and of partitions new to it (see `range_source`);
                                   `first` counts from the first micro-batch that is planned (see `pinned`)
    halved/<micro-batch>/<topic>-<partition>/<hash>     a part that was replaced by its halves
    ids/<scope>-<partition>/                            windows of message ids (see `ranges.windows`)
    letters/<micro-batch>/<topic>-<partition>-<attempt> dead letters (see `letters`)
    twins/<micro-batch>            rows that tasks leave to the driver, with a ledger (see `twins`)
    books/<micro-batch>            the books of its tasks; with a table a folder with those of each task
    answers                        numbers of accepted and refused messages among the last
    notes/<topic>-<partition>      why a task does not progress at present; `-twins` for the driver's delivery of twins
    table, rejects                 with a table, a folder like this one for each of the queries
    hold                           the first micro-batch that must not begin, while the query is being stopped

Knows no Spark.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from sidecar.core.delivery.refusals import REFUSED_WINDOW
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.spark.ranges.shared import names, read, read_if_there, remove, write
from sidecar.spark.run.outcome import Outcome, books_of, group_of, joined, shown

if TYPE_CHECKING:
    from sidecar.core.ranges import Halved

HALVED_KEPT = 2
"""Number of micro-batches: a task that was given up may still look for the halves of the previous one."""


class Halves:
    """Parts that were replaced by their halves, by micro-batch and partition."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, batch: int, tp: TopicPartition) -> list[Halved]:
        """The parts of a partition's range that were replaced."""
        folder = self._folder(batch, tp)
        halves = [orjson.loads(read(folder / name)) for name in names(folder)]
        return [(group_of(shown), first, last) for shown, first, last in halves]

    def add_parts(self, batch: int, tp: TopicPartition, parts: Collection[Halved]) -> None:
        """Make durable that these parts were replaced."""
        for group, first, last in parts:
            half = orjson.dumps([shown(group), first, last])
            write(self._folder(batch, tp) / hashlib.blake2b(half, digest_size=16).hexdigest(), half)

    def _folder(self, batch: int, tp: TopicPartition) -> Path:
        return self._path / str(batch) / f"{tp.topic}-{tp.queue}"

    def forget_batch(self, batch: int) -> None:
        """Remove halves that no replay can need once micro-batch `batch` is about to be committed."""
        for name in names(self._path):
            if name.isdigit() and int(name) <= batch - HALVED_KEPT:
                _remove(self._path / name)


class BatchBooks:
    """The books of micro-batches, and the dead letters that these name."""

    def __init__(self, path: Path, letters: Path) -> None:
        self._path = path
        self._letters = letters

    def put(self, batch: int, books: dict[str, Any]) -> None:
        write(self._path / str(batch), orjson.dumps(books))

    def put_range(self, batch: int, outcome: Outcome) -> None:
        """Store the books of one task, which cannot report them otherwise; another attempt stores the same."""
        name = f"{outcome.tp.topic}-{outcome.tp.queue}"
        write(self._path / str(batch) / name, orjson.dumps(books_of([outcome])))

    def of(self, batch: int) -> dict[str, Any] | None:
        """The books of a micro-batch; None if they are unknown, or not yet or no longer stored."""
        path = self._path / str(batch)
        if path.is_dir():
            return joined([orjson.loads(read(path / name)) for name in names(path)])
        stored = read_if_there(path)
        return None if stored is None else orjson.loads(stored)

    def batches(self) -> list[int]:
        return sorted(int(name) for name in names(self._path) if name.isdigit())

    def forget_batch(self, batch: int) -> None:
        """Remove a micro-batch whose books were entered, with its and all earlier letters, which are in the state."""
        books = self._path / str(batch)
        _remove(books)
        if not books.exists():  # otherwise the next process would look for the letters that they name
            for name in names(self._letters):
                if name.isdigit() and int(name) <= batch:
                    _remove(self._letters / name)


class TaskNotes:
    """The reasons for which tasks do not progress; a lost note is harmless."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: dict[str, str] = {}
        """The texts that this process wrote; an attempt that died may have written others."""

    def put(self, name: str, text: str) -> None:
        """Note why a task does not progress; an empty text if it does."""
        if self._noted.get(name) == text:
            return
        self._noted[name] = text
        path = self._path / name
        with contextlib.suppress(OSError, StateError):
            if text:
                write(path, text.encode("utf-8", "replace"))
            else:
                path.unlink(missing_ok=True)

    def all(self) -> dict[str, str]:
        """The reasons by name of the note."""
        notes = {}
        for name in names(self._path):
            with contextlib.suppress(OSError, StateError):
                notes[name] = read(self._path / name).decode("utf-8", "replace")
        return notes

    def clear(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


class RunFolder:
    """The folder of one checkpoint, created if it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.halves = Halves(path / "halved")
        self.books = BatchBooks(path / "books", path / "letters")
        self.notes = TaskNotes(path / "notes")

    # Topics

    def known_topics(self) -> dict[str, str]:
        """The topics read so far, with their ids."""
        return {name: read(self.path / "topics" / name).decode() for name in names(self.path / "topics")}

    # The receiver's answers

    def answers(self) -> list[tuple[int, int]]:
        """Numbers of accepted and permanently refused messages of each micro-batch among the last 1,000 messages."""
        stored = read_if_there(self.path / "answers")
        return [] if stored is None else [(taken, refused) for taken, refused in orjson.loads(stored)]

    def add_answers(self, taken: int, refused: int) -> None:
        """Record the answers of a micro-batch; nothing is stored as long as nothing was refused."""
        known = [*self.answers(), (taken, refused)]
        while len(known) > 1 and sum(map(sum, known[1:])) >= REFUSED_WINDOW:
            del known[0]
        if any(count for _, count in known):
            write(self.path / "answers", orjson.dumps(known))
        else:
            remove(self.path / "answers")

    # Stopping

    def hold_from(self, batch: int | None) -> None:
        """Keep tasks of this micro-batch and later ones from beginning; None lets all begin."""
        if batch is None:
            remove(self.path / "hold")
        else:
            write(self.path / "hold", b"%d" % batch)

    def held(self, batch: int) -> bool:
        """Whether a task of this micro-batch must not begin."""
        first = read_if_there(self.path / "hold")
        return first is not None and batch >= int(first)


def _remove(path: Path) -> None:
    with contextlib.suppress(StateError):  # another attempt removes it too; a leftover is removed next time
        remove(path)
