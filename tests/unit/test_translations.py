"""Translated pages are in step with the English ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.translations import PAGES, code, mark, marks, sections


@pytest.mark.parametrize(("path", "english"), PAGES.items(), ids=lambda path: path.name)
def test_each_section_is_of_the_present_english_one(path: Path, english: Path) -> None:
    """A section that changed in English must be looked at; then `python -m tests.support.translations` records it."""
    assert marks(path) == [mark(section) for section in sections(english)]


@pytest.mark.parametrize(("path", "english"), PAGES.items(), ids=lambda path: path.name)
def test_code_is_the_same(path: Path, english: Path) -> None:
    """Blocks of code are equal, in their order."""
    assert code(path) == code(english)
