"""Translated pages are in step with the English ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.jars import ROOT
from tests.support.translations import PAGES, code, mark, marks, sections

KEY = re.compile(r"\| `[a-z_.]+` \|[^|]*\|[^|]*\|")
"""A row of the table of keys without its last column."""


@pytest.mark.parametrize(("path", "english"), PAGES.items(), ids=lambda path: path.name)
def test_each_section_is_of_the_present_english_one(path: Path, english: Path) -> None:
    """A section that changed in English must be looked at; then `python -m tests.support.translations` records it."""
    assert marks(path) == [mark(section) for section in sections(english)]


@pytest.mark.parametrize(("path", "english"), PAGES.items(), ids=lambda path: path.name)
def test_code_is_the_same(path: Path, english: Path) -> None:
    """Blocks of code are equal, in their order."""
    assert code(path) == code(english)


def test_keys_types_and_defaults_are_the_same() -> None:
    """The table of keys differs from the English one in the meanings alone."""
    names = ROOT / "docs" / "zh" / "configuration.md", ROOT / "docs" / "configuration.md"
    ours, theirs = ([KEY.match(line) for line in path.read_text().splitlines()] for path in names)
    rows = [row[0] for row in theirs if row]
    assert len(rows) > 100
    assert [row[0] for row in ours if row] == rows
