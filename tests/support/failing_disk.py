"""What becomes of files when calls to the system fail, or the machine dies."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CALLS = ("pwrite", "fdatasync", "fsync", "rename", "unlink", "ftruncate", "open")


@contextmanager
def call_fails(number: int) -> Iterator[None]:
    """Let the call with this number, counted from 1, to any of `CALLS` fail with EIO; none if it is 0."""
    left = [number]

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: object, **more: object) -> Any:
            left[0] -= 1
            if not left[0]:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*args, **more)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, failing(getattr(os, name)))
        yield


class Durable:
    """Notes which bytes and names of a folder become durable.

    Args:
        folder: The folder.
        patch: For the calls that make something durable.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._names: set[str] = set()
        patch.setattr(os, "fsync", self._noting(os.fsync))
        patch.setattr(os, "fdatasync", self._noting(os.fdatasync))

    def _noting(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def noted(fd: int) -> None:
            call(fd)
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if path == self._folder:
                self._names = {file.name for file in path.iterdir()}
            else:
                self._sizes[path.name.lstrip(".")] = os.fstat(fd).st_size

        return noted

    def lose_power(self, number: int) -> None:
        """Of what was not durable keep some, or zeros in its place, as the number decides."""
        for path in list(self._folder.iterdir()):
            if path.name not in self._names and number % 3:
                path.unlink()
            else:
                lose_tail(path, min(self._sizes.get(path.name, 0), path.stat().st_size), number)


def lose_tail(path: Path, durable: int, number: int) -> None:
    """Keep the durable bytes of a file, and of the others some, or as many zeros, as the number decides."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(durable + number % (size - durable + 1))
        if number % 2:
            os.pwrite(file.fileno(), bytes(size - durable), durable)
