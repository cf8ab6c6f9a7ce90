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


def lose_tail(path: Path, durable: int, number: int) -> None:
    """Keep the durable bytes of a file, and of the others some, or as many zeros, as the number decides."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(durable + number % (size - durable + 1))
        if number % 2:
            os.pwrite(file.fileno(), bytes(size - durable), durable)
