"""The words of the core: each public class is named by one row of the glossary, so a word stands for one thing."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import sidecar

ROOT = Path(sidecar.__file__).parents[1]
WORDS_MAX = 95


def test_each_public_class_of_the_core_is_in_one_row_of_the_glossary() -> None:
    """What is in none is private, or a word that a reader cannot look up."""
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| **")]
    trees = [ast.parse(file.read_text()) for file in (ROOT / "sidecar" / "core").rglob("*.py")]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    public = [name for name in classes if not name.startswith("_")]
    named = Counter(name for row in rows for name in set(re.findall(r"`(\w+)`", row)) & set(public))
    assert {name: named[name] for name in public if named[name] != 1} == {}
    assert len(rows) <= WORDS_MAX


def test_no_class_of_the_core_shares_its_name_with_another_of_the_core() -> None:
    """Private ones included."""
    trees = [ast.parse(file.read_text()) for file in (ROOT / "sidecar" / "core").rglob("*.py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, times in names.items() if times > 1] == []
