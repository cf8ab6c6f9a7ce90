"""Hooks of mkdocs: pages that are outside of `docs`, and the files that documents lead to, are part of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Documents at the root, and their places in the site."""
_LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them."""
    for name, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    documents = [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md")]
    for target in sorted({target for document in documents for target in _targets(document)}):
        _add(files, config, ROOT / target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links lead to the places in the site."""
    places = {place: name for name, place in PAGES.items()}
    source = ROOT / places.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def place(match: re.Match[str]) -> str:
        there = posixpath.relpath(_place(_target(source, match[2])), posixpath.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{there}{match[3]}"

    return _LINK.sub(place, markdown)


def _targets(document: Path) -> Iterator[str]:
    """What a document links to that is neither a page nor in `docs`."""
    for _, name, _ in _LINK.findall(document.read_text()):
        target = _target(document, name)
        if target not in PAGES and not target.startswith("docs/"):
            yield target


def _target(document: Path, name: str) -> str:
    return posixpath.normpath(posixpath.join(document.parent.relative_to(ROOT).as_posix(), name))


def _place(target: str) -> str:
    """Where the site has a file of the repository."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"source/{target}/index.md" if (ROOT / target).is_dir() else f"source/{target}"


def _add(files: Files, config: MkDocsConfig, path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.is_file())
        content = f"# {name}\n\n" + "".join(f"* [{each}]({each})\n" for each in names)
        files.append(File.generated(config, f"source/{name}/index.md", content=content))
        for each in names:
            _add(files, config, path / each)
    elif files.get_file_from_path(f"source/{name}") is None:
        files.append(File.generated(config, f"source/{name}", content=path.read_bytes()))
