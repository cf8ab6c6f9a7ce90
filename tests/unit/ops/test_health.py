"""The table of problems."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

import sidecar
from sidecar.ops.health import KINDS, first_of, problem

SIDECAR = Path(sidecar.__file__).parent


def calls(function: str) -> Iterator[tuple[Path, ast.Call]]:
    """The calls of a function by its name, with their modules."""
    for path in SIDECAR.rglob("*.py"):
        text = path.read_text()
        if "sidecar.ops.health import" not in text and path.name != "health.py":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                yield path, node


def fields(words: str) -> set[str]:
    """The values that these words need."""
    return {name for _, name, _, _ in Formatter().parse(words) if name is not None}


def test_problems_are_made_in_one_place() -> None:
    """All other places give the values of a row of the table."""
    assert {path.relative_to(SIDECAR).as_posix() for path, _ in calls("Problem")} == {"ops/health.py"}


def test_who_notices_a_problem_gives_the_values_of_its_words() -> None:
    """A call whose kind is only known at run time gives those of one kind at least."""
    wrong = []
    for path, call in calls("problem"):
        given = {keyword.arg for keyword in call.keywords}
        names = [name.value for name in call.args if isinstance(name, ast.Constant)]
        if len(names) == len(call.args):
            kind, *case = map(str, names)
            needed = [fields(KINDS[kind].cases[case[0]] if case else KINDS[kind].words)]
        else:
            needed = [fields(kind.words) for kind in KINDS.values()]
        if given not in needed:
            wrong.append(f"{path}:{call.lineno}")
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_of_a_problem_contain_its_values(kind: str) -> None:
    """Values may have any characters, braces too."""
    row = KINDS[kind]
    values = dict.fromkeys(fields(row.words) - {"seconds"}, "{x}") | {"seconds": 10.0}
    found = problem(kind, **values)
    assert (found.text.count("{x}"), found.next_step) == (len(fields(row.words) - {"seconds"}), row.next_step)


def test_of_several_names_the_least_and_a_number_is_shown() -> None:
    """The text does not grow with the number of partitions."""
    assert (first_of(["b"]), first_of(["b", "a", "c"])) == ("b", "a and 2 more")
