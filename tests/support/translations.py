"""Translated pages: each section records the hash of the English one; `python -m` records those of pages just reviewed.

Code is not translated: while a page is written, a line `CODE` stands for the next block of the English page.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from tests.support.jars import ROOT

PAGES = {ROOT / "docs" / "zh" / "README.md": ROOT / "README.md"} | {
    path: ROOT / "docs" / path.name for path in sorted((ROOT / "docs" / "zh").glob("*.md")) if path.name != "README.md"
}
"""The English page of each translated one."""
_FENCED = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- en: ([0-9a-f]{8}) -->\n", flags=re.MULTILINE)


def sections(path: Path) -> list[str]:
    """The sections of a page, that before the first heading of the second rank first; headings in code do not count."""
    text = path.read_text()
    hidden = _FENCED.sub(lambda match: re.sub(r"^#", "\0", match[0], flags=re.MULTILINE), text)
    return [part.replace("\0", "#") for part in re.split(r"^(?=## )", hidden, flags=re.MULTILINE)]


def mark(section: str) -> str:
    """The hash of an English section."""
    return hashlib.blake2b(section.strip().encode(), digest_size=4).hexdigest()


def marks(path: Path) -> list[str]:
    """The hashes that a translated page records, by section."""
    return [(_MARK.findall(section) or [""])[0] for section in sections(path)]


def code(path: Path) -> list[str]:
    """The blocks of code of a page."""
    return _FENCED.findall(path.read_text())


def record(path: Path) -> None:
    """Take code and hashes from the English page."""
    english = PAGES[path]
    blocks = iter(code(english))
    text = re.sub(r"^CODE$", lambda _: next(blocks), _MARK.sub("", path.read_text()), flags=re.MULTILINE)
    path.write_text(text)
    found = []
    for theirs, ours in zip(sections(path), sections(english), strict=True):
        heading, _, rest = theirs.partition("\n")
        found.append(f"{heading}\n<!-- en: {mark(ours)} -->\n{rest}")
    path.write_text("".join(found))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(Path(name).resolve())
