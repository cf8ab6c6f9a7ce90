"""Loads settings from a file, or reports all its problems at once. The only module that reads the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from sidecar.config.base import Expanded
from sidecar.config.document import (
    FILE_PREFIX,
    Document,
    FilePosition,
    FileProblem,
    KeyPath,
    expand,
    parse,
    read_secret,
)
from sidecar.config.model import Settings
from sidecar.errors import ConfigError

FILE_MAX_BYTES = 1 << 20
PROBLEMS_SHOWN_MAX = 50
Refusals: TypeAlias = Callable[[Settings], Iterable[tuple[KeyPath, str]]]
"""Further problems of valid settings: keys, present or missing, each with the reason."""
HINT = "sidecar schema, or docs/configuration.md, for every key"


class InvalidConfigError(ConfigError):
    """The configuration file has these problems, in its order; ``str()`` lists them, one per line."""

    def __init__(self, file: str, problems: Sequence[FileProblem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = [problem.line(file) for problem in self.problems[:PROBLEMS_SHOWN_MAX]]
        if hidden := len(self.problems) - len(lines):
            lines.append(f"and {hidden} more")
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{file} cannot be used, {count}:", *lines]), hint=HINT)


def load(
    path: str | Path, environ: Mapping[str, str] | None = None, refusals: Refusals = lambda settings: ()
) -> Settings:
    """The settings in a YAML file, with variables and secret files replaced.

    Args:
        path: The file; relative ``file:`` secrets start at its folder.
        environ: The variables; None for those of the process.

    Raises:
        ConfigError: The file cannot be read, or has problems: each with line and column.
    """
    file = Path(path)
    environ = os.environ if environ is None else environ
    resolver = _Resolver(environ, file.parent)
    document = parse(_text(file), resolver.resolve)
    problems = document.problems
    if document.data is not None:
        outcome = _validate(document, environ)
        if not isinstance(outcome, Settings):
            problems += [problem for problem in outcome if not _follows(problem, document.problems)]
        elif not problems:
            problems = [FileProblem(_nearest(document, key), key, text) for key, text in refusals(outcome)]
            if not problems:
                return outcome
    raise InvalidConfigError(str(path), sorted(problems, key=lambda problem: problem.place))


def _validate(document: Document, environ: Mapping[str, str]) -> Settings | list[FileProblem]:
    try:
        return Settings.model_validate(document.data, context=environ)
    except ValidationError as error:
        from sidecar.config.explain import explain  # analyzes all keys, which a valid file makes unnecessary

        return [explain(details, document) for details in error.errors(include_url=False)]


def _follows(problem: FileProblem, known: Sequence[FileProblem]) -> bool:
    """Whether the problem only follows from a value, or a part of one, that could not be read."""
    return any(problem.path == earlier.path[: len(problem.path)] for earlier in known)


def _nearest(document: Document, key: KeyPath) -> FilePosition:
    """Position of a key, or of the section in which it is missing."""
    while key not in document.keys and key:
        key = key[:-1]
    return document.keys[key]


class _Resolver:
    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder

    def resolve(self, text: str, path: KeyPath) -> str:
        """The text with variables replaced, or the content of the file that it names."""
        value = expand(text, self._environ) if "${" in text else text
        if value.startswith(FILE_PREFIX):
            from sidecar.config.explain import is_secret

            if not is_secret(path):
                raise ValueError(f"cannot come from a file: {FILE_PREFIX} is for passwords, tokens and other secrets")
            return Expanded.of(read_secret(value, self._folder), text)
        return Expanded.of(value, text) if value != text else value


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file", hint="check the path after -c") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file} cannot be read: {reason}") from None
    if len(raw) > FILE_MAX_BYTES:
        raise ConfigError(f"{file} is longer than {FILE_MAX_BYTES} bytes: is it the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        place = FilePosition(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise InvalidConfigError(str(file), [FileProblem(place, (), "is not UTF-8")]) from None
