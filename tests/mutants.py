"""Draws mutants of modules outside of the core at random, and runs the tests beside each: what survives is not tested.

`python -m tests.mutants --count 100 --seed 38` makes each mutant in a copy of the tree, and runs the tests of its
module's folder in `tests/unit`, and those of `tests/property` that import it, for at most a minute. It prints a line
for each, then a summary. A mutant that changes nothing that can be seen is in `EQUIVALENT` with the reason. Not in CI.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.support.jars import ROOT

LIMIT_S = 60
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.LShift: ast.RShift,
}  # fmt: skip
UNTESTED = ("sidecar/core/", "sidecar/demo/")
"""The core has the simulator's planted mistakes; the demo is what `make demo` shows."""
EQUIVALENT: dict[str, str] = {}
"""By place and change, the reason why nobody can see it."""


class Mutant(NamedTuple):
    """One change of one module.

    Args:
        path: Of the module, from the root.
        line: Where it is.
        change: In words.
        source: The whole module with the change.
    """

    path: str
    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        """The key in `EQUIVALENT`, which stays when lines move."""
        return f"{self.path}: {self.change}"


class Outcome(NamedTuple):
    """What became of a mutant: `killed`, `survived`, `untested` (no tests are beside it), `slow` (not in time)."""

    mutant: Mutant
    what: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    for number, node in enumerate(ast.walk(tree)):
        for kind in range(len(_changes(node))):
            other = copy.deepcopy(tree)
            changed = next(each for at, each in enumerate(ast.walk(other)) if at == number)
            before = ast.unparse(changed)
            line = getattr(changed, "lineno", 0)
            _changes(changed)[kind]()
            change = f"`{_short(before)}` -> `{_short(ast.unparse(changed))}`"
            yield Mutant(str(path.relative_to(ROOT)), line, change, ast.unparse(other))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 90 else f"{text[:87]}..."


def _changes(node: ast.AST) -> list[partial[None]]:
    """The ways to change a node in place. Texts are left alone: what they say is read by people."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            return [partial(setattr, node, "ops", [SWAPS[type(op)]()])]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPS:
            return [partial(setattr, node, "op", SWAPS[type(op)]())]
        case ast.Constant(value=bool() as value):
            return [partial(setattr, node, "value", not value)]
        case ast.Constant(value=int() | float() as value):
            return [partial(setattr, node, "value", value + 1)]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
            return [partial(setattr, node, "test", ast.UnaryOp(ast.Not(), test))]
        case ast.Expr(value=ast.Call(func=func)) if not _is_log(func):
            return [partial(setattr, node, "value", ast.Constant(None))]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return [partial(setattr, node, "value", ast.Constant(None))]
    return []


def _is_log(func: ast.expr) -> bool:
    return ast.unparse(func).startswith(("log.", "_log.", "self._log.", "logger."))


def drawn(count: int, seed: int) -> list[Mutant]:
    """So many mutants at random, a module as likely as it is long."""
    modules = [
        path
        for path in sorted((ROOT / "sidecar").rglob("*.py"))
        if not str(path.relative_to(ROOT)).startswith(UNTESTED)
    ]
    chance = random.Random(seed)
    sizes = [path.stat().st_size for path in modules]
    found: list[Mutant] = []
    while len(found) < count:
        (path,) = chance.choices(modules, sizes)
        offered = list(mutants_of(path))
        if offered and (one := chance.choice(offered)) not in found:
            found.append(one)
    return found


def tests_of(path: str) -> list[str]:
    """The nearest folder of unit tests, or the file named after the module, and property tests that import it."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = [
        str(each.relative_to(ROOT)) for each in (ROOT / "tests" / "property").glob("*.py") if module in each.read_text()
    ]
    folder = Path(path).parent.relative_to("sidecar")
    if folder == Path():
        named = Path("tests", "unit", f"test_{Path(path).stem}.py")
        return [*found, str(named)] if (ROOT / named).exists() else found
    while folder != Path() and not (ROOT / "tests" / "unit" / folder).is_dir():
        folder = folder.parent
    return [*found, str(Path("tests", "unit", folder))] if folder != Path() else found


def judge(mutant: Mutant, trees: SimpleQueue[Path]) -> Outcome:
    """Run the tests beside a mutant in one of these copies of the tree."""
    tests = tests_of(mutant.path)
    if not tests:
        return Outcome(mutant, "untested")
    tree = trees.get()
    file = tree / mutant.path
    try:
        file.write_text(mutant.source, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=tree, capture_output=True, timeout=LIMIT_S, check=False)
        what = "survived" if done.returncode == 0 else "killed"
    except subprocess.TimeoutExpired:
        what = "slow"
    finally:
        shutil.copyfile(ROOT / mutant.path, file)
        trees.put(tree)
    return Outcome(mutant, what)


def main() -> int:
    """Judge them; 1 if more than a tenth survives that is not known to be equivalent."""
    options = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=38)
    options.add_argument("--jobs", type=int, default=2)
    asked = options.parse_args()
    alive: list[Mutant] = []
    told = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="sidecar-mutants-") as place, ThreadPoolExecutor(asked.jobs) as pool:
        trees = SimpleQueue[Path]()
        for number in range(asked.jobs):
            tree = Path(place, str(number))
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".cache", ".git", ".mypy_cache"))
            (tree / ".cache").symlink_to(ROOT / ".cache")
            trees.put(tree)
        for mutant, what in pool.map(partial(judge, trees=trees), drawn(asked.count, asked.seed)):
            known = what != "killed" and mutant.name in EQUIVALENT
            told["equivalent" if known else what] += 1
            alive += [] if known or what == "killed" else [mutant]
            print(f"{'equivalent' if known else what:10} {mutant.path}:{mutant.line} {mutant.change}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in told.items()), f"(seed {asked.seed})")
    return int(len(alive) > asked.count // 10)


if __name__ == "__main__":
    sys.exit(main())
