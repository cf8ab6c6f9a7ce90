"""The folder of sorted message ids: which files there are, and which take the place of which. Knows no row, no broker.

A file's name says its generation and which additions are in it: `7-3-5.ids` has the third to fifth of generation 7. It
is made under another name and renamed, so one that is there is whole; one whose additions are all in another sound file
was about to be removed when the process ended. One thread at a time makes those of a partition; any may drop them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sidecar import files
from sidecar.core.idruns import GROWTH, RUN_MAX, Keys, SortedRun
from sidecar.core.records import TopicPartition
from sidecar.state.folder import state_error
from sidecar.state.id_file import DamagedError, open_run, write
from sidecar.state.interface import Damage, same_cluster

FOLDER = "ids"
_OWNER = "owner"
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.ids")


@dataclass(frozen=True, slots=True)
class IdFile:
    """One file, mapped."""

    path: Path
    generation: int
    first: int
    last: int
    run: SortedRun


class IdFiles:
    """All files of ids below a state folder.

    Args:
        folder: The state folder.
        on_damage: Told of what was set aside.
    """

    def __init__(self, folder: Path, on_damage: Callable[[Damage], None]) -> None:
        self._folder = folder / FOLDER
        self._on_damage = on_damage
        self._owner = ("", "")
        self._lock = threading.RLock()
        self._open: dict[TopicPartition, list[IdFile]] = {}
        """What was looked for so far, in the order of generations and additions."""
        self.closing = False
        """Set when the process ends: what is being made is given up."""

    def bind(self, cluster_id: str, group_id: str) -> None:
        """Drop the files of another owner: of a cluster or group whose ids these are not.

        Raises:
            StateError: The folder cannot be written.
        """
        self._owner = (cluster_id, group_id)
        path = self._folder / _OWNER
        try:
            if not self._folder.exists():
                return
            cluster, group = _pair(files.read_from(path))
            if group != group_id or not same_cluster(cluster, cluster_id):
                self.drop_all()
            if (cluster, group) != self._owner:
                files.put(path, json.dumps(self._owner).encode())
        except OSError as error:
            raise state_error("write", path, error) from error

    def add(self, tp: TopicPartition, generation: int, keys: Keys) -> None:
        """Keep rising keys, durably.

        Raises:
            StateError: The file cannot be written.
            StoppedError: The process ends.
        """
        place = self._place(tp)
        number = max((one.last for one in self._files(tp)), default=0) + 1
        try:
            files.make_folder(place)
            if not (self._folder / _OWNER).exists():
                files.put(self._folder / _OWNER, json.dumps(self._owner).encode())
            self._make(tp, generation, number, number, [keys], ())
        except OSError as error:
            raise state_error("write", place, error) from error

    def tidy(self, tp: TopicPartition) -> None:
        """Put files together that are of like size, so that there are few.

        Raises:
            StateError: A file cannot be written; all that was there still is.
            StoppedError: The process ends.
        """
        for generation in sorted({one.generation for one in self._files(tp)}):
            own = [one for one in self._files(tp) if one.generation == generation]
            together = _alike(own)
            if len(together) > 1:
                keys = [one.run.keys for one in together]
                try:
                    self._make(tp, generation, together[0].first, together[-1].last, keys, together)
                except OSError as error:
                    raise state_error("write", self._place(tp), error) from error

    def _make(
        self, tp: TopicPartition, generation: int, first: int, last: int, keys: Sequence[Keys], old: Sequence[IdFile]
    ) -> None:
        path = self._place(tp) / f"{generation}-{first}-{last}.ids"
        hidden = path.with_name(f"{files.HIDDEN}{path.name}")
        write(hidden, keys, lambda: self.closing)
        run = open_run(hidden)
        with self._lock:
            now = self._open[tp]
            if any(one not in now for one in old):  # dropped meanwhile
                files.remove(hidden)
                return
            os.rename(hidden, path)  # noqa: PTH104
            files.sync(path.parent)
            kept = [one for one in now if one not in old]
            self._open[tp] = sorted(
                [*kept, IdFile(path, generation, first, last, run)], key=lambda one: (one.generation, one.first)
            )
            for one in old:
                files.remove(one.path)

    def runs(self, tp: TopicPartition) -> dict[int, list[SortedRun]]:
        """What is kept of a partition, by generation; damaged files are set aside.

        Raises:
            StateError: A file cannot be read, for a reason that is not its own.
        """
        found: dict[int, list[SortedRun]] = {}
        for one in self._files(tp):
            found.setdefault(one.generation, []).append(one.run)
        return found

    def drop_before(self, tp: TopicPartition, generation: int) -> None:
        """Remove the generations below this one.

        Raises:
            StateError: A file cannot be removed.
        """
        with self._lock:
            if tp not in self._open and not self._place(tp).exists():
                return
            for one in [one for one in self._files(tp) if one.generation < generation]:
                try:
                    files.remove(one.path)
                except OSError as error:
                    raise state_error("remove", one.path, error) from error
                self._open[tp].remove(one)

    def drop_all(self) -> None:
        """Remove the files of all partitions.

        Raises:
            OSError: One cannot be removed.
        """
        with self._lock:
            for place in self._folder.iterdir() if self._folder.exists() else ():
                for path in place.iterdir() if place.is_dir() else ():
                    files.remove(path)
                if place.is_dir():
                    files.remove_folder_if_empty(place)
            self._open.clear()

    def copy(self, source: TopicPartition, target: TopicPartition) -> None:
        """Keep of `target` what is kept of `source`, in its place; the bytes are not copied.

        Raises:
            StateError: It failed.
        """
        self.drop_before(target, 1 << 62)
        found = self._files(source)
        if not found:
            return
        place = self._place(target)
        try:
            files.make_folder(place)
            for one in found:
                _link(one.path, place / one.path.name)
            files.sync(place)
        except OSError as error:
            raise state_error("write", place, error) from error
        with self._lock:
            self._open.pop(target, None)

    def _place(self, tp: TopicPartition) -> Path:
        topic, partition, broker = tp
        names = [quote(topic, safe=""), str(partition), *([quote(broker, safe="")] if broker else [])]
        return self._folder / ",".join(names)

    def _files(self, tp: TopicPartition) -> list[IdFile]:
        found = self._open.get(tp)
        if found is None:
            looked = self._look(tp)
            with self._lock:
                found = self._open.setdefault(tp, looked)
        return list(found)

    def _look(self, tp: TopicPartition) -> list[IdFile]:
        """What an earlier life left: whole files, of which some may be in others."""
        place = self._place(tp)
        named: list[tuple[int, int, int, Path]] = []
        for path in place.iterdir() if place.exists() else ():
            if parts := _NAME.fullmatch(path.name):
                generation, first, last = map(int, parts.groups())
                named.append((generation, first, -last, path))
            elif path.name.startswith(files.HIDDEN):
                with contextlib.suppress(OSError):
                    files.remove(path)
        found: list[IdFile] = []
        for generation, first, last, path in sorted(named):
            if found and found[-1].generation == generation and -last <= found[-1].last:
                with contextlib.suppress(OSError):
                    files.remove(path)
            elif (run := self._sound(tp, path)) is not None:
                found.append(IdFile(path, generation, first, -last, run))
        return found

    def _sound(self, tp: TopicPartition, path: Path) -> SortedRun | None:
        try:
            return open_run(path)
        except (DamagedError, ValueError) as error:
            reason = str(error)
        except OSError as error:
            if error.errno != errno.EIO:  # too many open files, say: the file may be sound
                raise state_error("read", path, error) from error
            reason = str(error)
        aside = path.with_name("damaged")  # the newest; what an earlier one lost is lost
        with contextlib.suppress(OSError):
            path.rename(aside)
        where = f"{tp.topic}:{tp.queue} {path.name}"
        self._on_damage(Damage("message ids", where, reason, f"set aside as {aside}, its ids are forgotten"))
        return None


def _pair(raw: bytes | None) -> tuple[str, str]:
    """Cluster and group of an owner's file; of one that is damaged, those of nobody."""
    with contextlib.suppress(ValueError, TypeError):
        first, second = json.loads(raw or b"")
        return str(first), str(second)
    return "", ""


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system has a second name for a file
        shutil.copyfile(source, target)
        files.sync(target)


def _alike(own: Sequence[IdFile]) -> Sequence[IdFile]:
    """The newest files, back to the first that is much larger than all after it together."""
    size, at = len(own[-1].run), len(own) - 1
    while at and len(own[at - 1].run) < GROWTH * size and len(own[at - 1].run) + size <= RUN_MAX:
        at -= 1
        size += len(own[at].run)
    return own[at:]
