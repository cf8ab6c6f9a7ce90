"""Finds the tests nearest to a module: those in the folder like its own, then those that import it, directly or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from tests.support.jars import ROOT

LAYERS = ("unit", "property", "conformance", "simulation", "spark", "integration")
PURE = LAYERS[:2]
"""These have no slow files."""
FAR = 3
"""Imports between a test and a module, beyond which it says nothing of it."""
FILES_MAX = 12
BY_PROCESS = {
    "sidecar/daemon": ("test_exits", "test_admin", "test_delay_tables", "test_causes", "test_threads"),
    "sidecar/cli": ("test_exits", "test_check", "test_offsets", "test_tap", "test_try"),
}
"""Integration tests that run these packages in a process of their own, and so import nothing of them."""


class Nearest:
    """The imports of package and tests."""

    def files_near(self, path: str) -> list[str]:
        """The quick files of tests that may see a change of a module, the nearest first."""
        beside, ranks = _beside(Path(path)), {}
        for test, distances in self._distances.items():
            distance = distances.get(path, FAR + 1)
            is_beside = test.startswith("tests/unit/") and (
                Path(test).stem == f"test_{Path(path).stem}" or Path(test).parent == beside != Path("tests", "unit")
            )
            if distance <= FAR or is_beside:
                ranks[test] = (distance - 2 * is_beside, LAYERS.index(test.split("/")[1]))
        found = sorted(ranks, key=lambda test: (ranks[test], test))
        more = [f"tests/integration/{name}.py" for at in BY_PROCESS for name in BY_PROCESS[at] if path.startswith(at)]
        return list(dict.fromkeys([*found[:6], *more, *found[6:]]))[:FILES_MAX]

    @cached_property
    def _distances(self) -> dict[str, dict[str, int]]:
        """Of each file of tests, the imports to each module."""
        files = [file for folder in ("sidecar", "tests") for file in sorted((ROOT / folder).rglob("*.py"))]
        imports = {_name(file): set(_imports(file)) for file in files}
        names = {_name(file): str(file.relative_to(ROOT)) for file in files}
        found, slow = {}, _slow()
        for test in files:
            layer = test.relative_to(ROOT).parts[1]
            if test.stem.startswith("test_") and layer in LAYERS and (layer in PURE or test.stem not in slow):
                found[names[_name(test)]] = {names[at]: far for at, far in _walk(_name(test), imports).items()}
        return found


def _slow() -> set[str]:
    """The names of slow files, as `tests/conftest.py` lists them."""
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    (listed,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SLOW"
    )
    return set(ast.literal_eval(listed))


def _beside(path: Path) -> Path:
    """The folder of unit tests that is like that of the module, or else like the nearest one above it."""
    folder = path.parent.relative_to("sidecar")
    while not (ROOT / "tests" / "unit" / folder).is_dir():
        folder = folder.parent
    return Path("tests", "unit", folder)


def _walk(start: str, imports: dict[str, set[str]]) -> dict[str, int]:
    """The imports to each module, of which those within the tests do not count."""
    found, now = {start: 0}, [start]
    while now:
        name = now.pop(0)
        for other in imports[name] & imports.keys():
            far = found[name] + (other.startswith("sidecar"))
            if far <= FAR and far < found.get(other, FAR + 1):
                found[other] = far
                now.append(other)
    return found


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str() as module, names=names):
                yield module
                yield from (f"{module}.{each.name}" for each in names)
