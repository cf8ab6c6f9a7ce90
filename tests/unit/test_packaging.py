"""The distribution has what it must have, and imports point one way."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support.jars import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = ROOT / "sidecar"
IMPURE = {
    "asyncio", "concurrent", "datetime", "ctypes", "io", "logging", "multiprocessing", "os", "pathlib", "queue",
    "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
OF_OTHERS = {"numpy", "orjson", "pyroaring", "xxhash"}
"""Packages that the core may import."""
BUILTINS_OF_THE_SHELL = {"open", "print", "input", "__import__", "exec", "eval"}
LAYERS = {
    "core": {"core"},
    "config": {"core", "config", "errors"},
    "zone": {"core", "errors", "files", "zone"},
    "sinks": {"core", "config", "errors", "files", "tls", "version", "sinks", "zone"},
    "sources": {
        "core",
        "config",
        "errors",
        "allocator",
        "sources",
        "state",
        "tls",
    },  # a commit carries the state
    "ledger": {"core", "errors", "ledger", "state"},
    "state": {"core", "config", "errors", "files", "state"},
    "ops": {"core", "config", "errors", "ops"},
    "daemon": {
        "allocator",
        "core",
        "config",
        "errors",
        "version",
        "sinks",
        "sources",
        "state",
        "ops",
        "zone",
        "ledger",
        "daemon",
    },
}
"""Which parts of the package a part may import."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run([sys.executable, "-m", "pip", *build], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def read(wheel: zipfile.ZipFile, ending: str) -> str:
    """The one file of the wheel whose name ends so."""
    (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
    return wheel.read(name).decode()


def metadata(wheel: zipfile.ZipFile) -> Message:
    """The distribution's metadata."""
    return Parser().parsestr(read(wheel, ".dist-info/METADATA"))


def test_the_distribution_and_the_import_have_their_names(wheel: zipfile.ZipFile) -> None:
    """The distribution is `consumer-sidecar` for Python 3.11 and later; it installs two packages."""
    found = metadata(wheel)
    assert (found["Name"], found["Version"]) == ("consumer-sidecar", PROJECT["version"])
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "Apache-2.0"
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {
        "sidecar",
        "pyspark_sidecar",
    }


def test_the_wheel_has_every_module_and_the_marker_of_types(wheel: zipfile.ZipFile) -> None:
    """All modules, `py.typed` and the license are in the wheel."""
    names = set(wheel.namelist())
    assert "sidecar/py.typed" in names
    assert {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_what_only_a_clone_has_is_said(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """RocketMQ is started by code of the tests: the wheel has none of it, and its demo says that it needs a clone."""
    wheel.extractall(tmp_path)
    command = [sys.executable, "-P", "-m", "sidecar", "demo", "--sink", "http", "--source", "rocketmq"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 69, ran.stderr
    assert "works in a clone of the repository only" in ran.stderr
    assert not [name for name in wheel.namelist() if "mvn" in wheel.read(name).decode("utf-8", "replace")]


def test_the_command_is_installed(wheel: zipfile.ZipFile) -> None:
    """The wheel brings the command `sidecar`."""
    assert "sidecar = sidecar.cli:main" in read(wheel, "entry_points.txt")


def test_the_module_runs_as_the_command() -> None:
    """`python -m sidecar --help` lists the commands."""
    ran = subprocess.run(
        [sys.executable, "-m", "sidecar", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for command in ("run", "validate", "status", "schema", "demo"):
        assert command in ran.stdout


def test_every_dependency_is_pinned_for_the_tests() -> None:
    """`constraints.txt` has an exact version of every direct dependency, and no address or path."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {name_of(line) for line in lines}
    assert all(line.count("==") == 1 and "/" not in line and "@" not in line for line in lines)
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"], "hatchling"]
    assert {name_of(line) for line in wanted} <= pinned


def name_of(requirement: str) -> str:
    """The normalised name of a requirement."""
    end = next((i for i, sign in enumerate(requirement) if not (sign.isalnum() or sign in "-_.")), len(requirement))
    return requirement[:end].lower().replace("_", "-").replace(".", "-")


def imports(path: Path, *, types: bool = False) -> Iterator[str]:
    """Absolute names of all that a module imports, wherever in it; what only type checkers see with `types` alone."""
    tree = ast.parse(path.read_text())
    blocks = [] if types else [block for block in ast.walk(tree) if is_type_checking(block)]
    unseen = {id(node) for block in blocks for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_type_checking(node: ast.AST) -> bool:
    """Whether this is an `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def parts_of(path: Path) -> set[str]:
    """The parts of the package (`core`, `errors`, …) that a module imports."""
    parts = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    return {name.split(".")[1] for name in imports(path) if name.startswith("sidecar.")} & parts


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    """No part imports what stands further out: core nothing but itself, and nobody but `cli` the daemon."""
    wrong = {str(path.relative_to(ROOT)): parts_of(path) - LAYERS[layer] for path in (PACKAGE / layer).rglob("*.py")}
    assert {path: parts for path, parts in wrong.items() if parts} == {}


def test_nothing_imports_a_test() -> None:
    """What tests share is in `tests/support` and `tests/scenarios`; no module imports a module of tests."""
    files = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    found = {str(path.relative_to(ROOT)): set(filter(of_tests, imports(path))) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def of_tests(name: str) -> bool:
    """Whether an import names a module of tests."""
    return name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))


def test_the_core_has_no_way_out() -> None:
    """The core imports no thread, socket, clock, random number, file, logger or client, and calls no `open`."""
    wrong = {}
    for path in (PACKAGE / "core").rglob("*.py"):
        pure = (sys.stdlib_module_names - IMPURE) | OF_OTHERS | {"sidecar"}
        imported = {name.split(".")[0] for name in imports(path)} - pure
        called = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        if imported or called & BUILTINS_OF_THE_SHELL:
            wrong[path.name] = imported | called & BUILTINS_OF_THE_SHELL
    assert wrong == {}


def test_the_core_has_no_circle() -> None:
    """No module of the core leads back to itself, and none leads outward, imports for types alone counted.

    So each can be read, and tested, with what stands below it alone; and none can hold its owner.
    """
    below = {name_of_module(path): set(imports(path, types=True)) for path in (PACKAGE / "core").rglob("*.py")}
    every = {one for found in below.values() for one in found if one.startswith("sidecar.")}
    assert {one for one in every if one.split(".")[1] != "core"} == set()
    left = {name: found & below.keys() for name, found in below.items()}
    while ends := {name for name, found in left.items() if not found & left.keys()}:
        left = {name: found for name, found in left.items() if name not in ends}
    assert left == {}, "these lead in a circle"


def name_of_module(path: Path) -> str:
    """As it is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_the_check_of_imports_sees_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports inside functions, of several names and relative ones are found; those for types alone when asked for."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    module = tmp_path / "sidecar" / "core" / "bad.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import os.path, json\nfrom .. import errors\nfrom .tags import Tag\nif TYPE_CHECKING:\n    import time\n"
        "def f():\n    from sidecar import daemon\n"
    )
    assert set(imports(module)) == {
        "os.path", "json", "sidecar", "sidecar.errors", "sidecar.core.tags", "sidecar.core.tags.Tag", "sidecar.daemon",
    }  # fmt: skip
    assert set(imports(module, types=True)) - set(imports(module)) == {"time"}


def test_the_core_is_imported_without_its_shell() -> None:
    """Importing all of the core loads neither a Kafka client nor an HTTP client."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (PACKAGE / "core").rglob("[!_]*.py")]
    code = f"import sys, {', '.join(modules)}; print(*({{'confluent_kafka', 'urllib3', 'kafka'}} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr
