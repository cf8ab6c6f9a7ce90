"""Held messages of several partitions in a folder: opened, changed as a whole, made durable. Ends and takes nothing."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from sidecar import files
from sidecar.core.snapshots import seal, unseal
from sidecar.delay.database import DAMAGED, ROWS, DamageError, ForeignFileError, RowDatabase, has_files, pairs
from sidecar.delay.interface import StorePlace
from sidecar.delay.partition import COUNTS_MAX, HeldPartition, Write
from sidecar.delay.reading import VERSION, HeldRows, Pairs, unusable
from sidecar.delay.rows import STORE_BYTES, Kind, hour_of
from sidecar.delay.salvage import LOST, lost, resume, salvage
from sidecar.errors import StateError
from sidecar.state.folder import StateFolder, errors

IDENTITY = "identity"
"""Says that the folder has a database, of which version, and what it is called in names."""
_KIND = "PartitionStore"


def identity_of(path: Path) -> int | None:
    """The 48 random bits that were drawn when a folder was new; None if that is not written.

    Raises:
        StateError: It has a database of another version, or lacks its database.
        OSError: It cannot be read.
    """
    raw = files.read_from(path / IDENTITY)
    try:
        identity = None if raw is None else int.from_bytes(unseal(_KIND, VERSION, raw), "big")
    except ValueError as error:
        raise StateError(
            f"delayed messages: {path / IDENTITY} cannot be used: {error}",
            hint="use the version of Sidecar that wrote it; if it is damaged, remove it: the database has it, too",
        ) from error
    if identity is not None and not has_files(path / ROWS):
        raise unusable(path, f"{path / ROWS} is missing")
    return identity


def identity_in(database: Pairs) -> int | None:
    """The identity that the content of a database names; None if it has none."""
    found = next(pairs(database.cursor(), Kind.COUNT), None)
    return None if found is None else int.from_bytes(found[1][:STORE_BYTES], "big")


class StoredRows(HeldRows):
    """Rows that outlive the process.

    Args:
        path: A folder; created if it is missing.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    is_only = True
    """Whether nothing else has these rows: then a start keeps what can be read of a damaged database."""

    def __init__(self, path: Path) -> None:
        self._folder = StateFolder(path)
        self.damages = []
        try:
            self._open(path)
        except BaseException:
            self._folder.close()
            raise

    def _open(self, path: Path) -> None:
        with errors("read", self._folder.path):
            written = self._open_database(path)
            try:
                found = identity_in(self._database) if written is None else written
                self.is_new = found is None
                super().__init__(self._database, path, secrets.randbits(48) if found is None else found)
                if written is None:
                    files.put(path / IDENTITY, seal(_KIND, VERSION, self.id.to_bytes(8, "big")))
            except BaseException:
                self._database.close()
                raise
        self._unsynced: list[tuple[int, int]] = []
        """Changes with messages that are not durable, and their lowest positions."""
        self._free = max(self._partitions, default=-1) + 1
        """The number of the next new partition: above all that a process has used."""

    def _open_database(self, path: Path) -> int | None:
        """Open the database, or what can be read of it; return the identity that is written beside it."""
        try:
            resume(path)
            identity = identity_of(path)
            if self.is_only and (path / DAMAGED).exists():
                salvage(path, identity)
            try:
                self._database = RowDatabase(self._folder, self.damages, identity, is_only=self.is_only)
            except ForeignFileError:
                raise
            except (DamageError, FileNotFoundError) as error:
                if not self.is_only or str(getattr(error, "filename", "")).endswith(".sst"):
                    raise
                salvage(path, identity, error)
                self._database = RowDatabase(self._folder, self.damages, identity, is_only=self.is_only)
            self.damages += lost(path)
        except ForeignFileError as error:
            raise unusable(path, error) from error
        except DamageError as error:
            raise unusable(path, error, else_kept=not (path / DAMAGED).exists()) from error
        except FileNotFoundError as error:
            raise unusable(path, f"{error.filename or 'a file of it'} is missing", else_kept=True) from error
        return identity

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
                change.batch.put(partition.count_key(partition.counts), self._mark + partition.counted(change))
        change.ended_bytes = sum(-nbytes for _, nbytes in change.hours.values() if nbytes < 0)
        self._send(partition, change)
        self._waiting_bytes += partition.apply(change)
        partition.last_change = self._database.last
        if folds:
            partition.first_count = partition.counts
            past, hours = hour_of(partition.mark), partition.hours
            partition.hours = {hour: each for hour, each in hours.items() if each.messages or hour >= past}
        partition.counts += is_counted

    def _send(self, partition: HeldPartition, change: Write) -> None:  # noqa: ARG002  # see `LocalCache`
        """Write a change of a partition."""
        self._database.write(change.batch, change.ended_bytes)

    def _fold(self, partition: HeldPartition, change: Write) -> None:
        """Put one count in the place of all."""
        change.batch.delete_range(partition.count_key(partition.first_count), partition.count_key(partition.counts))
        change.batch.put(partition.count_key(partition.counts), self._mark + partition.folded(change))

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

    def place(self, number: int) -> StorePlace:
        partition, database = self._partitions[number], self._database
        last = min(partition.last_change, database.durable)
        here = self.id, f"{self.id:x}.{number}"
        return StorePlace(*here, 0, last, database.found, partition.messages, partition.put_below)

    def note_reported(self) -> None:
        with suppress(OSError):
            files.remove(self._folder.path / LOST)

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
