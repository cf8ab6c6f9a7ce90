"""The documents and the program tell the same: commands, options, exit codes, events, metrics, examples, links."""

from __future__ import annotations

import ast
import base64
import contextlib
import doctest
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

import sidecar
from sidecar import errors
from sidecar.cli import EXIT_INTERRUPTED, MODULES, main
from sidecar.cli.demo import EXIT_UNBALANCED
from sidecar.cli.shared import manual
from sidecar.config.loader import load
from sidecar.core.records import Attempt, TopicPartition
from sidecar.ops.health import DEGRADED, KINDS
from sidecar.ops.snapshot import CUT_REASONS, STOP_REASONS
from sidecar.runtime.changes import WHEN_QUIET
from sidecar.sinks.answers import parse_failed
from sidecar.sinks.formats import envelope_row
from sidecar.state.interface import StoredLetter
from sidecar.state.store import Store
from sidecar.zone import acknowledged
from tests.support import landing
from tests.support.jars import ROOT

README = ROOT / "README.md"
LIBRARY = ROOT / "docs" / "library.md"
OPERATION = ROOT / "docs" / "operation.md"
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
DOCUMENTS = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *PAGES]
TELLERS = {
    "debug",
    "info",
    "warning",
    "error",
    "event",
    "_tell",
    "tell",
    "_report",
    "report",
    "Report",
    "Troubles",
    "_forget",
}
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


@cache
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
    """The commands of the program, and those of its groups."""
    with click.Context(main) as context:
        for name in MODULES:
            command = main.get_command(context, name)
            assert command is not None
            yield command
            if isinstance(command, click.Group):
                yield from command.commands.values()


def test_every_log_event_is_told() -> None:
    """The table of events has each event of the program once, and no other."""
    told = first_column(section(OPERATION, "## Log"))
    assert sorted(told) == sorted(events())


def test_the_search_for_events_finds_them() -> None:
    """Events of all layers are found: else the test above would prove little."""
    assert {"daemon.started", "group.failed", "partition.reset", "kafka.failed", "partitions.lost"} <= events()
    assert len(events()) > 20


def test_every_help_has_an_example() -> None:
    """The help of each command shows a command line of it, whose options there are."""
    for command in commands():
        if isinstance(command, click.Group):
            continue
        examples = re.findall(r"^  sidecar (.*)", command.epilog or "", flags=re.MULTILINE)
        assert examples, f"no example in the help of {command.name}"
        known = {option for one in command.params if isinstance(one, click.Option) for option in one.opts}
        for example in examples:
            words = example.split("|")[0].split("&&")[0].split()
            assert command.name in words, example
            assert {word for word in words if word.startswith("-")} <= known, example


def test_the_manual_page_is_that_of_the_commands() -> None:
    """The page is as `make docs` would write it."""
    assert manual.PAGE.read_text() == manual.page()


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_manual_page_is_sound() -> None:
    """Groff has no warning of the page, and shows what it escapes as it is."""
    shown = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou", manual.PAGE], capture_output=True, text=True, check=True
    )
    assert shown.stderr == ""
    assert "sidecar offsets reset -c sidecar.yaml --to 2027-01-31T12:00:00Z --dry-run" in shown.stdout


def test_every_command_and_option_is_told() -> None:
    """The table of commands names each command and option, and no other."""
    wanted = set()
    for command in commands():
        wanted |= {f"sidecar {command.name}"} if command.name in MODULES else set()
        options = (parameter for parameter in command.params if isinstance(parameter, click.Option))
        wanted |= {option for parameter in options for option in parameter.opts}
    wanted |= {option for parameter in main.params for option in parameter.opts}
    text = section(OPERATION, "## Commands")
    told = re.findall(r"`(sidecar [\w-]+|--?[\w-]+)[^`]*`", text)
    assert set(told) == wanted


def test_every_command_of_a_group_is_told() -> None:
    """The table of commands has each command of a group, with the group's name before it."""
    text = section(OPERATION, "## Commands").replace("` `", " ")
    groups = [command for command in commands() if isinstance(command, click.Group)]
    names = [f"`sidecar {group.name} {name}" for group in groups for name in group.commands]
    assert len(names) > 8
    assert [name for name in names if not re.search(rf"{name}[ `]", text)] == []


def test_every_exit_code_is_told() -> None:
    """The table of exit codes has each of the program's, and no other."""
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    told = first_column(section(OPERATION, "## Exit codes"))
    assert sorted(map(int, told)) == sorted(codes | {EXIT_UNBALANCED, EXIT_INTERRUPTED})


