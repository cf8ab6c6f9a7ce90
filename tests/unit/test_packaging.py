"""The distribution has what it must have, and imports point one way."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Collection, Iterator, Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from sidecar.version import VERSION
from tests.support.jars import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = ROOT / "sidecar"
IMPURE = {
    "asyncio", "concurrent", "datetime", "ctypes", "io", "logging", "multiprocessing", "os", "pathlib", "queue",
    "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
OF_OTHERS = {"numpy", "orjson", "pyroaring", "typing_extensions", "xxhash"}
"""Packages that the core may import."""
BUILTINS_OF_THE_SHELL = {"open", "print", "input", "__import__", "exec", "eval"}
MAP, FLOORS_OF_THE_CORE = (
    (ROOT / "docs" / "architecture" / "packages.md")
    .read_text()
    .split("## Map")[1]
    .split("\n## ")[0]
    .split("### Floors of the core")
)


def parts_of(table: str) -> dict[str, set[str]]:
    """Which others a part imports, as a table has them."""
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| ([^|]*) \|$", table, re.MULTILINE)
    return {name: set(re.findall(r"`([\w.]+)`", below)) for name, below in rows}


LAYERS, FLOORS = parts_of(MAP), parts_of(FLOORS_OF_THE_CORE)
"""The parts of the package, and those of its core, as the architecture's tables have them."""


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
    assert (found["Name"], found["Version"]) == ("consumer-sidecar", VERSION)
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "Apache-2.0"
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name and ".data/" not in name} == {
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
    assert "works only in a clone of the repository" in ran.stderr
    texts = [name for name in wheel.namelist() if not name.endswith("/RECORD")]  # whose hashes are any letters
    assert not [name for name in texts if "mvn" in wheel.read(name).decode("utf-8", "replace")]


def test_the_command_is_installed(wheel: zipfile.ZipFile) -> None:
    """The wheel brings the command `sidecar`."""
    assert "sidecar = sidecar.cli:main" in read(wheel, "entry_points.txt")


def test_the_manual_page_is_installed(wheel: zipfile.ZipFile) -> None:
    """`man sidecar` finds the page that the wheel brings."""
    assert any(name.endswith("share/man/man1/sidecar.1") for name in wheel.namelist())


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


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all that a module imports, wherever in it, for types alone too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def name_of_module(path: Path) -> str:
    """As it is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def graph() -> dict[str, set[str]]:
    """Which modules of the package each one imports; packages that it is in are left out."""
    modules = {name_of_module(path): path for path in PACKAGE.rglob("*.py")}
    return {
        name: {one for one in imports(path) if one in modules and not f"{name}.".startswith(f"{one}.")}
        for name, path in modules.items()
    }


def part_of(module: str, parts: Collection[str]) -> str:
    """The part that a module belongs to; itself, where the table has none."""
    name = module.removeprefix("sidecar.")
    return max((part for part in parts if f"{name}.".startswith(f"{part}.")), key=len, default=module)


def imports_of(below: Mapping[str, set[str]], parts: Collection[str]) -> dict[str, set[str]]:
    """Which other parts each part imports, by the imports of its modules."""
    table: dict[str, set[str]] = {part: set() for part in parts}
    for module, names in below.items():
        table.setdefault(part_of(module, parts), set()).update(part_of(name, parts) for name in names)
    return {part: names - {part} for part, names in table.items()}


def test_imports_point_one_way() -> None:
    """Every part imports what its row in the architecture's table has, imports for types alone counted; no more.

    The core imports nothing of the package, Spark neither the daemon nor the commands.
    """
    below = {module: names for module, names in graph().items() if module != "sidecar"}
    assert imports_of(below, LAYERS) == LAYERS
    of_core = {module: names for module, names in below.items() if module.startswith("sidecar.core")}
    assert imports_of(of_core, FLOORS) == FLOORS


def test_no_module_leads_back_to_itself() -> None:
    """Nor does a part: imports go in no circle, those for types alone counted, so none can hold its owner.

    Each module can be read, and tested, with what stands below it alone.
    """
    assert circles(graph()) == {}, "these modules lead in a circle"
    assert circles(LAYERS) == {}, "these parts lead in a circle"
    assert circles(FLOORS) == {}, "these parts of the core lead in a circle"


def circles(below: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left once all that lead nowhere, and all that nothing leads to, are taken away, again and again."""
    left, before = below, -1
    while len(left) != before:
        before, reached = len(left), set().union(*left.values())
        left = {name: found & left.keys() for name, found in left.items() if found & left.keys() and name in reached}
    return left


def test_unit_tests_lie_as_the_package_lies() -> None:
    """Each folder below `tests/unit` is one of the package's."""
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    assert len(folders) > 20
    assert {str(folder) for folder in folders if not (PACKAGE / folder / "__init__.py").exists()} == set()


def test_no_constructor_starts_a_thread() -> None:
    """What has a thread starts it in `open` or with the first job, and ends it in `close`.

    The library's batcher with threads is excepted: a batcher that has messages already is given to it.
    """
    wrong = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                called = {one.func.attr for one in calls(node) if isinstance(one.func, ast.Attribute)}
                wrong |= {path.stem} if "start" in called else set()
    assert wrong == {"threaded"}


def test_every_thread_is_started_by_the_module_for_it() -> None:
    """A thread started elsewhere would end alone when it fails, and leave others waiting.

    The library's batcher answers its callers itself, and the child of librocketmq, which has the standard library
    alone, ends its process. An executor of the library goes on without a thread that failed, or waits for it for good.
    """
    makes = {"Thread", "Timer", "ThreadPoolExecutor", "to_thread"}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for call in calls(ast.parse(path.read_text()))
        if (isinstance(call.func, ast.Attribute) and call.func.attr in makes)
        or (isinstance(call.func, ast.Name) and call.func.id in makes)
    }
    assert found == {"threads.py", "threaded.py", "sources/rocketmq/native/child/__main__.py"}


