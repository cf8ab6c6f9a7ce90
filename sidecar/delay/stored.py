"""Held messages of several partitions in a folder: opened, changed as a whole, made durable. Ends and takes nothing."""

from __future__ import annotations

import secrets
from pathlib import Path

from sidecar import files
from sidecar.core.snapshots import seal, unseal
from sidecar.delay.database import ROWS, DamageError, RowDatabase
from sidecar.delay.partition import COUNTS_MAX, HeldPartition, Write
from sidecar.delay.reading import MISSING, VERSION, HeldRows, unusable
from sidecar.delay.rows import Kind, hour_of, prefix
from sidecar.delay.salvage import salvage
from sidecar.state.folder import StateFolder

IDENTITY = "identity"
"""Says that the folder has a database, of which version, and what it is called in names."""
_KIND = "PartitionStore"


def identity_of(path: Path) -> int | None:
    """The 48 random bits that were drawn when a folder was new; None if it is.

    Raises:
        StateError: It has a database of another version, or one without its identity.
        OSError: It cannot be read.
    """
    raw = files.read_from(path / IDENTITY)
    is_there = (path / ROWS / "CURRENT").exists()
    try:
        if raw is not None and not is_there:
            raise ValueError(f"{path / ROWS} is missing, or damaged")
        return None if raw is None else int.from_bytes(unseal(_KIND, VERSION, raw), "big")
    except ValueError as error:
        raise unusable(path, error) from error


class StoredRows(HeldRows):
    """Rows that outlive the process.

    Args:
        path: A folder; created if it is missing.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    def __init__(self, path: Path) -> None:
        self._folder = StateFolder(path)
        self.damages = []
        try:
            self._open(path)
        except BaseException:
            self._folder.close()
            raise

    def _open(self, path: Path) -> None:
        with self._folder.errors("read"):
            try:
                salvage(path, self.damages)
                identity = identity_of(path)
                self._database = RowDatabase(self._folder, self.damages)
            except (DamageError, FileNotFoundError) as error:
                raise unusable(path, MISSING if isinstance(error, FileNotFoundError) else error) from error
            self.is_new = identity is None
            try:
                self._prepare(self._database)
                super().__init__(self._database, path, secrets.randbits(48) if identity is None else identity)
                if identity is None and self._partitions:
                    raise unusable(path, f"{IDENTITY} is missing")
                if identity is None:
                    files.put(path / IDENTITY, seal(_KIND, VERSION, self.id.to_bytes(8, "big")))
            except BaseException:
                self._database.close()
                raise
        self._unsynced: list[tuple[int, int]] = []
        """Changes with messages that are not durable, and their lowest positions."""
        self._free = max(self._partitions, default=-1) + 1
        """The number of the next new partition: above all that a process has used."""

    def _prepare(self, database: RowDatabase) -> None:
        """Change what an earlier process wrote, before it is read."""

    @property
    def writes(self) -> RowDatabase:
        """Its durability."""
        return self._database

    # Writing

    def _write(self, partition: HeldPartition, change: Write, *, folds: bool = False) -> None:
        """Write a change, and count it.

        Args:
            folds: Whether its origins are all that are known from now on.

        Raises:
            StateError: Nothing was written.
        """
        is_counted = bool(change.hours or change.origins or folds)
        if is_counted:
            if folds or partition.counts - partition.first_count >= COUNTS_MAX:
                folds = True
                partition.save(change)  # what is left out of a count is before the mark
                self._fold(partition, change)
            else:
                change.put(partition.count_key(partition.counts), partition.counted(change))
        ended = sum(-nbytes for _, nbytes in change.hours.values() if nbytes < 0)
        self._send(partition, change, ended)
        self._waiting_bytes += partition.apply(change)
        if folds:
            partition.first_count = partition.counts
            past, hours = hour_of(partition.mark), partition.hours
            partition.hours = {hour: each for hour, each in hours.items() if each.messages or hour >= past}
        partition.counts += is_counted

    def _send(self, partition: HeldPartition, change: Write, ended_bytes: int) -> None:  # noqa: ARG002  # see `LocalCache`
        """Write a change of a partition."""
        self._database.write(change.batch, ended_bytes)

    def _fold(self, partition: HeldPartition, change: Write) -> None:
        """Put one count in the place of all."""
        with self._database.errors("read"):
            for key, raw in list(self._database.under(prefix(Kind.COUNT, partition.number))):
                change.remove(key, raw)
        change.put(partition.count_key(partition.counts), partition.folded(change))

    def _remove_range(self, change: Write, first: bytes, end: bytes) -> None:
        """Remove keys of ended messages."""
        change.batch.delete_range(first, end)

    def number(self, name: bytes) -> int:
        """The number of a partition; a new one is permanent, and durable with the next sync.

        Raises:
            StateError: The disk cannot be written.
        """
        number = self._numbers.get(name)
        if number is None:
            number = self._free
            partition, change = HeldPartition(number, name, following=None), Write()
            partition.save(change)
            self._write(partition, change)
            self._partitions[number], self._numbers[name], self._free = partition, number, number + 1
        return number

    def close(self) -> None:
        """Make everything durable, and free the folder.

        Raises:
            StateError: It failed; the folder is free nevertheless.
        """
        try:
            self._database.sync()
        finally:
            self._database.close()
            self._folder.close()
