"""The possible content of the file, from the model: the list of options and the JSON Schema."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sidecar.config.base import KeyKind, LazySection, Model, NotOnSpark, OnSpark
from sidecar.config.model import Settings
from sidecar.config.tags import MessageField
from sidecar.config.units import Quantity

_KINDS = {bool: "true or false", str: "text", Path: "path", SecretStr: "secret"}
REFERENCE = {"type": "string", "pattern": r"\$\{", "description": "A variable: ${VAR} or ${VAR:-default}."}


@dataclass(frozen=True, slots=True)
class Option:
    """One key of the file."""

    path: tuple[str, ...]
    default: Any
    """The default in the form of the file; None if there is none."""
    required: bool
    secret: bool
    meaning: str
    section: bool
    """Whether it only contains further options."""
    kind: str
    """Its type in the reference."""
    on_spark: str
    """Its meaning for `sidecar spark run`; empty if it applies unchanged, or if its section has it."""
    not_on_spark: str
    """The reason for which `sidecar spark run` refuses it; empty if it does not."""

    @property
    def name(self) -> str:
        """The path with dots."""
        return ".".join(self.path)


@cache
def options() -> tuple[Option, ...]:
    """Every key of the file, parents before their children."""
    return tuple(_walk(Settings, ()))


def _walk(model: type[Model], path: tuple[str, ...]) -> Iterator[Option]:
    defaults = _defaults(model)
    for name, info in model.model_fields.items():
        here = (*path, info.alias or name)
        section = _section(info)
        default = None if isinstance(info.default, Model) else defaults.get(here[-1])
        pure = section not in (None, MessageField) and default is None
        yield Option(
            here,
            default,
            info.is_required(),
            _is_secret(info),
            info.description or "",
            pure,
            kind=_kind(info.annotation, info.metadata),
            on_spark=next((mark.text for mark in info.metadata if isinstance(mark, OnSpark)), ""),
            not_on_spark=next((mark.reason for mark in info.metadata if isinstance(mark, NotOnSpark)), ""),
        )
        if section:
            yield from _walk(section, here)


def _section(info: FieldInfo) -> type[Model] | None:
    """The model of a section, also if a word may replace it."""
    kinds = list(map(_bare, (*get_args(info.annotation), info.annotation)))
    kinds += [_bare(kind) for outer in kinds for kind in get_args(outer)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Model)), None)


def _bare(kind: Any) -> Any:
    """A type without its metadata."""
    marks = getattr(kind, "__metadata__", ())
    lazy = next((mark.model for mark in marks if isinstance(mark, LazySection)), None)
    return lazy or getattr(kind, "__origin__", kind)


def _is_secret(info: FieldInfo) -> bool:
    return SecretStr.__name__ in str(info.annotation)


def _kind(annotation: Any, metadata: Sequence[Any]) -> str:
    """The type in the reference: that of the metadata, otherwise that of the Python type."""
    for mark in metadata:
        if isinstance(mark, KeyKind):
            return mark.text
        if isinstance(mark, LazySection):
            return "section"
        if isinstance(mark, Quantity):
            return f"{mark.noun}, {mark.minimum} to {mark.maximum}"
    arguments = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _kind(arguments[0], arguments[1:])
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return " or ".join(_kind(argument, ()) for argument in arguments if argument is not NoneType)
    if origin in (list, dict):
        return f"{'list' if origin is list else 'section'} of {_kind(arguments[-1], ())}"
    if annotation is int:
        least, most = (next(getattr(m, name) for m in metadata if hasattr(m, name)) for name in ("ge", "le"))
        return f"number, {least:,} to {most:,}"
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return "section"
    return "word" if origin is Literal else _KINDS[annotation]


def _defaults(model: type[Model]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a default in the file's form was not validated
        return {
            key: value for key, value in model.model_construct().model_dump(by_alias=True).items() if value is not None
        }


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the file, for editors and other tools."""
    generated = Settings.model_json_schema(by_alias=True)
    _put_defaults(generated, Settings)
    for model in _models(Settings):
        _put_defaults(generated["$defs"][model.__name__], model)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_plain(generated),
        "title": "Sidecar configuration",
    }


def _models(model: type[Model]) -> set[type[Model]]:
    sections = {section for info in model.model_fields.values() if (section := _section(info))}
    return sections.union(*(_models(section) for section in sections))


def _put_defaults(section: dict[str, Any], model: type[Model]) -> None:
    defaults = _defaults(model)
    for key, described in section["properties"].items():
        described.pop("default", None)
        if key in defaults:
            described["default"] = defaults[key]


def _plain(node: Any) -> Any:
    """The schema without what only Python has (titles, null for absent), and with variables for numbers and words."""
    if isinstance(node, list):
        return [_plain(child) for child in node if child != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    if "properties" in node:
        properties = {key: _plain(value) for key, value in node["properties"].items()}
        return {**_plain({key: value for key, value in node.items() if key != "properties"}), "properties": properties}
    kept = {key: _plain(value) if key != "default" else value for key, value in node.items() if key != "title"}
    kept.pop("discriminator", None)
    if "enum" in kept or "const" in kept or "pattern" in kept or kept.get("type") in ("integer", "boolean"):
        outer = {key: kept.pop(key) for key in ("default", "description") if key in kept}
        return {**outer, "anyOf": [kept, REFERENCE]} if kept != REFERENCE else REFERENCE
    return kept
