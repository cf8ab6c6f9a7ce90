"""Draws mutants of modules outside of the core at random, and runs the tests beside each: what survives is not tested.

`python -m tests.mutants --count 100 --seed 38` makes each mutant in a copy of the tree, and runs the tests nearest to
its module, see `tests.support.nearest`, for at most a minute. It prints a line for each, then a summary. A mutant that
nobody can see is in `tests/support/equivalent.json` with the reason. Paths restrict the draw. Not in CI.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from tests.support.jars import ROOT
from tests.support.kafka import KafkaBroker
from tests.support.mutating import Mutant, mutants_of
from tests.support.nearest import Nearest
from tests.support.postgresql import PostgresqlServer
from tests.support.rocketmq import RocketMqNode

LIMIT_S = 60.0
UNTESTED = ("sidecar/core/", "sidecar/demo/")
"""The core has the simulator's planted mistakes; the demo is what `make demo` shows."""
EQUIVALENT: dict[str, str] = json.loads((ROOT / "tests" / "support" / "equivalent.json").read_text("utf-8"))
"""By name, the reason why nobody can tell a mutant from the module as it is."""
TOOK = re.compile(r" in ([0-9.]+)s")
COMMAND = ("-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", "not slow and not proof")


class Times:
    """Seconds that each file of tests takes where nothing is changed; measured once, and kept in the cache.

    Args:
        trees: Copies of the tree, of which one is taken for each measurement.
    """

    def __init__(self, trees: SimpleQueue[Path]) -> None:
        self._trees = trees
        self._lock = threading.Lock()
        self._file = ROOT / ".cache" / "mutants.json"
        self._known: dict[str, float] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def seconds(self, test: str) -> float | None:
        """Of a file; None if it fails or takes too long."""
        key = f"{test} {(ROOT / test).stat().st_mtime_ns}"
        if key not in self._known:
            with taken(self._trees) as tree:
                ended, failed, seconds = run(tree, [test], LIMIT_S)
            with self._lock:
                self._known[key] = seconds if ended and not failed else -1.0
                self._file.write_text(json.dumps(self._known, indent=1))
        known = self._known[key]
        return known if 0 <= known <= LIMIT_S else None


@contextlib.contextmanager
def taken(trees: SimpleQueue[Path]) -> Iterator[Path]:
    """One of the copies, which is put back."""
    tree = trees.get()
    try:
        yield tree
    finally:
        trees.put(tree)


def run(tree: Path, tests: Sequence[str], limit_s: float) -> tuple[bool, bool, float]:
    """Whether these tests ended in time, whether one failed or there are none, and the seconds as pytest has them."""
    begun_s = time.monotonic()
    command = [sys.executable, *COMMAND, f"--timeout={int(limit_s) + 1}", *tests]
    process = subprocess.Popen(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=os.environ | {
            "PYTHONPATH": f"{tree}:{tree / 'fastlane'}",
            "PYTHONDONTWRITEBYTECODE": "1",  # two mutants of a second may have one size
        },
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return False, False, limit_s
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
    took = TOOK.search(output)
    return True, process.returncode != 0, float(took[1]) if took else time.monotonic() - begun_s


def drawn(count: int, seed: int, paths: Sequence[str]) -> list[Mutant]:
    """So many mutants at random; each is as likely as any other."""
    found: list[Mutant] = []
    for file in sorted((ROOT / "sidecar").rglob("*.py")):
        path = str(file.relative_to(ROOT))
        if not path.startswith(UNTESTED) and (not paths or path.startswith(tuple(paths))):
            found += mutants_of(path, ast.parse(file.read_text("utf-8")))
    return sorted(found, key=lambda mutant: mutant.rank(seed))[:count]


def chosen(tests: Sequence[str], times: Times) -> tuple[list[str], float]:
    """The first of these files that fit into the limit together, and their seconds."""
    found: list[str] = []
    total_s = 0.0
    for test in tests:
        seconds = times.seconds(test)
        if seconds is not None and total_s + seconds <= LIMIT_S:
            found.append(test)
            total_s += seconds
        elif total_s > LIMIT_S * 0.8:
            break
    return found, total_s


def judge(mutant: Mutant, nearest: Nearest, times: Times, trees: SimpleQueue[Path]) -> str:
    """What becomes of a mutant: `killed`, `hung` (killed too), `survived`, or `untested` (no tests are near it)."""
    tests, seconds = chosen(nearest.files_near(mutant.path), times)
    if not tests:
        return "untested"
    with taken(trees) as tree:
        file = tree / mutant.path
        text = file.read_text("utf-8")
        try:
            module = ast.parse(text)
            next(each for each in mutants_of(mutant.path, module) if each.name == mutant.name)
            file.write_text(ast.unparse(module), "utf-8")
            ended, failed, _ = run(tree, tests, 3 * seconds + 30)
        finally:
            file.write_text(text, "utf-8")
    return "hung" if not ended else "killed" if failed else "survived"


def main() -> int:
    """Judge them; 1 if more than a tenth survives that is not known to be equivalent."""
    options = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    options.add_argument("paths", nargs="*")
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=38)
    options.add_argument("--jobs", type=int, default=2)
    asked = options.parse_args()
    told = Counter[str]()
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sidecar-mutants-")))
        _start_servers(stack, place)
        trees = SimpleQueue[Path]()
        for number in range(asked.jobs):
            trees.put(_copied(place / str(number)))
        mutants = drawn(asked.count, asked.seed, asked.paths)
        judged = partial(judge, nearest=Nearest(), times=Times(trees), trees=trees)
        pool = stack.enter_context(ThreadPoolExecutor(asked.jobs))
        unknown = [mutant for mutant in mutants if mutant.name not in EQUIVALENT]
        for mutant, what in zip(unknown, pool.map(judged, unknown), strict=True):
            told[what] += 1
            print(f"{what:9} {mutant.line:4} {mutant.name}", flush=True)
    told["equivalent"] = len(mutants) - len(unknown)
    print(", ".join(f"{count} {what}" for what, count in told.items()), f"(seed {asked.seed})")
    return int(told["survived"] + told["untested"] > asked.count // 10)


def _start_servers(stack: contextlib.ExitStack, place: Path) -> None:
    """Start the brokers and the database that the tests share."""
    os.environ["SIDECAR_TEST_KAFKA"] = stack.enter_context(KafkaBroker(place / "kafka")).bootstrap
    os.environ["SIDECAR_TEST_ROCKETMQ"] = stack.enter_context(RocketMqNode(place / "rocketmq", tls=True)).name_server
    os.environ["SIDECAR_TEST_POSTGRESQL"] = stack.enter_context(PostgresqlServer()).url


def _copied(tree: Path) -> Path:
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".cache", ".git", ".mypy_cache", "__pycache__"))
    (tree / ".cache").symlink_to(ROOT / ".cache")
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


if __name__ == "__main__":
    sys.exit(main())