def test_json_from_outside_is_parsed_by_the_module_for_it() -> None:
    """`json.loads` raises RecursionError for a text of brackets, which handlers of ValueError pass on.

    The demo reads its own children alone, and the child of librocketmq its parent.
    """
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for call in calls(ast.parse(path.read_text()))
        if ast.unparse(call.func) in ("json.loads", "json.load")
    }
    ours = {"core/json_text.py", "sources/rocketmq/native/child/__main__.py"}
    assert {path for path in found if not path.startswith("demo/")} == ours


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """All that is called there."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def test_nothing_imports_a_test() -> None:
    """What tests share is in `tests/support` and `tests/scenarios`; no module imports a module of tests."""
    files = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    found = {str(path.relative_to(ROOT)): set(filter(of_tests, imports(path))) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def of_tests(name: str) -> bool:
    """Whether an import names a module of tests."""
    return name.startswith("tests.") and any(part.startswith("test_") or part == "conftest" for part in name.split("."))


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


def test_the_check_of_imports_sees_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports inside functions, of several names, relative ones and those for types alone are found."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    module = tmp_path / "sidecar" / "core" / "bad.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import os.path, json\nfrom .. import errors\nfrom .tags import Tag\nif TYPE_CHECKING:\n    import time\n"
        "def f():\n    from sidecar import daemon\n"
    )
    assert set(imports(module)) == {
        "os.path", "json", "sidecar", "sidecar.errors", "sidecar.core.tags", "sidecar.core.tags.Tag", "time",
        "sidecar.daemon",
    }  # fmt: skip


def test_the_check_of_circles_sees_them() -> None:
    """What leads back is left; what leads there, or nowhere, is not."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"c", "e"}, "e": set()}) == {"b": {"c"}, "c": {"b"}}


def test_the_core_is_imported_without_its_shell() -> None:
    """Importing all of the core loads neither a Kafka client nor an HTTP client."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (PACKAGE / "core").rglob("[!_]*.py")]
    code = f"import sys, {', '.join(modules)}; print(*({{'confluent_kafka', 'h11', 'kafka'}} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr
