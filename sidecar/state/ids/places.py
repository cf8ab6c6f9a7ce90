"""The folders of sorted message ids, their owner, and their files. Writes no file, and keeps none open.

Methods raise `StateError` if the disk fails for a reason that is not a file's own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from sidecar import files
from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.state.folder import errors, state_error
from sidecar.state.ids.file import DamagedIdsError, MappedRun, open_run
from sidecar.state.interface import Damage, same_cluster

_OWNER = "owner"
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.ids")


@dataclass(frozen=True, slots=True)
class IdFile:
    """One file, mapped."""

    path: Path
    generation: int
    first: int
    last: int
    run: MappedRun

    def holds(self, name: str) -> bool:
        """Whether this file has all additions of the file of this name."""
        generation, first, last = _parts(name) or (-1, 0, 0)
        return self.generation == generation and self.first <= first and last <= self.last


class Places:
    """The folders of all partitions below one that may be missing; `on_damage` is called for each file set aside."""

    def __init__(self, folder: Path, on_damage: Callable[[Damage], None]) -> None:
        self.folder = folder
        self._on_damage = on_damage
        self._owner = ("", "")

    def bind(self, owner: tuple[str, str], *, ours: bool) -> bool:
        """Remove another owner's files, and unowned ones unless they are `ours`; return whether there were none."""
        self._owner = owner
        path = self.folder / _OWNER
        with errors("write", path):
            if not self.folder.exists():
                return True
            names = _pair(files.read_from(path))
            if names is None and not ours and next(self.folder.rglob("*.ids"), None):
                self._on_damage(
                    Damage("message ids", str(path), "it does not tell whose they are", "all are forgotten")
                )
            cluster, group = names or (owner if ours else ("", ""))
            same = group == owner[1] and same_cluster(cluster, owner[0])
            if not same:
                self._remove_all()
            if names != owner:
                files.put(path, json.dumps(owner).encode())
            return same

    def _remove_all(self) -> None:
        for folder in self.folder.iterdir():
            for path in folder.iterdir() if folder.is_dir() else ():
                files.remove(path)
            if folder.is_dir():
                files.remove_folder_if_empty(folder)

    def of(self, tp: TopicPartition) -> Path:
        """The folder of a partition."""
        return self.folder / folder_name(tp)

    def has(self, tp: TopicPartition) -> bool:
        """Whether a partition has a folder; raises `StateError` if the folder cannot be examined."""
        with errors("read", self.of(tp)):
            return self.of(tp).exists()

    def made(self, tp: TopicPartition) -> Path:
        """The folder of a partition, created if it is missing; it has a file that names its owner.

        Raises:
            OSError: It cannot be created.
        """
        folder = self.of(tp)
        files.make_folder(folder)
        if not (self.folder / _OWNER).exists():
            files.put_shared(self.folder / _OWNER, json.dumps(self._owner).encode())  # threads of all partitions
        return folder

    def look(self, tp: TopicPartition) -> tuple[list[IdFile], set[str]]:
        """The complete files of an earlier process, which may overlap, and the names of damaged ones."""
        folder = self.of(tp)
        named: list[tuple[int, int, int, Path]] = []
        with errors("read", folder):
            there = list(folder.iterdir()) if folder.exists() else []
        for path in there:
            if parts := _parts(path.name):
                generation, first, last = parts
                named.append((generation, first, -last, path))
            elif path.name.startswith(files.HIDDEN):
                with contextlib.suppress(OSError):
                    files.remove(path)
        ids_files: list[IdFile] = []
        damaged: set[str] = set()
        for generation, first, last, path in sorted(named):
            if ids_files and ids_files[-1].generation == generation and -last <= ids_files[-1].last:
                with contextlib.suppress(OSError):
                    files.remove(path)
            elif (run := self.sound(tp, path)) is not None:
                ids_files.append(IdFile(path, generation, first, -last, run))
            else:
                damaged.add(path.name)
        return ids_files, damaged

    def sound(self, tp: TopicPartition, path: Path) -> MappedRun | None:
        """A mapped file of the partition; None for a damaged one, which is set aside."""
        try:
            return open_run(path)
        except (DamagedIdsError, ValueError) as error:
            reason = str(error)
        except OSError as error:
            if error.errno != errno.EIO:  # for example too many open files: the file may be sound
                raise state_error("read", path, error) from error
            reason = str(error)
        self.set_aside(tp, path, reason)
        return None

    def set_aside(self, tp: TopicPartition, path: Path, reason: str) -> None:
        aside = path.with_name("damaged")  # only the newest is kept
        with contextlib.suppress(OSError):
            path.rename(aside)
        self.tell(tp, path, reason, f"set aside as {aside}, its ids are forgotten")

    def tell(self, tp: TopicPartition, path: Path, reason: str, outcome: str) -> None:
        """Report damage to a file of the partition."""
        self._on_damage(Damage("message ids", f"{tp.topic}:{tp.queue} {path.name}", reason, outcome))


def folder_name(tp: TopicPartition) -> str:
    """The name of a partition's folder."""
    topic, partition, broker = tp
    return ",".join([quote(topic, safe=""), str(partition), *([quote(broker, safe="")] if broker else [])])


def found(folder: Path) -> Iterator[tuple[TopicPartition, Path]]:
    """The files of ids below the parent of all partitions' folders, in no order; nothing is opened or removed.

    Raises:
        OSError: A folder cannot be read.
    """
    for path in folder.glob("*/*.ids"):
        topic, partition, *broker = map(unquote, path.parent.name.split(","))
        if _parts(path.name) and partition.isdecimal():
            yield TopicPartition(topic, int(partition), *broker), path


def generation_of(name: str) -> int:
    """The generation of a file, from its name."""
    return (_parts(name) or (-1, 0, 0))[0]


def _parts(name: str) -> tuple[int, int, int] | None:
    """Generation, first and last addition in a file's name; None for another name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _pair(raw: bytes | None) -> tuple[str, str] | None:
    """Cluster and group of an owner's file; None if it is missing or damaged."""
    with contextlib.suppress(ValueError, TypeError):
        first, second = loads(raw or b"")
        return str(first), str(second)
    return None