def test_every_reason_to_stop_reading_is_told() -> None:
    """The table of `intake_stopped` has the words of the pipeline, and no other."""
    tree = ast.parse((ROOT / "sidecar" / "core" / "pipeline" / "gate.py").read_text())
    (stops,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "stops"]
    (table,) = [n for n in ast.walk(stops) if isinstance(n, ast.Dict)]
    words = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert tuple(words) == STOP_REASONS
    assert first_column(section(TROUBLESHOOTING, "## Why nothing is read")) == words


def test_the_level_of_every_stop_is_told() -> None:
    """The row of `intake.stopped` names each reason that is no error: a warning if it is a degraded problem."""
    (levels,) = re.findall(r"^\| `intake.stopped` \| ([^|]*) \|", section(OPERATION, "## Log"), flags=re.MULTILINE)
    warnings = [word for word in STOP_REASONS if KINDS[word].state == DEGRADED]
    assert levels == f"error; {' and '.join(f'`{word}`' for word in warnings)} warning, `draining` info"


def test_every_key_that_waits_for_a_quiet_point_is_told() -> None:
    """The table of reloads has the keys, or their section, and no other."""
    (cell,) = re.findall(r"^\| (.*) \| when nothing is open or being sent:", OPERATION.read_text(), flags=re.MULTILINE)
    told = re.findall(r"`([\w.]+)`", cell)
    by_http = [key for key in WHEN_QUIET if not key.startswith(("sink.console.", "sink.file."))]
    above = {key: [each for each in told if f"{key}.".startswith(f"{each}.")] for key in by_http}
    assert [key for key, found in above.items() if not found] == []
    assert set(told) == {each for found in above.values() for each in found}


def test_every_problem_is_told() -> None:
    """The table of health has a row for each kind of problem, with its state and its next step, and no other."""
    text = section(OPERATION, "## Health")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]* \| ([^|]*) \|$", text, flags=re.MULTILINE)
    assert rows == [(name, kind.state, kind.next_step) for name, kind in KINDS.items()]


