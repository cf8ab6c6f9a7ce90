"""All hours of a store with one reader: which message is due next. Knows no log and no clock."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap

from sidecar import files
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.blocks import ROW_TYPE, Held, Table, find
from sidecar.delay.disk.changes import Changes
from sidecar.delay.disk.filename import SUFFIX, named_by
from sidecar.delay.disk.hour import (
    HOUR_MS,
    FileDamage,
    HourFile,
    Known,
    ShorterError,
    opened,
)
from sidecar.delay.disk.hours import Hours, NewRow, hour_of, start_of
from sidecar.delay.disk.rewriting import DamagedError, Rewrite
from sidecar.delay.disk.wheel import Positions, Wheel


class Spot(NamedTuple):
    """Where a message is."""

    hour: int
    number: int


class Calendar(Hours):
    """Messages by hour for one reader. An hour is loaded when its first message is taken, and never before.

    Args:
        folder: Has the files; it exists.
        known: What an earlier process knew of the files, by hour; other files are removed. None: all files count.
        mark: The highest position that an earlier process took; no message is put at or below it.
        damages: Gets the damage that is found.

    Raises:
        OSError: The folder cannot be read or changed.
    """

    def __init__(self, folder: Path, known: Mapping[int, Known] | None, mark: int, damages: list[FileDamage]) -> None:
        is_certain = known is not None
        self._old: list[Path] = []
        """Files that the next checkpoint does not need."""
        known = self._found(folder) if known is None else known
        super().__init__(folder, known, mark)
        self._damages = damages
        self._uncertain = (
            {} if is_certain else {hour: set(file.positions().tolist()) for hour, file in self._hours.items()}
        )
        """Positions of files that may have messages that are restored."""
        self._used: list[int] = []
        """A heap of the hours with messages to take."""
        self._loaded: list[HourFile] = []
        self.held = sum(file.left for file in self._hours.values())
        """Number of messages that are not settled."""
        self.has_settled_hours = False
        """Whether `drop` would remove files."""
        for file in self._hours.values():
            if file.left:
                self._note(file)
        for path in self._old:
            self._restore_from(path)

    def _found(self, folder: Path) -> dict[int, Known]:
        """Read the files themselves. An hour that was being rewritten has two: one of them is read like a log."""
        known: dict[int, Known] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            hour, salt = named_by(path) or (0, 0)
            if hour in known:
                self._old.append(path)
            elif hour:
                known[hour] = _known_of(path, salt)
        return known

    def _remove(self, strange: Iterable[Path]) -> None:
        super()._remove([path for path in strange if path not in self._old])

    def _restore_from(self, path: Path) -> None:
        hour, salt = named_by(path) or (0, 0)
        with opened(path) as read:
            for block in find(read, path.stat().st_size, salt):
                content = block.content(read)
                if content is None:
                    self._damages.append(FileDamage(path, "a block's checksum is wrong", block.messages))
                    continue
                self.restore(*content)
                self._uncertain[hour].update(np.frombuffer(content[0], ROW_TYPE)["position"].tolist())

    # Putting

    def put_many(self, rows: Iterable[NewRow], changes: Changes) -> list[int]:
        """Put messages; return their positions."""
        positions = super().put_many(rows, changes)
        self.held += len(positions)
        return positions

    def _note(self, file: HourFile) -> None:
        super()._note(file)
        if not file.in_use:
            file.in_use = True
            heapq.heappush(self._used, file.hour)

    def restore(self, table: bytes, payloads: memoryview) -> None:
        """Put messages that have positions already; see `_restore`."""
        self.held += self._restore(table, payloads, self._has)

    def _has(self, file: HourFile, _partition: int, position: int) -> bool:
        return position in self._uncertain.get(file.hour, ())

    # Taking

    def next(self) -> int | None:
        """A position below which nothing is to take: that of the next message, or the start of an hour."""
        while self._used:
            file = self._hours.get(self._used[0])
            if file is not None and file.left:
                if file.wheel is None:
                    return start_of(file.hour)
                position = file.wheel.next()
                if position is not None:
                    return position
            if file is not None:
                file.in_use = False
            heapq.heappop(self._used)
        return None

    def take_due(self, until: int, limit: int) -> list[tuple[Spot, Held]]:
        """Remove and return the messages below a position in their order, at most `limit`.

        Raises:
            OSError: The first file cannot be read; its messages come with a later call.
        """
        taken: list[tuple[Spot, Held]] = []
        while len(taken) < limit:
            position = self.next()
            if position is None or position >= until:
                break
            file = self._hours[hour_of(position)]
            entries = (file.wheel or self._load(file)).take_due(until, limit - len(taken))
            numbers = [number for _, number in entries if number not in file.settled]
            try:
                messages = list(file.read(numbers))
            except ShorterError:
                file.unload()  # it is loaded again, which counts the losses
                continue
            except OSError:
                file.unload()  # the entries that the wheel gave come again
                if taken:
                    break
                raise
            taken += zip([Spot(file.hour, number) for number in numbers], messages, strict=True)
            file.out.update(numbers)
            if entries:
                self.mark = max(self.mark, entries[-1][0])
        return taken

    def _load(self, file: HourFile) -> Wheel:
        for other in [other for other in self._loaded if not other.in_use and other.hour < hour_of(self.mark)]:
            other.unload()
            self._loaded.remove(other)
        self._lose(file)
        file.wheel = Wheel(file.positions(), file.to_take())
        self._loaded.append(file)
        self.has_settled_hours |= any(map(self._is_over, self._hours.values()))
        return file.wheel

    # Ending

    def settle(self, spots: Collection[Spot]) -> None:
        """Settle messages that are held."""
        touched: dict[int, HourFile] = {}
        for hour, number in spots:
            file = touched[hour] = self._hours[hour]
            file.settled.add(number)
            file.out.discard(number)
        self._fewer.update(touched)
        self.held -= len(spots)
        self.has_settled_hours |= any(map(self._is_over, touched.values()))

    def settle_positions(self, positions: Positions) -> None:
        """Settle the messages with these positions that are held.

        Raises:
            OSError: The file of an hour cannot be read.
        """
        hours = (positions >> np.uint64(SEQUENCE_BITS)) // HOUR_MS
        for hour in np.unique(hours).tolist():
            file = self._hours.get(hour)
            if file is not None:
                numbers = np.flatnonzero(np.isin(file.positions(), positions[hours == hour]))
                before = file.left
                file.settled |= BitMap(numbers.astype(np.uint32))
                self.held -= before - file.left
                self._fewer.add(hour)

    def find(self, position: int) -> Spot | None:
        """Where a message is that is not settled; None if there is none.

        Raises:
            OSError: The file of its hour cannot be read.
        """
        file = self._hours.get(hour_of(position))
        if file is None:
            return None
        numbers = np.flatnonzero(file.positions() == position)
        spots = [Spot(file.hour, int(number)) for number in numbers if int(number) not in file.settled]
        return spots[0] if spots else None

    def listed(self, first: int, end: int) -> Iterator[tuple[Positions, Positions]]:
        """Positions in [first, end) of messages that are held, in order, with their origins; an hour at a time.

        Raises:
            OSError: A file cannot be read.
        """
        for hour in sorted(self._hours):
            file = self._hours[hour]
            if start_of(hour + 1) <= first or start_of(hour) >= end or not file.left:
                continue
            held = [_held(file, number, table) for number, table in file.tables()]
            positions, origins = (
                np.concatenate([np.empty(0, np.uint64), *column]) for column in zip(*held, strict=True)
            )
            within = np.flatnonzero((positions >= first) & (positions < end))
            order = within[np.argsort(positions[within])]
            yield positions[order], origins[order]

    # Durability

    def sync(self, out: dict[int, Spot]) -> dict[int, Known]:
        """Make all files durable; return what a later process must know of them, but for those that `drop` removes.

        Args:
            out: Where the messages are that were taken and not settled; corrected.

        Raises:
            OSError: It failed.
        """
        self.flush()
        for hour in self.wasteful():
            self._rewrite(self._hours[hour], out)
        for file in self._hours.values():
            if not file.is_synced:
                file.sync()
        files.sync(self._folder)
        return {hour: file.known for hour, file in self._hours.items() if not self._is_over(file)}

    def _rewrite(self, file: HourFile, out: dict[int, Spot]) -> None:
        """Copy the messages of an hour that are not settled to another file."""
        self.spare(file.hour)
        try:
            rewrite = Rewrite(file, partial(self._ended, file), self.mark)
        except OSError:
            return
        try:
            rewrite.step(file.size)
        except DamagedError:
            known = len(file.settled)
            self._lose(file)
            if len(file.settled) > known:
                self._fewer.add(file.hour)
            return
        except OSError:  # such as a full disk: the file stays, and all that it has
            with suppress(OSError):
                files.remove(rewrite.following.path)
            return
        self._hours[file.hour] = rewrite.following
        self._loaded = [other for other in self._loaded if other is not file]
        self._old.append(file.path)
        self._fewer.add(file.hour)
        for position, spot in out.items():
            if spot.hour == file.hour:
                out[position] = Spot(file.hour, rewrite.moved(spot.number))

    def _lose(self, file: HourFile) -> None:
        before = file.left
        self._damages += file.load()
        self.held -= before - file.left

    def drop(self) -> None:
        """Remove what the checkpoint does not need: former files, and those of past hours that are all settled.

        Raises:
            OSError: One cannot be removed.
        """
        for hour, file in list(self._hours.items()):
            if self._is_over(file):
                self._old.append(file.path)
                del self._hours[hour]
                self._loaded = [other for other in self._loaded if other is not file]
        self.has_settled_hours = False
        while self._old:
            files.remove(self._old[-1])
            self._old.pop()

    def _is_over(self, file: HourFile) -> bool:
        return not file.left and file.hour < hour_of(self.mark)


def _known_of(path: Path, salt: int) -> Known:
    """Read a file itself: which messages are settled is forgotten.

    Raises:
        OSError: It cannot be read.
    """
    with opened(path) as read:
        blocks = list(find(read, path.stat().st_size, salt))
    end = max((block.end for block in blocks), default=0)
    messages = max((block.first + block.messages for block in blocks), default=0)
    return Known(end, messages, max((block.sequence for block in blocks), default=0), BitMap(), salt)


def _held(file: HourFile, first: int, table: Table) -> tuple[Positions, Positions]:
    """Positions and origins of the messages of a table that are not settled."""
    keep = ~file.settled_in(first, len(table))
    return table["position"][keep], table["origin"][keep]
