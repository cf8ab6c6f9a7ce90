"""Runs what the documents about Spark tell to paste."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.jars import ROOT


def example(behind: str, document: str = "spark.md") -> Callable[[Mapping[str, str], dict[str, Any]], None]:
    """The first example behind these words of a document, to be run with other values, and names of its own."""
    text = (ROOT / "docs" / document).read_text().partition(behind)[2]
    code = text.partition("```python\n")[2].partition("```")[0]

    def run(values: Mapping[str, str], names: dict[str, Any]) -> None:
        replaced = code
        for told, real in values.items():
            assert told in replaced
            replaced = replaced.replace(told, real)
        exec(compile(replaced, document, "exec"), names)

    return run
