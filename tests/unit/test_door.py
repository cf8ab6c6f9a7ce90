"""The core has one door: others call methods of its pipelines, and read the values that these return."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sidecar

ROOT = Path(sidecar.__file__).parent
DOORS = {"Pipeline", "RangePipeline", "ReplayPipeline"}
NAMES = {"pipeline", "_pipeline"}
METHODS = {  # values of these, and what the pipelines return, may be read
    name
    for module in (
        "core/pipeline/pipeline.py",
        "core/ranges.py",
        "core/delivery/delivery.py",
        "core/replays.py",
    )
    for node in ast.walk(ast.parse((ROOT / module).read_text()))
    if isinstance(node, ast.ClassDef) and node.name in {*DOORS, "DeliveryPipeline"}
    for name in [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
}
VALUES = {"EFFECTS", "books", "carried", "cuts"}
"""The kinds of effects, and attributes of a range, which has ended when they are read."""


def paths(tree: ast.Module) -> Iterator[str]:
    """What is reached for inside of a pipeline, local names and attributes of objects followed."""
    doors, inside = set(NAMES), set[str]()
    while True:
        before = len(doors) + len(inside)
        for node in ast.walk(tree):
            for target, value in _assigned(node):
                if _is_door(value, doors):
                    doors.add(target)
                elif _is_inside(value, doors, inside):
                    inside.add(target)
        if len(doors) + len(inside) == before:
            break
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_inside(node, doors, inside):
            yield ast.unparse(node)


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from ((_name(one), value) for one, value in zip(target.elts, node.value.elts, strict=False))
            else:
                yield _name(target), node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield _name(node.target), node.value


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_door(node: ast.expr, doors: set[str]) -> bool:
    return _name(node) in doors or (isinstance(node, ast.Call) and _name(node.func) in DOORS)


def _is_inside(node: ast.expr, doors: set[str], inside: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in inside
    if not isinstance(node, ast.Attribute):
        return False
    if isinstance(node.value, ast.Name | ast.Attribute) and _name(node.value) in doors:
        return node.attr not in METHODS | VALUES
    return _name(node) in inside


@pytest.mark.parametrize("room", sorted(each.name for each in ROOT.iterdir() if each.is_dir() and each.name != "core"))
def test_nobody_reaches_into_the_core(room: str) -> None:
    """Neither by a path like `pipeline.intake.ids`, nor by a local name for a part of it."""
    found = {
        str(file.relative_to(ROOT)): list(paths(ast.parse(file.read_text()))) for file in (ROOT / room).rglob("*.py")
    }
    assert {file: each for file, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "text",
    [
        "self._pipeline.orders.drain()",
        "orders = supervisor.pipeline.orders\norders.drain()",
        "class A:\n def f(self, pipeline):\n  self._core = pipeline\n def g(self):\n  self._core.gate.stops",
        "mine = RangePipeline(1)\nparts = mine.partitions",
    ],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    """Directly, by a local name, by an attribute, and in a pipeline that is made here."""
    assert list(paths(ast.parse(text)))
