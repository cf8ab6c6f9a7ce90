"""The documents and the program tell the same: commands, options, exit codes, events, metrics, examples, links."""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import re
import shlex
import sqlite3
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from sidecar import errors
from sidecar.cli import COMMANDS, EXIT_INTERRUPTED, main
from sidecar.cli.demo import EXIT_UNBALANCED
from sidecar.config.loader import load
from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.records import Attempt
from sidecar.ops.snapshot import CUT_REASONS
from sidecar.state.interface import StoredLetter
from sidecar.state.store import Store
from tests.support.jars import ROOT

README = ROOT / "README.md"
OPERATION = ROOT / "docs" / "operation.md"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
TELLERS = {"debug", "info", "warning", "error", "event", "_tell", "tell", "_report", "report", "Report", "_forget"}
"""Functions whose arguments name log events."""
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")


def section(path: Path, title: str) -> str:
    """The text below a heading, up to the next one of its rank."""
    mark, text = title.split(" ")[0], path.read_text()
    assert f"\n{title}\n" in text, f"{path.name} has no heading {title!r}"
    return re.split(rf"^{mark} ", text.partition(f"\n{title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def first_column(text: str) -> list[str]:
    """What stands in backquotes in the first column of a section's tables."""
    cells = re.findall(r"^\| ([^|]*) \|", text, flags=re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def events() -> set[str]:
    """Names of log events in the program: text given to a function that tells events, and the one of libraries."""
    found = {"library.logged"}
    for path in (ROOT / "sidecar").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and name_of(node.func) in TELLERS:
                texts = [n.value for a in node.args for n in ast.walk(a) if isinstance(n, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and EVENT.fullmatch(text)}
    return found


def name_of(function: ast.expr) -> str:
    """The last part of a called function's name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def commands() -> Iterator[click.Command]:
    """The commands of the program."""
    with click.Context(main) as context:
        for name in COMMANDS:
            command = main.get_command(context, name)
            assert command is not None
            yield command


def test_every_log_event_is_told() -> None:
    """The table of events has each event of the program once, and no other."""
    told = first_column(section(OPERATION, "## Log"))
    assert sorted(told) == sorted(events())


def test_the_search_for_events_finds_them() -> None:
    """Events of all layers are found: else the test above would prove little."""
    assert {"daemon.started", "batch.retried", "partition.reset", "kafka.failed", "partitions.lost"} <= events()
    assert len(events()) > 20


def test_every_command_and_option_is_told() -> None:
    """The table of commands names each command and option, and no other."""
    wanted = set()
    for command in commands():
        wanted.add(f"sidecar {command.name}")
        wanted |= {option for parameter in command.params for option in parameter.opts}
    wanted |= {option for parameter in main.params for option in parameter.opts}
    text = section(OPERATION, "## Commands")
    told = re.findall(r"`(sidecar \w+|--?\w+)[^`]*`", text)
    assert set(told) == wanted


def test_every_exit_code_is_told() -> None:
    """The table of exit codes has each of the program's, and no other."""
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    told = first_column(section(OPERATION, "## Exit codes"))
    assert sorted(map(int, told)) == sorted(codes | {EXIT_UNBALANCED, EXIT_INTERRUPTED})


def test_every_reason_to_stop_reading_is_told() -> None:
    """The table of `intake_stopped` has the words of the pipeline, and no other."""
    tree = ast.parse((ROOT / "sidecar" / "core" / "pipeline.py").read_text())
    (stops,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "stops"]
    (table,) = [n for n in ast.walk(stops) if isinstance(n, ast.Dict)]
    words = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert first_column(section(OPERATION, "## Why nothing is read")) == words


def test_every_cut_reason_is_told() -> None:
    """The table of metrics names the reasons of cuts."""
    (row,) = [line for line in OPERATION.read_text().splitlines() if line.startswith("| `sidecar_batch_cuts_total`")]
    assert tuple(re.findall(r"`(\w+)`", row)[1:]) == CUT_REASONS