def test_every_problem_is_found_by_what_is_seen() -> None:
    """Troubleshooting has a row for each kind of problem, under the heading of its state, and for each alert."""
    stops = section(TROUBLESHOOTING, "## Nothing flows")
    flows = section(TROUBLESHOOTING, "## Something is wrong, and messages flow").partition("\n### ")[0]
    told = {name for name, kind in KINDS.items() if kind.state != DEGRADED}
    assert set(first_column(stops)) == told
    assert set(first_column(flows)) == KINDS.keys() - told
    alerts = re.findall(r"alert: (\w+)", (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    begin = first_column(section(TROUBLESHOOTING, "## Where to begin"))
    assert sorted(name for name in begin if name.startswith("Sidecar")) == sorted(alerts)


def test_every_code_with_which_a_daemon_ends_is_told() -> None:
    """Troubleshooting has the exit codes of `sidecar run`, and those of signals."""
    cells = re.findall(r"^\| ([\d, ]+) \|", section(TROUBLESHOOTING, "## The process does not run"), flags=re.MULTILINE)
    told = {int(code) for cell in cells for code in cell.split(", ")}
    of_commands = {errors.EXIT_USAGE, errors.EXIT_DATA, errors.EXIT_NO_INPUT}
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")} - of_commands
    assert told == codes | {128 + number for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGTERM)}


def test_every_cut_reason_is_told() -> None:
    """The table of metrics names the reasons of cuts."""
    (row,) = [line for line in OPERATION.read_text().splitlines() if line.startswith("| `sidecar_batch_cuts_total`")]
    assert tuple(re.findall(r"`(\w+)`", row)[1:]) == CUT_REASONS


def test_the_readme_shows_the_minimal_configuration() -> None:
    """The first YAML of the README is a whole configuration that loads, and the very file of `config/`."""
    text = blocks(README, "yaml")[0]
    minimal = ROOT / "config" / "minimal.yaml"
    assert text == minimal.read_text()
    assert load(minimal).source.kafka.topics == ["orders"]


RUN = {
    "docs/tutorial.md": ["tests/integration/test_tutorial.py: walked(tmp_path, kafka)"] * 2,
    "docs/zone.md": ["test_the_reader_of_a_zone_works"],
    "docs/spark.md": [
        'tests/spark/test_source.py: example("## Feeding Spark")',
        "tests/spark/test_sessions.py: from sidecar.spark.ingest import ingest",
        'tests/spark/test_ingest.py: example("**Files**")',
        'tests/spark/test_merge.py: example("## One row for each key")',
        'tests/spark/test_query_source.py: example("## In a query of your own")',
        "tests/spark/test_query_rocketmq.py: read_rocketmq_stream(",
        'tests/spark/test_listener.py: example("### Metrics of your queries")',
        "tests/spark/test_sessions.py: from sidecar.spark.run import run",
    ],
    "docs/spark-types.md": ['tests/spark/test_table_types.py: example("## INT96", "spark-types.md")'],
    "README.md": ['sidecar/spark/__init__.py: spark.readStream.format("sidecar")'],
}
"""What runs each Python block of a document, in their order: a test here, or what another file has of it."""
LANGUAGES = {"text", "yaml", "json", "http", "python", "pycon", "sql"}
"""Text shows layouts and output; each block of the others is run, loaded or compared by a test of this file."""
TUTORIAL_LANGUAGES = {"sh"}
"""Only the tutorial has it: tests/integration/test_tutorial.py does what its shell blocks say."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_sample_is_of_a_kind_that_is_tested(path: Path) -> None:
    """Each fenced block has a language, and a test here looks at all blocks of that language."""
    marks = re.findall(r"^```(.*)$", path.read_text(), flags=re.MULTILINE)
    assert set(marks[::2]) <= LANGUAGES | (TUTORIAL_LANGUAGES if path.name == "tutorial.md" else set())
    assert set(marks[1::2]) <= {""}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_python_sample_is_run(path: Path) -> None:
    """Each Python block parses, and some test runs it."""
    code, runners = blocks(path, "python"), RUN.get(str(path.relative_to(ROOT)), [])
    assert len(code) == len(runners)
    for text, runner in zip(code, runners, strict=True):
        ast.parse(text)
        file, _, piece = runner.rpartition(": ")
        assert piece in (ROOT / file).read_text() if file else piece in globals()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_configuration_that_is_shown_is_valid(path: Path, tmp_path: Path) -> None:
    """Each YAML block is a file that loads; one that shows some sections does so with the others of the minimal one."""
    yaml = YAML(typ="safe")
    minimal = yaml.load(ROOT / "config" / "minimal.yaml")
    for text in blocks(path, "yaml"):
        shown = yaml.load(text)
        if "rocketmq" in shown.get("source", {}):
            shown = {"tags": {}, **shown}
        with (tmp_path / "shown.yaml").open("w") as file:
            yaml.dump({**minimal, **shown}, file)
        load(tmp_path / "shown.yaml")


def test_rows_that_are_shown_are_what_is_sent() -> None:
    """The line of JSON in a document is, byte for byte, the row of such a message."""
    shown = [text.rstrip().rpartition("\n")[2] for path in DOCUMENTS for text in blocks(path, "http")]
    shown += [text.rstrip() for path in DOCUMENTS for text in blocks(path, "json")]
    rows = [text for text in shown if text.startswith('{"topic"')]
    assert len(rows) == 2
    for row in rows:
        value = json.loads(row)["value"].encode()
        headers = [("tag", b"paid")]
        made = envelope_row(TopicPartition("orders", 3), 1200, 1_700_000_000_000, b"k1", (b"paid",), headers, value)
        assert row == made.decode()


def test_requests_that_are_shown_have_the_headers_that_are_sent() -> None:
    """Each header in an HTTP block is one that the sink, or HTTP itself, has."""
    source = "".join((ROOT / "sidecar" / "sinks" / name).read_text() for name in ("http.py", "endpoint.py"))
    shown = {
        name for path in DOCUMENTS for text in blocks(path, "http") for name in re.findall(r"^([\w-]+): ", text, re.M)
    }
    assert len(shown) > 8
    assert {name for name in shown - {"Host"} if f'"{name}"' not in source} == set()


def test_answers_that_are_shown_are_understood() -> None:
    """The body of a 207 in a document names the rows that it says."""
    (body,) = [text for path in DOCUMENTS for text in blocks(path, "json") if text.startswith('{"failed"')]
    rows = parse_failed(body.encode(), 5_000)
    assert [(row.index, row.retry) for row in rows] == [(17, False), (40, True)]


def test_the_reader_of_a_zone_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python of the zone's page reads each row once, acknowledges what it read, and ends."""
    zone = landing.writer(tmp_path / "zone")
    for at in (0, 3):
        zone.land(landing.batch(at))
    zone.close()
    (code,) = blocks(ROOT / "docs" / "zone.md", "python")
    place = "/var/lib/sidecar/zone"
    assert code.count(place) == 1
    exec(compile(code.replace(place, str(tmp_path / "zone")), "reader", "exec"), {})
    assert capsys.readouterr().out == "3\n3\n"
    assert list(acknowledged(tmp_path / "zone")) == ["my-reader"]


def test_the_session_in_the_readme_is_real() -> None:
    """What the README shows of the library is what it does."""
    (text,) = blocks(README, "pycon")
    session = doctest.DocTestParser().get_doctest(text, {}, "README", None, None)
    assert len(session.examples) > 3
    assert doctest.DocTestRunner().run(session).failed == 0


def test_the_sessions_of_the_library_are_real() -> None:
    """What docs/library.md shows of each class is what it does."""
    for number, text in enumerate(blocks(LIBRARY, "pycon")):
        session = doctest.DocTestParser().get_doctest(text, {}, f"library.md, {number}", None, None)
        assert len(session.examples) > 2
        assert doctest.DocTestRunner().run(session).failed == 0


def test_the_library_is_told_whole() -> None:
    """docs/library.md names everything that the package exports, and the methods of its main classes."""
    text = LIBRARY.read_text()
    names = {name for name in sidecar.__all__ if name not in text}
    assert names == {"BatchState", "BatcherCounts", "DelayedMessage", "MessageBatch"}, (
        "told by what they are attributes of"
    )
    classes = sidecar.Batcher, sidecar.ThreadedBatcher, sidecar.Progress, sidecar.DelayStore
    methods = {name for one in classes for name in vars(one) if not name.startswith("_") and name != "keys"}
    assert {name for name in methods if not re.search(rf"\b{name}\b", text)} == set()


def anchors(path: Path) -> set[str]:
    """The names that a document's headings can be linked by."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    """Each link between documents names a file that is there, and a heading that it has."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(found), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_that_is_told_exists(path: Path) -> None:
    """A `make` target that a document names is in the Makefile, and a `sidecar` command is one of the program."""
    text = path.read_text()
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert targets is not None
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, flags=re.MULTILINE)) <= set(targets[1].split())
    assert set(re.findall(r"(?:`|^    )sidecar ([a-z-]+)", text, flags=re.MULTILINE)) <= set(MODULES)


