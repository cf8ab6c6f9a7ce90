"""Standard output and error of a command: text is escaped, and a failed write has an exit code. Lays out nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any, TextIO, cast

import click

from sidecar.errors import EXIT_IO, SidecarError


class OutputError(SidecarError):
    """A write to standard output failed."""

    exit_code = EXIT_IO


class ReaderGoneError(Exception):
    """The reader of the pipe has closed it: it wants no more, which is not a failure."""


def shown(text: str) -> str:
    """The text with terminal control characters escaped: brokers, producers and receivers wrote parts of it."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say(text: str, *, err: bool = False) -> None:
    """Print lines, which the terminal wraps; all but line ends is escaped."""
    click.echo("\n".join(map(shown, text.split("\n"))), err=err)


def say_marked(mark: str, color: str, text: str) -> None:
    """Print a line with a colored mark in front."""
    click.echo(f"{click.style(mark, fg=color)} {shown(text)}")


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON in ASCII, without terminal control characters."""
    click.echo(json.dumps(value, indent=indent))


@contextmanager
def guarded() -> Iterator[None]:
    """Let a failed write to stdout raise `OutputError` or `ReaderGoneError`, and one to stderr nothing.

    A message that nobody can read must not end the command's work; its exit code reports the outcome.
    """
    _open_closed()
    streams = sys.stdout, sys.stderr
    try:
        with (
            redirect_stdout(cast("TextIO", _Stream(sys.stdout, _told))),
            redirect_stderr(cast("TextIO", _Stream(sys.stderr, partial(suppress, OSError)))),
        ):
            yield
    finally:
        for stream in streams:
            _detach_failing(stream)


def _detach_failing(stream: TextIO) -> None:
    """Discard the buffer of a stream that fails, so that it does not fail again when the process ends."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _open_closed() -> None:
    """Open the standard streams that the caller closed: otherwise the next file or socket would get their output.

    A write to stdout fails as before; output to stderr is discarded.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number, which is this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


class _Stream:
    """A stream whose failed writes end in another way."""

    def __init__(self, stream: TextIO, failing: Callable[[], AbstractContextManager[None]]) -> None:
        self._stream = stream
        self._failing = failing
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # for characters that the locale cannot write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._failing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._failing():
            self._stream.flush()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError from error
    except OSError as error:
        raise OutputError(
            f"cannot write to standard output: {error.strerror}",
            hint="check where the output goes: the disk is full, or the stream is closed",
        ) from error
