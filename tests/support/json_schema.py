"""As much of JSON Schema 2020-12 as the settings' schema uses; an unknown keyword is an error, so it cannot pass by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
SILENT = {"$schema", "$defs", "title", "description", "default", "format", "writeOnly"}


def violations(value: Any, schema: dict[str, Any]) -> list[str]:
    """Where and how the value breaks the schema; empty when it fits."""
    return list(_check(value, schema, schema, "$"))


def _check(value: Any, node: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    for keyword, rule in node.items():
        if keyword in SILENT:
            continue
        yield from _KEYWORDS[keyword](value, rule, node, root, path)


def _one(value: Any, rules: list[dict[str, Any]], root: dict[str, Any], path: str) -> Iterator[str]:
    found = [list(_check(value, rule, root, path)) for rule in rules]
    if all(found):
        yield from min(found, key=len)


def _type(value: Any, rule: str | list[str]) -> bool:
    names = [rule] if isinstance(rule, str) else rule
    return any(isinstance(value, TYPES[n]) and (n == "boolean" or not isinstance(value, bool)) for n in names)


def _properties(value: Any, rule: Any, root: dict[str, Any], path: str) -> Iterator[str]:
    for key in rule if isinstance(value, dict) else ():
        if key in value:
            yield from _check(value[key], rule[key], root, f"{path}.{key}")


def _additional(value: Any, rule: Any, node: Any, root: dict[str, Any], path: str) -> Iterator[str]:
    for key in set(value) - set(node.get("properties", ())) if isinstance(value, dict) else ():
        if rule is False:
            yield f"{path}: unknown {key}"
        elif isinstance(rule, dict):
            yield from _check(value[key], rule, root, f"{path}.{key}")


def _items(value: Any, rule: Any, root: dict[str, Any], path: str) -> Iterator[str]:
    for i, item in enumerate(value) if isinstance(value, list) else ():
        yield from _check(item, rule, root, f"{path}[{i}]")


def _test(holds: Any, kind: type | tuple[type, ...]) -> Any:
    def check(value: Any, rule: Any, node: Any, root: Any, path: str) -> Iterator[str]:
        if isinstance(value, kind) and not isinstance(value, bool) and not holds(value, rule):
            yield f"{path}: {value!r} against {rule!r}"

    return check


_KEYWORDS: dict[str, Any] = {
    "$ref": lambda v, r, n, root, p: _check(v, root["$defs"][r.rpartition("/")[2]], root, p),
    "anyOf": lambda v, r, n, root, p: _one(v, r, root, p),
    "oneOf": lambda v, r, n, root, p: _one(v, r, root, p),
    "type": lambda v, r, n, root, p: () if _type(v, r) else (f"{p}: {v!r} is no {r}",),
    "const": lambda v, r, n, root, p: () if v == r else (f"{p}: {v!r} is not {r!r}",),
    "enum": lambda v, r, n, root, p: () if v in r else (f"{p}: {v!r} is none of {r}",),
    "properties": lambda v, r, n, root, p: _properties(v, r, root, p),
    "additionalProperties": _additional,
    "items": lambda v, r, n, root, p: _items(v, r, root, p),
    "required": _test(lambda value, rule: set(rule) <= set(value), dict),
    "minProperties": _test(lambda value, rule: len(value) >= rule, dict),
    "maxProperties": _test(lambda value, rule: len(value) <= rule, dict),
    "propertyNames": lambda v, r, n, root, p: (e for key in v for e in _check(key, r, root, p)),
    "minItems": _test(lambda value, rule: len(value) >= rule, list),
    "minLength": _test(lambda value, rule: len(value) >= rule, str),
    "maxLength": _test(lambda value, rule: len(value) <= rule, str),
    "pattern": _test(lambda value, rule: re.search(rule, value), str),
    "minimum": _test(lambda value, rule: value >= rule, (int, float)),
    "maximum": _test(lambda value, rule: value <= rule, (int, float)),
}
