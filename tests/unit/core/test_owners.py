"""Parts, intents, parked records and ownerships are changed by their own methods only, which keep to the tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sidecar

ROOT = Path(sidecar.__file__).parent
OWNERS = {
    "core/parts.py": ("Intent", "Part", "PartClaim", "Batch"),
    "core/partition/parking.py": ("_Record", "ParkedRecords"),
    "core/partition/partition.py": ("Partition",),
}
ROOMS = ("core", "letters")
OTHERS = {"_open", "books", "first", "fragment", "group", "item", "own", "rest", "result", "run", "unit"}
"""Variables that hold something else, whose fields have the same names."""
CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}


def fields(tree: ast.Module, names: tuple[str, ...]) -> set[str]:
    """The fields of these classes: those of a dataclass, and what `__init__` sets."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in names:
            found |= {each.target.id for each in node.body if _is_field(each)}  # type: ignore[attr-defined]
            for each in ast.walk(node):
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and _root(each) == "self":
                    found.add(each.attr)
    return found


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _root(node: ast.Attribute) -> str:
    """The variable or attribute whose attribute this is."""
    value = node.value
    while isinstance(value, ast.Subscript | ast.Call):
        value = value.value if isinstance(value, ast.Subscript) else value.func
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""


def changes(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Assignments to fields of these names, deletions, and calls that change what is in a list, set or dictionary."""
    for node in ast.walk(tree):
        target: ast.expr | None = None
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            target = node.func.value
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Attribute) and target.attr in names and _root(target) not in {"self", *OTHERS}:
            yield ast.unparse(node)


def test_no_field_is_changed_outside_of_its_owner() -> None:
    """A change that goes by no method could go by no table."""
    names = {file: fields(ast.parse((ROOT / file).read_text()), classes) for file, classes in OWNERS.items()}
    parts = fields(ast.parse((ROOT / "core/partition/partition.py").read_text()), ("Partition",)) - {"ownership"}
    found = {}
    for file in [each for room in ROOMS for each in (ROOT / room).rglob("*.py") if each.parent.name != "library"]:
        name = str(file.relative_to(ROOT))
        foreign = set[str]().union(*names.values()) - names.get(name, set()) - parts  # these change themselves
        if made := list(changes(ast.parse(file.read_text()), foreign)):
            found[name] = made
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "part.attempts = 1",
        "part.intent.live -= 1",
        "parts[-1].scope = ''",
        "del intent.collected[group]",
        "part.intent.withheld_errors.append(mark)",
        "intent.excluded |= {1}",
        "self.partition(tp).tries = 3",
    ],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    """Assignments, changes in place, and deletions, however the object is reached."""
    names = fields(ast.parse((ROOT / "core/parts.py").read_text()), OWNERS["core/parts.py"])
    assert list(changes(ast.parse(text), names))
