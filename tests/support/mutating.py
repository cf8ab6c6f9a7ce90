"""Mutants of a module: each changes one operator, constant, condition, call or result. Runs nothing."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.LShift: ast.RShift,
}  # fmt: skip
_BOUND = re.compile(r"[A-Z_]*(_S|_MS|_BYTES|_MAX)")
"""Constants that bound time or room: which value they have is a choice, and tests take it from them."""
_UNSEEN = ("TYPE_CHECKING", "slots=True")
"""What nothing that runs depends on."""


class Mutant(NamedTuple):
    """One change of one module.

    Args:
        path: Of the module, from the root.
        place: Qualified name of the function or class that it is in; empty for the module.
        change: The text of the statement or condition, before and after.
        number: Which one of those with the same place and change.
        line: Where it is.
    """

    path: str
    place: str
    change: str
    number: int
    line: int

    @property
    def name(self) -> str:
        """What stays when lines move and other code changes."""
        return f"{self.path} {self.place}: {self.change}" + (f" ({self.number})" if self.number else "")

    def rank(self, seed: int) -> bytes:
        """The mutants with the lowest ranks are drawn, so a change of one function draws no others elsewhere."""
        return hashlib.sha256(f"{seed} {self.name}".encode()).digest()


def mutants_of(path: str, tree: ast.Module) -> Iterator[Mutant]:
    """Every mutant of a module, whose tree has the change until the next one is asked for."""
    seen = Counter[tuple[str, str]]()
    for node, shown, place in list(_nodes(tree, None, "")):
        for key, value in _changes(node):
            old, before = getattr(node, key), _text(shown)
            setattr(node, key, value)
            change = f"`{before}` -> `{_text(shown)}`"
            line = getattr(node, "lineno", getattr(shown, "lineno", 0))
            yield Mutant(path, place, change, seen[place, change], line)
            seen[place, change] += 1
            setattr(node, key, old)


def _nodes(node: ast.AST, shown: ast.AST | None, place: str) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """The nodes that may change, each with the simple statement, or else the expression, that shows it."""
    if _is_unseen(node):
        return
    is_block = isinstance(node, ast.Match) or (isinstance(node, ast.stmt) and hasattr(node, "body"))
    if shown is None and isinstance(node, (ast.expr, ast.stmt)) and not is_block:
        shown = node
    yield node, shown or node, place
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        place = f"{place}.{node.name}".removeprefix(".")
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, None if is_block else shown, place)


def _is_unseen(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return _BOUND.fullmatch(name) is not None
        case ast.keyword() | ast.If():
            return ast.unparse(node.test if isinstance(node, ast.If) else node) in _UNSEEN
        case ast.Expr(value=ast.Call(func=func)):  # people read it
            return ast.unparse(func).startswith(("log.", "_log.", "self._log.", "logger."))
    return False


def _text(node: ast.AST) -> str:
    """How a node is shown: a block by its condition."""
    shown = f"if {ast.unparse(node.test)}" if isinstance(node, (ast.If, ast.While)) else ast.unparse(node)
    text = " ".join(shown.split())
    return text if len(text) <= 120 else f"{text[:117]}..."


def _changes(node: ast.AST) -> list[tuple[str, object]]:
    """The ways to change a node: a field and its other value. Texts are left alone: what they say is read by people."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            return [("ops", [SWAPS[type(op)]()])]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPS:
            return [("op", SWAPS[type(op)]())]
        case ast.Constant(value=bool() as value):
            return [("value", not value)]
        case ast.Constant(value=int() | float() as value):
            return [("value", value + 1)]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
            return [("test", ast.UnaryOp(ast.Not(), test))]
        case ast.Expr(value=ast.Call()):
            return [("value", ast.Constant(None))]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return [("value", ast.Constant(None))]
    return []
