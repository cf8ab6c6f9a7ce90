"""Reads the folder of a `PartitionStore` that no process has open. Writes nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from rocksdict import AccessType, Rdict, RdictIter

from sidecar.delay.database import DAMAGED, ROWS, DamageError, has_files, options, translated
from sidecar.delay.interface import FileDamage
from sidecar.delay.partition import HeldPartition
from sidecar.delay.reading import HeldRows
from sidecar.delay.salvage import lost
from sidecar.delay.stored import identity_in, identity_of
from sidecar.errors import NoStateError, StateError, UnavailableError
from sidecar.state.folder import holder_of

CONFIGURATION = "rocksdict-config.json"


class _ReadOnly:
    """The `Pairs` of a database that is not changed."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self._path = path
        self._links = ""
        found = options(skips_damage=True)
        with self.errors("read"):
            self._links = tempfile.mkdtemp(prefix="sidecar-delay-")
            weakref.finalize(self, shutil.rmtree, self._links, ignore_errors=True)
            if is_new:
                self._rows = Rdict(self._links, found)
            else:
                _link(path / ROWS, Path(self._links))
                self._rows = Rdict(self._links, found, access_type=AccessType.read_only())

    def cursor(self) -> RdictIter:
        return self._rows.iter()

    @contextlib.contextmanager
    def errors(self, verb: str) -> Iterator[None]:  # noqa: ARG002  # it only reads
        try:
            with translated():
                yield
        except DamageError as error:
            raise StateError(
                f"delayed messages: {self._path / ROWS} is damaged: "
                + str(error).replace(self._links, str(self._path / ROWS)),
                hint="start the daemon, which keeps what can be read, and says what cannot",
            ) from error
        except FileNotFoundError as error:
            raise _changed(self._path) from error
        except OSError as error:
            raise _unreadable(self._path, error) from error


def _link(rows: Path, folder: Path) -> None:
    """Link the files of a database in another folder: whoever opens one writes its configuration, even to read it."""
    for each in rows.iterdir():
        if each.name == CONFIGURATION:
            shutil.copy(each, folder)
        else:
            (folder / each.name).symlink_to(each.absolute())


class OfflineStore(HeldRows):
    """A `ReadStore` of what a `PartitionStore` would hold if it were opened now. `check` must follow the last call.

    No lock is held, so that a daemon can start meanwhile.

    Args:
        is_ours: Whether a partition's messages count in `hours`, by its name: a store may have another group's, too.

    Raises:
        NoStateError: There is no such folder.
        UnavailableError: A process uses the folder.
        StateError: The folder cannot be read, or another version wrote it.
    """

    def __init__(self, path: Path, is_ours: Callable[[bytes], bool] = lambda _: True) -> None:
        self._path, self._is_ours = path, is_ours
        self.damages: list[FileDamage] = []
        if not path.is_dir():
            raise NoStateError(
                f"there is no store of delayed messages in {path}",
                hint="check state.dir and delay.store, and that this is the host of the daemon",
            )
        self._refuse_in_use()
        try:
            for each in (path, path / ROWS) if (path / ROWS).exists() else (path,):
                os.scandir(each).close()
            self._version, identity = _version_of(path), identity_of(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        if (path / DAMAGED).exists():
            self.damages.append(FileDamage(path / ROWS, "it is damaged, and the next start keeps what can be read", 0))
        self.damages += lost(path)
        try:
            rows = _ReadOnly(path, is_new=not has_files(path / ROWS))
            if identity is None:
                with rows.errors("read"):
                    identity = identity_in(rows)
            super().__init__(rows, path, identity or 0)
        except UnavailableError as error:
            self.check()
            raise StateError(
                f"delayed messages: {path} cannot be used: a file of it is missing",
                hint="start the daemon, which keeps what can be read, or says which file is missing",
            ) from error

    def _counted(self) -> Iterable[HeldPartition]:
        return [each for each in self._partitions.values() if self._is_ours(each.name)]

    def check(self) -> None:
        """Verify that all that was read is from one moment.

        Raises:
            UnavailableError: A process has used the folder meanwhile.
        """
        self._refuse_in_use()
        if _version_of(self._path) != self._version:
            raise _changed(self._path)

    def _refuse_in_use(self) -> None:
        if holder := holder_of(self._path):
            raise UnavailableError(
                f"{self._path} is in use by {holder}, which does not answer",
                hint="look at `sidecar status`; a daemon with admin.listen: off answers no questions",
            )


def _changed(path: Path) -> UnavailableError:
    return UnavailableError(f"a daemon has used {path} meanwhile", hint="run the command again")


def _unreadable(path: Path, error: OSError) -> StateError:
    if isinstance(error, PermissionError) or "Permission denied" in str(error):
        return StateError(
            f"state folder: cannot read {error.filename or path}: Permission denied",
            hint="run this command as the user of the daemon",
        )
    return StateError(f"state folder: cannot read {path}: {error.strerror or error}")


def _version_of(path: Path) -> Mapping[str, int]:
    """Differs between any two openings of a store: each begins a log."""
    rows = path / ROWS
    return {each.name: each.inode() for each in os.scandir(rows)} if rows.exists() else {}
