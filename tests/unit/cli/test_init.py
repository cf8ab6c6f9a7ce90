"""`sidecar init`: the first file, from flags and from answers at a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.cli import main
from sidecar.cli.file.init import Answers, rendered
from sidecar.config.loader import load

FLAGS = {"--topics": "orders, returns", "--group": "g", "--url": "http://h:8080/in"}
ENVIRON = {"HOME": "/home/me"}


def run(*args: str, kafka: str = "localhost:9092", **flags: str) -> Result:
    """`sidecar init` with all flags, some of them changed."""
    words = [word for flag, value in ({"--kafka": kafka} | FLAGS | flags).items() if value for word in (flag, value)]
    return CliRunner().invoke(main, ["init", *words, *args], prog_name="sidecar")


def for_kafka(group: str, environ: Mapping[str, str]) -> str:
    """The text of a file for this group."""
    answers = Answers(is_kafka=True, servers="localhost:9092", topics=["orders"], group=group, url="http://h/in")
    return rendered(answers, "f.yaml", environ)


def test_the_file_of_flags_is_what_they_say(tmp_path: Path) -> None:
    """All values are there, everything else is the default, and the next command is told."""
    file = tmp_path / "orders.yaml"
    result = run("-o", str(file))
    assert (result.exit_code, result.stderr) == (0, f"wrote {file}; next: sidecar check -c {file}\n")
    found = load(file, ENVIRON)
    assert found.sink.http
    assert (found.source.kafka.bootstrap_servers, found.source.kafka.topics) == (
        "localhost:9092",
        ["orders", "returns"],
    )
    assert (found.source.group_id, found.sink.http.url) == ("g", "http://h:8080/in")
    assert CliRunner().invoke(main, ["validate", "-c", str(file)]).exit_code == 0


def test_the_file_for_rocketmq_has_its_keys(tmp_path: Path) -> None:
    """Its name servers and group are in its own section."""
    file = tmp_path / "orders.yaml"
    assert run("-o", str(file), kafka="", **{"--rocketmq": "n:9876,m:9876"}).exit_code == 0
    rocketmq = load(file, ENVIRON).source.rocketmq
    assert rocketmq
    assert (rocketmq.name_servers, rocketmq.topics, rocketmq.group) == ("n:9876,m:9876", ["orders", "returns"], "g")


@pytest.mark.parametrize("is_kafka", [True, False])
def test_what_is_commented_out_is_good_too(is_kafka: bool, tmp_path: Path) -> None:
    """Without the #, each key that the file explains loads."""
    for name in ("kafka-password", "rocketmq-secret-key", "receiver-token"):
        (tmp_path / name).write_text("secret")
    text = rendered(Answers(is_kafka, "h:1", ["t"], "g", "https://h/"), "f", ENVIRON)
    file = tmp_path / "f.yaml"
    file.write_text(re.sub(r"^( *)#(?! )", r"\1", text, flags=re.MULTILINE))
    found = load(file, {})
    assert found.tags.subscribe == "created || paid"
    assert found.state.dir == Path("/home/me/.local/state/sidecar/g")


def test_the_file_is_short() -> None:
    """A person reads it on one screen, in lines that fit."""
    text = for_kafka("orders-sidecar", ENVIRON)
    assert len(text.splitlines()) <= 46
    assert max(map(len, text.splitlines())) <= 110


def test_without_a_home_the_file_names_a_folder(tmp_path: Path) -> None:
    """The default of the state folder cannot be derived there, so the key is set."""
    file = tmp_path / "f.yaml"
    file.write_text(for_kafka("g", {}))
    assert load(file, {}).state.dir == Path("/var/lib/sidecar")


@given(group=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
@settings(max_examples=50)
def test_any_group_is_read_as_it_was_given(group: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What YAML would read as a number, a word or a comment is in quotes."""
    file = tmp_path_factory.mktemp("group") / "f.yaml"
    file.write_text(for_kafka(group, ENVIRON))
    if "${" not in group and not group.startswith("file:"):
        assert load(file, ENVIRON).source.group_id == group


@pytest.mark.parametrize("group", ["12", "null", "True", "a: b", "a #b", "-", "yes", "*a", "a:"])
def test_a_group_that_yaml_would_read_otherwise_is_quoted(group: str, tmp_path: Path) -> None:
    """It is the text that was given."""
    file = tmp_path / "f.yaml"
    file.write_text(for_kafka(group, ENVIRON))
    assert load(file, ENVIRON).source.group_id == group


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--kafka", "a b", "--kafka needs HOST:PORT"),
        ("--topics", "a b", "--topics is not a valid topic name"),
        ("--topics", ",", "--topics cannot be used"),
        ("--url", "ftp://h", "--url needs http://HOST:PORT/PATH"),
        ("--rocketmq", "h:1", "exclude each other"),
        ("--group", "${NO_SUCH}", "NO_SUCH"),
    ],
)
def test_a_value_that_the_file_could_not_have_is_refused(flag: str, value: str, says: str, tmp_path: Path) -> None:
    """Exit 64 with the flag and the reason, and there is no file."""
    file = tmp_path / "f.yaml"
    result = run("-o", str(file), **{flag: value})
    assert (result.exit_code, file.exists()) == (64, False)
    assert says in result.stderr


def test_without_a_terminal_the_flags_are_needed(tmp_path: Path) -> None:
    """Exit 64 with what is lacking; nothing is asked."""
    result = run("-o", str(tmp_path / "f.yaml"), kafka="", **{"--group": ""})
    assert result.exit_code == 64
    assert "no terminal to ask on: add --kafka or --rocketmq, --group\n" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_overwritten_only_if_that_is_asked_for(tmp_path: Path) -> None:
    """Exit 73, and the file is as it was; with --force it is the new one."""
    file = tmp_path / "f.yaml"
    file.write_text("mine")
    refused = run("-o", str(file))
    assert (refused.exit_code, file.read_text()) == (73, "mine")
    assert "--force" in refused.stderr
    assert run("-o", str(file), "--force").exit_code == 0
    assert load(file, ENVIRON).source.group_id == "g"


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Exit 73 with the reason of the system."""
    result = run("-o", str(tmp_path / "missing" / "f.yaml"))
    assert result.exit_code == 73
    assert "No such file or directory" in result.stderr


def test_a_person_is_asked_for_what_the_flags_leave_open(tmp_path: Path) -> None:
    """At a terminal: a wrong answer is asked for again, an empty one takes what is offered."""
    file = tmp_path / "f.yaml"
    ours, theirs = pty.openpty()
    os.write(ours, b"a b\n\norders\n\nhttp://h/in\n")
    command = [sys.executable, "-m", "sidecar", "init", "-o", str(file)]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=60, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    questions = re.findall(r"Kafka broker|Topics|Consumer group|URL", done.stderr)
    assert questions == ["Kafka broker", "Kafka broker", "Topics", "Consumer group", "URL"]
    assert "Error: this needs HOST:PORT" in done.stderr
    found = load(file, ENVIRON)
    assert (found.source.kafka.bootstrap_servers, found.source.group_id) == ("localhost:9092", "orders-sidecar")
