"""The folder of sorted message ids: its files, and which files replace others. Knows no row, no broker.

A file's name has its generation and its additions: `7-3-5.ids` has the third to fifth of generation 7. It is written
under another name and renamed, so each file is complete; a file whose additions are all in another sound file was about
to be removed when the process ended. One thread at a time writes files of a partition; any thread may drop them.
Methods raise `StateError` if the disk fails for a reason that is not a file's own, and `StoppedError` instead of a
write when the process ends.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sidecar import files
from sidecar.core.records import TopicPartition
from sidecar.core.windows.idruns import GROWTH, RUN_MAX, Keys, SortedRun
from sidecar.state.folder import IDS_FOLDER, errors
from sidecar.state.ids.file import Look, MappedRun, open_run, write
from sidecar.state.ids.places import IdFile, Places
from sidecar.state.interface import Damage


class IdFiles:
    """All files of ids below a state folder."""

    def __init__(self, folder: Path, on_damage: Callable[[Damage], None]) -> None:
        self._places = Places(folder / IDS_FOLDER, on_damage)
        self._lock = threading.RLock()
        self._open: dict[TopicPartition, list[IdFile]] = {}
        """The files found so far, in the order of generations and additions."""
        self._aside: dict[TopicPartition, set[str]] = {}
        self.closing = False
        """Set when the process ends, to stop writing of files."""

    def bind(self, cluster_id: str, group_id: str, *, ours: bool = False) -> None:
        """Drop the files of another cluster or group; those without an owner are `ours` if the state beside them is."""
        with self._lock:
            if not self._places.bind((cluster_id, group_id), ours=ours):
                self._open.clear()

    def add_keys(self, tp: TopicPartition, generation: int, keys: Keys) -> None:
        """Store rising keys durably."""
        number = max((file.last for file in self._files(tp)), default=0) + 1
        with errors("write", self._places.of(tp)):
            self._places.made(tp)
            self._make(tp, generation, number, number, [keys], ())

    def totals(self, tp: TopicPartition) -> dict[str, int]:
        """The names of a partition's files, each with its checksum."""
        return {file.path.name: file.run.total for file in self._files(tp)}

    def expect(self, tp: TopicPartition, totals: Mapping[str, int]) -> None:
        """Report files of `totals` that are missing, and set aside files with another checksum."""
        known = self._files(tp)
        reported = self._aside.pop(tp, set())
        for file in known:
            if totals.get(file.path.name, file.run.total) != file.run.total:
                self._places.set_aside(tp, file.path, "another file stands there")
                self._exchange(tp, file, None)
                reported.add(file.path.name)
        for name in totals.keys() - reported:
            if not any(file.holds(name) for file in known):
                self._places.tell(
                    tp, self._places.of(tp) / name, "removed while no daemon ran", "its ids are forgotten"
                )

    def changed(self) -> set[TopicPartition]:
        """Partitions with a file that is no longer the mapped one; takes 2 µs per file; from any thread."""
        with self._lock:
            known = [(tp, file) for tp, open_files in self._open.items() for file in open_files]
        with errors("look at", self._places.folder):
            return {tp for tp, file in known if Look.at(file.path) != file.run.look}

    def mend(self, tp: TopicPartition) -> None:
        """Write removed or replaced files again from their mapping; check changed ones."""
        for file in self._files(tp):
            with errors("write", file.path):
                self._mend(tp, file)

    def _mend(self, tp: TopicPartition, file: IdFile) -> None:
        now, known = Look.at(file.path), file.run.look
        if now == known or known is None:
            return
        if now is not None and now[:2] == known[:2]:
            run = self._places.sound(tp, file.path)
            self._exchange(tp, file, run)
            return
        hidden = self._places.made(tp) / f"{files.HIDDEN}{file.path.name}"
        write(hidden, [file.run.keys], lambda: self.closing)
        run = open_run(hidden)
        with self._lock:
            if file not in self._open[tp]:  # dropped meanwhile
                files.remove(hidden)
                return
            os.rename(hidden, file.path)  # noqa: PTH104
            files.sync(file.path.parent)
            self._exchange(tp, file, run)
        self._places.tell(tp, file.path, "removed" if now is None else "replaced", "made again from memory")

    def _exchange(self, tp: TopicPartition, file: IdFile, run: MappedRun | None) -> None:
        with self._lock:
            now = self._open[tp]
            if file in now:
                now[now.index(file) : now.index(file) + 1] = [replace(file, run=run)] if run is not None else []

    def tidy(self, tp: TopicPartition) -> None:
        """Merge files of similar size, so that there are few."""
        for generation in sorted({file.generation for file in self._files(tp)}):
            own = [file for file in self._files(tp) if file.generation == generation]
            together = _alike(own)
            if len(together) > 1:
                keys = [file.run.keys for file in together]
                with errors("write", self._places.of(tp)):
                    self._make(tp, generation, together[0].first, together[-1].last, keys, together)

    def _make(
        self, tp: TopicPartition, generation: int, first: int, last: int, keys: Sequence[Keys], old: Sequence[IdFile]
    ) -> None:
        path = self._places.of(tp) / f"{generation}-{first}-{last}.ids"
        hidden = path.with_name(f"{files.HIDDEN}{path.name}")
        write(hidden, keys, lambda: self.closing)
        run = open_run(hidden)
        with self._lock:
            now = self._open[tp]
            if any(file not in now for file in old):  # dropped meanwhile
                files.remove(hidden)
                return
            os.rename(hidden, path)  # noqa: PTH104
            files.sync(path.parent)
            kept = [file for file in now if file not in old]
            self._open[tp] = sorted(
                [*kept, IdFile(path, generation, first, last, run)], key=lambda file: (file.generation, file.first)
            )
            for file in old:
                files.remove(file.path)

    def runs(self, tp: TopicPartition) -> dict[int, list[SortedRun]]:
        """The runs of a partition, by generation; damaged files are set aside."""
        runs: dict[int, list[SortedRun]] = {}
        for file in self._files(tp):
            runs.setdefault(file.generation, []).append(file.run)
        return runs

    def drop_before(self, tp: TopicPartition, generation: int) -> None:
        """Remove the generations below this one."""
        with self._lock:
            if tp not in self._open and not self._places.has(tp):
                return
            for file in [file for file in self._files(tp) if file.generation < generation]:
                with errors("remove", file.path):
                    files.remove(file.path)
                self._open[tp].remove(file)

    def copy(self, source: TopicPartition, target: TopicPartition) -> None:
        """Replace the files of `target` by those of `source`; the bytes are not copied.

        Raises:
            StateError: It failed.
        """
        self.drop_before(target, 1 << 62)
        originals = self._files(source)
        if not originals:
            return
        folder = self._places.of(target)
        with errors("write", folder):
            files.make_folder(folder)
            for file in originals:
                _link(file.path, folder / file.path.name)
            files.sync(folder)
        with self._lock:
            self._open.pop(target, None)

    def _files(self, tp: TopicPartition) -> list[IdFile]:
        known = self._open.get(tp)
        if known is None:
            looked, aside = self._places.look(tp)
            with self._lock:
                if aside:
                    self._aside.setdefault(tp, set()).update(aside)
                known = self._open.setdefault(tp, looked)
        return list(known)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system has hard links
        shutil.copyfile(source, target)
        files.sync(target)


def _alike(own: Sequence[IdFile]) -> Sequence[IdFile]:
    """The newest files, back to the first that is much larger than all after it together."""
    size, first = len(own[-1].run), len(own) - 1
    while first and len(own[first - 1].run) < GROWTH * size and len(own[first - 1].run) + size <= RUN_MAX:
        first -= 1
        size += len(own[first].run)
    return own[first:]
