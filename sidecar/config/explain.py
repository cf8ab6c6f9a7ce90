"""Pydantic's errors in plain English: the key, its place, the right form. Raises and reads nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic_core import ErrorDetails

from sidecar.config.base import HIDDEN, Expanded, secret_name
from sidecar.config.document import Document, FilePosition, FileProblem, KeyPath, printable
from sidecar.config.schema import options
from sidecar.config.sinks import hide_query

VALUE_SHOWN_MAX = 80
_TEXTS = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "model_type": "needs a section of keys and values",
    "dict_type": "needs a section of keys and values",
    "list_type": "needs a list, such as [a, b]",
    "string_type": "needs text",
    "int_type": "needs a whole number",
    "bool_type": "needs true or false",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must not be longer than {max_length} characters",
    "too_short": "needs at least one entry",
    "string_unicode": "is not valid Unicode",
    "literal_error": "must be {expected}",
}


def is_secret(path: KeyPath) -> bool:
    """Whether the value of this key may come from a ``file:`` and is never shown."""
    names = [str(step) for step in path]
    if names[:3] == ["sink", "http", "headers"] and len(names) > 3:
        return True
    if names[:3] == ["source", "kafka", "properties"] and len(names) > 3:
        return secret_name(names[3])
    return any(option.secret and list(option.path) == names for option in options())


def explain(error: ErrorDetails, document: Document) -> FileProblem:
    """The problem behind one of pydantic's errors, with its place in the document."""
    path, on_key = _path(error, document)
    context = error.get("ctx", {})
    text = str(context["error"]) if "error" in context else _TEXTS.get(error["type"], error["msg"]).format(**context)
    value = error["input"]
    if error["type"] == "missing":
        return FileProblem(_at(document, path[:-1], key=True), path, text)
    if error["type"] == "extra_forbidden":
        return FileProblem(_at(document, path, key=True), path, text, cure=_meant(path))
    if isinstance(value, Expanded) and str(value):
        text = text.replace(str(value), value.written)
    cure = _near(context.get("expected"), value)
    if error["type"] == "string_type" and isinstance(value, int | float):
        cure = "put it in quotes"
    place = _at(document, path, key=on_key or isinstance(value, dict | list))
    return FileProblem(place, path, text, "" if on_key else _shown(value, path), cure)


def _path(error: ErrorDetails, document: Document) -> tuple[KeyPath, bool]:
    """The error's path without pydantic's internal names, and whether it is about a key."""
    path: list[str | int] = []
    steps = error["loc"]
    for i, step in enumerate(steps):
        if (*path, step) in document.keys or (error["type"] == "missing" and i == len(steps) - 1):
            path.append(step)
    return tuple(path), "[key]" in steps


def _at(document: Document, path: KeyPath, *, key: bool) -> FilePosition:
    return (document.keys if key else document.values).get(path, FilePosition(1, 1))


def _shown(value: Any, path: KeyPath) -> str:
    if value is None or isinstance(value, dict | list):
        return ""
    if is_secret(path) or any(secret_name(str(step)) or step == "auth" for step in path):
        return HIDDEN
    if isinstance(value, Expanded):
        return printable(value.written, VALUE_SHOWN_MAX)
    return printable(str(value).lower() if isinstance(value, bool) else hide_query(str(value)), VALUE_SHOWN_MAX)


def _meant(path: KeyPath) -> str:
    """The key that was probably meant: a similar one here, or the same one elsewhere."""
    parent, name = [str(step) for step in path[:-1]], _folded(str(path[-1]))
    siblings = [option.path[-1] for option in options() if list(option.path[:-1]) == parent]
    if close := difflib.get_close_matches(name, siblings, 1, 0.6):
        return f"did you mean '{close[0]}'?"
    elsewhere = [option.name for option in options() if option.path[-1] == name]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(siblings)}" if siblings else ""


def _folded(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower().replace("-", "_").replace(".", "_")


def _near(expected: object, value: Any) -> str:
    choices: Sequence[str] = re.findall(r"'([^']*)'", str(expected)) if expected else ()
    close = difflib.get_close_matches(str(value).lower(), choices, 1, 0.6)
    return f"did you mean '{close[0]}'?" if close and not isinstance(value, Expanded) else ""
