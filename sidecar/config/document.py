"""A YAML text as plain data, with the place of every key and value. Knows nothing of the model."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

SECRET_FILE_MAX_BYTES = 65_536
FILE_PREFIX = "file:"
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{[^}]*\}?")


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with ``${VAR}`` and ``${VAR:-default}`` replaced; ``$${`` stands for ``${``.

    As in a shell, the default is also used for an empty variable.

    Raises:
        ValueError: A variable is not set and has no default, or a reference cannot be read.
    """

    def replace(match: re.Match[str]) -> str:
        name, default = match[1], match[3]
        if match[0] == "$${":
            return "${"
        if name is None:
            raise ValueError("has a ${ that is not ${VAR} or ${VAR:-default}; write $${ for a plain ${")
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ValueError(
                f"needs the environment variable {name}, which is not set; ${{{name}:-default}} sets a default"
            )
        return environ[name]

    return _REFERENCE.sub(replace, text)


def read_secret(reference: str, folder: Path) -> str:
    """The secret in the file of ``file:PATH``, without the line end that editors add.

    Args:
        reference: ``file:PATH``; a relative path starts at `folder`.

    Raises:
        ValueError: The file is missing, cannot be read, is empty, too long or no text.
    """
    path = folder / reference.removeprefix(FILE_PREFIX)
    try:
        with open(path, "rb", opener=_without_waiting) as file:  # Path.open takes no opener
            raw = file.read(SECRET_FILE_MAX_BYTES + 1)
        text = raw.decode()
    except UnicodeDecodeError:
        raise ValueError(f"cannot be read from {path}: it is not UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"cannot be read from {path}: {reason}") from None
    if len(raw) > SECRET_FILE_MAX_BYTES:
        raise ValueError(f"cannot be read from {path}: it is longer than {SECRET_FILE_MAX_BYTES} bytes")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError(f"cannot be read from {path}: it is empty")
    return text


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting: a pipe would block forever, and a device has no end."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("it is not a file")
    return fd


NODES_MAX = 20_000
DEPTH_MAX = 32
NAME_SHOWN_MAX = 200
LINE_SHOWN_MAX = 400
_TAG = "tag:yaml.org,2002:"

KeyPath: TypeAlias = tuple[str | int, ...]


class FilePosition(NamedTuple):
    """A place in the file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One problem of the file."""

    place: FilePosition
    path: KeyPath
    text: str
    value: str = ""
    """The value in a form that may be shown; empty if it may not be shown, or has no meaning."""
    cure: str = ""

    def line(self, file: str) -> str:
        """The problem on one line, with its place in the file of this name."""
        name = f"{printable(dotted(self.path), NAME_SHOWN_MAX)}: " if self.path else ""
        value = f" ({self.value})" if self.value else ""
        cure = f"; {self.cure}" if self.cure else ""
        text = printable(self.text, LINE_SHOWN_MAX)
        return f"{file}:{self.place.line}:{self.place.column}: {name}{text}{value}{cure}"


def dotted(path: Iterable[str | int]) -> str:
    """The path in its usual form: ``source.kafka.topics[1]``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def printable(text: str, length_max: int) -> str:
    """The text on one line of at most this length, whatever it contains."""
    text = "".join(char if char.isprintable() else "?" for char in text[: length_max + 1])
    return text if len(text) <= length_max else f"{text[:length_max]}…"


@dataclass(slots=True)
class Document:
    """The data of a YAML text, its positions, and the problems of the text itself."""

    data: Any = None
    keys: dict[KeyPath, FilePosition] = field(default_factory=dict)
    """Position of each key; an entry of a list has the position of its value."""
    values: dict[KeyPath, FilePosition] = field(default_factory=dict)
    problems: list[FileProblem] = field(default_factory=list)


Resolve: TypeAlias = Callable[[str, KeyPath], str]
"""Returns the final form of a text value; raises ValueError with the problem."""


def parse(text: str, resolve: Resolve) -> Document:
    """Read a YAML text; all problems are in `problems`, nothing is raised."""
    document = Document()
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _BoundedComposer
    try:
        _fill(document, yaml.compose(io.StringIO(text)), resolve)
    except _TooMuch as error:
        document.data = None
        document.problems[:] = [FileProblem(error.place, error.path, str(error))]
    except ReaderError as error:
        document.problems.append(_unreadable(text, error))
    except MarkedYAMLError as error:
        document.problems.append(_syntax(text, error))
    except (YAMLError, ValueError) as error:
        document.problems.append(FileProblem(FilePosition(1, 1), (), f"is not YAML: {error}"))
    return document


def _fill(document: Document, root: Node | None, resolve: Resolve) -> None:
    if root is None:
        document.problems.append(FileProblem(FilePosition(1, 1), (), "is empty", cure="start from config/minimal.yaml"))
    elif not isinstance(root, MappingNode):
        document.problems.append(FileProblem(_place(root), (), "needs keys and values, such as source: and sink:"))
    else:
        document.data = _NodeReader(document, resolve).read(root, ())


class _TooMuch(Exception):  # noqa: N818
    def __init__(self, place: FilePosition, path: KeyPath) -> None:
        super().__init__(f"holds more than {NODES_MAX} values or {DEPTH_MAX} levels, aliases counted")
        self.place = place
        self.path = path


class _BoundedComposer(Composer):
    """Stops early: a megabyte of brackets or of keys would take 15 s."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self._nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._nodes += 1
        if self._nodes > 2 * NODES_MAX or self.depth > DEPTH_MAX:  # a key and its value are two nodes
            raise _TooMuch(_place(self.parser.peek_event()), ())
        return super().compose_node(parent, index)


_UNREADABLE: Any = object()


class _NodeReader:
    def __init__(self, document: Document, resolve: Resolve) -> None:
        self._document = document
        self._resolve = resolve
        self._nodes = 0

    def read(self, node: Node, path: KeyPath) -> Any:
        self._nodes += 1
        place = _place(node)
        if self._nodes > NODES_MAX or len(path) > DEPTH_MAX:  # aliases make terabytes or a circle of 1 KiB of text
            raise _TooMuch(place, path[:3])
        self._document.values.setdefault(path, place)
        self._document.keys.setdefault(path, place)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            children = [self.read(child, (*path, i)) for i, child in enumerate(node.value)]
            return [None if child is _UNREADABLE else child for child in children]
        return self._scalar(node, path) if isinstance(node, ScalarNode) else _UNREADABLE

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            here = (*path, str(key.value) if isinstance(key, ScalarNode) else "?")
            if not _is_text(here[-1]):
                self._report(key, here, "is not valid Unicode")
            elif not isinstance(key, ScalarNode) or key.tag == f"{_TAG}merge":
                self._report(key, here, "is not a key; merge keys (<<) are not supported, aliases of whole values are")
            elif key.value in mapping:
                self._report(key, here, f"is repeated, first in line {self._document.keys[here].line}")
            else:
                self._document.keys[here] = _place(key)
                mapping[key.value] = self.read(value, here)
        return {key: value for key, value in mapping.items() if value is not _UNREADABLE}

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        kind = str(node.tag).removeprefix(_TAG)
        if kind == "null":
            place = self._document.keys[path]
            text = "has no value: add one, or remove the key; {} is a section with all defaults"
            self._document.problems.append(FileProblem(place, path, text))
            return _UNREADABLE
        if kind.startswith("!"):
            self._report(node, path, f"has the YAML tag {kind}, which is not supported")
            return _UNREADABLE
        if kind in ("bool", "int", "float"):
            return _number(kind, node.value)
        try:
            value = self._resolve(node.value, path)
        except ValueError as error:
            self._report(node, path, str(error))
            return _UNREADABLE
        if _is_text(value):
            return value
        self._report(node, path, "is not valid Unicode")
        return _UNREADABLE

    def _report(self, node: Node, path: KeyPath, text: str) -> None:
        self._document.problems.append(FileProblem(_place(node), path, text))


def _is_text(value: object) -> bool:
    """Whether it is free of lone surrogates, which neither a socket nor a terminal accepts."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(kind: str, text: str) -> Any:
    if kind == "bool":
        return text.lower() == "true"
    plain = text.replace("_", "")
    try:
        return float(plain) if kind == "float" else int(plain, 10 if plain.lstrip("+-").isdecimal() else 0)
    except ValueError:
        return text


def _place(node: Any) -> FilePosition:
    return FilePosition(node.start_mark.line + 1, node.start_mark.column + 1)


def _unreadable(text: str, error: ReaderError) -> FileProblem:
    before = text[: error.position]
    place = FilePosition(before.count("\n") + 1, len(before) - before.rfind("\n"))
    return FileProblem(place, (), f"has the control character U+{ord(text[error.position]):04X}")


def _syntax(text: str, error: MarkedYAMLError) -> FileProblem:
    mark = error.problem_mark or error.context_mark
    place = FilePosition(mark.line + 1, mark.column + 1) if mark else FilePosition(1, 1)
    lines = text.splitlines()
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    said = ", ".join(part for part in (error.context, error.problem) if part)
    return FileProblem(place, (), f"is not YAML: {' '.join(said.split())}", cure=_syntax_cure(line, place.column))


def _syntax_cure(line: str, column: int) -> str:
    if "\t" in line[:column]:
        return "indent with spaces, not tabs"
    if re.search(r"[\[{][^#]*\$\{", line):
        return 'quote a variable inside { } or [ ]: "${VAR}"'
    if re.search(r":\s+[*%@`&!|>]", line) or re.match(r"\s*-\s+[*%@`&!]", line):
        return 'quote a value that starts with * or another special character: "*"'
    return ""