def test_the_site_is_built(tmp_path: Path) -> None:
    """Every page is in its navigation, and no link or anchor leads nowhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    assert len(pages) >= len(DOCUMENTS)
    asked = {address for page in pages for address in re.findall(r'(?:src|<link [^>]*href)="(https?://[^"]*)', page)}
    assert asked == set(), "the site asks other hosts"


def test_every_document_is_found_from_the_readme() -> None:
    """The README leads to each other document and to the examples; the overview of the architecture, to its pages."""
    text = README.read_text()
    overview = ROOT / "docs" / "architecture" / "overview.md"
    parts = {path for path in PAGES if path.parent == overview.parent} - {overview}
    assert [path for path in DOCUMENTS[1:] if path not in parts and f"]({path.relative_to(ROOT)})" not in text] == []
    assert [path for path in parts if f"]({path.name})" not in overview.read_text()] == []
    assert all(f"(examples/{path.name})" in text for path in (ROOT / "examples").glob("*.py"))


def test_the_demo_that_is_shown_has_balanced() -> None:
    """The output in the README is that of a whole demo."""
    (text,) = [block for block in blocks(README, "text") if "kill -9" in block]
    assert "\nlost 0, delivered twice 0: the books balance\n" in text
    assert text.splitlines()[-1] == "lost 0, twice 0: the books balance"


# Recipes for dead letters


def letter(offset: int, reason: str, envelope: dict[str, Any]) -> StoredLetter:
    """A dead letter as the daemon keeps it."""
    attempts = (Attempt(1_700_000_000_000, 400, 3.5, reason),)
    data = json.dumps(envelope).encode()
    return StoredLetter("orders", 0, offset, "9f3ac2d1", "paid", reason, 400, attempts, 1_700_000_000_000, data, data)


@pytest.fixture
def dead_lettered(tmp_path: Path) -> Path:
    """A state folder with three dead letters, two of them refused with 400."""
    odd = base64.b64encode(b"\xff").decode()
    with contextlib.closing(Store(tmp_path / "state")) as state:
        state.letters.put(
            [
                letter(7, "HTTP 400: no", {"key": "k", "headers": [["tag", "paid"], ["x", None]], "value": "{}"}),
                letter(8, "HTTP 400", {"key": None, "headers": [["x", {"base64": odd}]], "value_base64": odd}),
                letter(9, "unframeable", {"key": None, "headers": [], "value": None}),
            ]
        )
    return tmp_path / "state"


def test_the_query_for_dead_letters_works(dead_lettered: Path) -> None:
    """The SQL statement for dead letters runs on a real state file and counts the letters of each reason."""
    (counting,) = blocks(OPERATION, "sql")
    with contextlib.closing(sqlite3.connect(dead_lettered / "state.db")) as database:
        assert sorted(database.execute(counting)) == [("HTTP 400", 1), ("HTTP 400: no", 1), ("unframeable", 1)]
