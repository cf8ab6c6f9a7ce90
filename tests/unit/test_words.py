"""One word for one thing: class names, and the words of the glossary."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import sidecar

ROOT = Path(sidecar.__file__).parents[1]
WORDS_MAX = 95


def classes(folder: Path) -> Counter[str]:
    """How many classes of this name the modules below a folder define, private and inner ones included."""
    trees = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    return Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_a_name_stands_for_one_class() -> None:
    """A reader who searches for a name finds one class. Adapters of a port would be listed here; none shares a name."""
    assert [name for name, times in classes(ROOT / "sidecar").items() if times > 1] == []


def test_each_public_class_of_the_core_is_in_one_row_of_the_glossary() -> None:
    """A class that is in none is private, or a word that a reader cannot look up."""
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| **")]
    public = {name for name in classes(ROOT / "sidecar" / "core") if not name.startswith("_")}
    named = Counter(name for row in rows for name in set(re.findall(r"`(\w+)`", row)) & public)
    assert {name: named[name] for name in public if named[name] != 1} == {}
    assert len(rows) <= WORDS_MAX
