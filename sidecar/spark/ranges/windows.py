"""Windows of message ids as files: a version after each range, which names the sorted runs that the window consists of.

    <number>.json                        the window once everything up to `number` was read
    <number>-<generation>-<begun>.ids    a run, written with that version by a task that began from version `begun`

`number` rises with each range of a partition: it is a micro-batch, or an offset. A range adds its new ids as one run,
merged with those before that are not larger, so an id is written about log2 times, and never the whole window.

A version's content follows from the messages alone; its division into runs, from the version from which its task began.
So a task that runs again, or one that was given up long ago, writes the same bytes or other files. It may remove files
older than the version from which it began: a replay begins there too.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import orjson

from sidecar import files
from sidecar.core.windows.dedup import RotatingSet
from sidecar.core.windows.idruns import RUN_MAX, Keys, SortedRun
from sidecar.errors import StateError
from sidecar.spark.ranges.shared import error_of, names, read, remove, write
from sidecar.state.ids.file import DamagedIdsError, open_run
from sidecar.state.ids.file import write as write_run


class _Stored(NamedTuple):
    generation: int
    name: str
    run: SortedRun


class Windows:
    """The versions of one partition's window. Each method raises `StateError` if its files cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begun: int | None = None
        self._stored: list[_Stored] = []

    def versions(self) -> list[int]:
        """The numbers of all versions."""
        return [number for number in map(_version, names(self.folder)) if number is not None]

    def load(self, window: RotatingSet, most: int) -> int | None:
        """Fill a fresh window; return its version, None if there is none."""
        numbers = [number for number in self.versions() if number <= most]
        if not numbers:
            return None
        self._begun = max(numbers)
        runs: dict[int, list[SortedRun]] = {}
        for generation, name in orjson.loads(read(self._path(self._begun))):
            self._stored.append(_Stored(generation, name, self._open(name)))
            runs.setdefault(generation, []).append(self._stored[-1].run)
        window.restore(runs, {}, 0.0, -1)
        return self._begun

    def restart(self, most: int) -> bool:
        """Make the highest version up to `most` the one before number 0, and remove all others.

        A crash in between is harmless: the same call ends it.

        Returns:
            Whether there is such a version.
        """
        numbers = [number for number in map(_version, names(self.folder)) if number is not None and number <= most]
        if not numbers:
            return False
        kept: list[tuple[int, str]] = []
        if (begun := max(numbers)) >= 0:
            for generation, name in orjson.loads(read(self._path(begun))):
                kept.append((generation, f"-1-{generation}-{os.urandom(8).hex()}.ids"))  # each call has other names
                write(self.folder / kept[-1][1], read(self.folder / name))
            write(self._path(-1), orjson.dumps(kept))
            for name in names(self.folder):
                if name not in {"-1.json", *(new for _, new in kept)}:
                    remove(self.folder / name)
        return True

    def save(self, window: RotatingSet, number: int) -> None:
        """Make a version durable, and remove files that no replay needs."""
        kept: list[_Stored] = []
        for generation, ids in ((window.generation - 1, window.old), (window.generation, window.young)):
            ids.settle()
            before = [one for one in self._stored if one.generation == generation]
            new = [run.keys for run in ids.runs]
            size = sum(map(len, new))
            while size and before and len(before[-1].run) <= size and len(before[-1].run) + size <= RUN_MAX:
                size += len(before[-1].run)
                new.append(before.pop().run.keys)
            kept += before
            if size:
                kept.append(self._write(number, generation, new))
        write(self._path(number), orjson.dumps([(one.generation, one.name) for one in kept]))
        self._clean({one.name for one in (*kept, *self._stored)})

    def _write(self, number: int, generation: int, keys: list[Keys]) -> _Stored:
        name = f"{number}-{generation}-{self._begun}.ids"
        hidden = self.folder / f"{files.HIDDEN}{os.urandom(8).hex()}"
        try:
            files.make_folder(self.folder, shared=True)
            write_run(hidden, keys, lambda: False)
            hidden.rename(self.folder / name)  # durable with the version, which syncs the folder
        except OSError as error:
            raise error_of("write", self.folder / name, error) from error
        return _Stored(generation, name, self._open(name))

    def _open(self, name: str) -> SortedRun:
        path = self.folder / name
        try:
            return open_run(path)
        except DamagedIdsError as error:
            raise _damaged(path) from error
        except OSError as error:
            raise error_of("read", path, error) from error

    def _clean(self, needed: set[str]) -> None:
        if self._begun is None:
            return
        for name in names(self.folder):
            number = _version(name)
            is_old = number < self._begun if number is not None else _begin_of(name) <= self._begun
            if is_old and name not in needed:
                with contextlib.suppress(OSError):  # a leftover is removed next time
                    files.remove(self.folder / name)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.json"


def restart_all(folder: Path, most: int) -> bool:
    """Restart the windows of all partitions from version `most`; return whether there are any."""
    restarted = [Windows(folder / name).restart(most) for name in names(folder)]
    return any(restarted)


def _version(name: str) -> int | None:
    return int(name.removesuffix(".json")) if name.endswith(".json") else None


def _begin_of(name: str) -> int:
    """The version with which a run was written."""
    return int(name[: name.index("-", 1)])


def _damaged(path: Path) -> StateError:
    return StateError(
        f"the message ids in {path} are damaged",
        hint="restore the file from a copy; without it, repeats of earlier ids are not recognized",
    )
