"""The example files, the reference and the schema say what the model says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sidecar.config.loader import load
from sidecar.config.reference import BEGIN, DOCUMENTS, END, keys, keys_on_spark, renewed
from sidecar.config.schema import Option, options, schema
from sidecar.config.source.kafka import REFUSED
from sidecar.spark.ingest.job import load_for_ingest
from tests.support.json_schema import violations

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "config").glob("*.yaml"))
REFERENCE = ROOT / "docs" / "configuration.md"


def plain(text: str) -> Any:
    """The YAML as plain data, nothing checked."""
    return YAML(typ="safe", pure=True).load(text)


def uncommented(text: str) -> str:
    """The text with its options that stand behind a # without a space."""
    return re.sub(r"^(\s*)#(?=\S)", r"\1", text, flags=re.MULTILINE)


def find(data: Any, path: tuple[str, ...]) -> Any:
    """What stands at the path, KeyError when it is not there."""
    for step in path:
        data = data[step]
    return data


def nested(option: Option) -> bool:
    """Whether the key stands inside a value that may also be a word, where only one of the two can be shown."""
    return any(
        len(outer.path) < len(option.path) and option.path[: len(outer.path)] == outer.path and not outer.section
        for outer in options()
    )


@pytest.fixture
def credentials(tmp_path: Path) -> dict[str, str]:
    """The environment that the example files need, with a secret in each credential."""
    for name in ("kafka-password", "receiver-token"):
        (tmp_path / name).write_text(f"secret-{name}\n")
    return {"CREDENTIALS_DIRECTORY": str(tmp_path), "HOME": "/home/me"}


def test_every_example_is_known() -> None:
    """A minimal, a production and a full file are there, one each for delays and Spark, and two for RocketMQ."""
    names = "delay full minimal production rocketmq-grpc rocketmq spark"
    assert [file.name for file in FILES] == [f"{name}.yaml" for name in names.split()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_examples_load(file: Path, credentials: dict[str, str]) -> None:
    """Every example is a valid configuration, and none of its secrets is shown."""
    settings = load(file, credentials)
    assert "secret-" not in str(settings.public()) + repr(settings)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_examples_fit_the_schema(file: Path) -> None:
    """The JSON Schema takes every example as it is written."""
    assert violations(plain(file.read_text()), schema()) == []


def test_production_means_what_it_says(credentials: dict[str, str]) -> None:
    """The production file's secrets come from their files without the line end, its brokers as one text."""
    settings = load(ROOT / "config" / "production.yaml", credentials)
    http = settings.sink.http
    assert http and http.auth and http.auth.bearer
    assert http.auth.bearer.get_secret_value() == "secret-receiver-token"
    assert settings.source.kafka.properties["sasl.password"] == "secret-kafka-password"
    assert settings.source.kafka.bootstrap_servers.count(",") == 2


def test_the_example_for_spark_is_whole() -> None:
    """The daemon and the job that fills the table take the same file."""
    settings = load_for_ingest(ROOT / "config" / "spark.yaml")
    assert settings.sink.spark and settings.spark and settings.spark.table


def test_full_equals_minimal_but_for_subscription_and_folder() -> None:
    """All that the full file sets is what a file without it gets."""
    full = load(ROOT / "config" / "full.yaml", {}).public()
    minimal = load(ROOT / "config" / "minimal.yaml", {"HOME": "/home/me"}).public()
    minimal["tags"]["subscribe"], minimal["state"] = "*", {"dir": "/var/lib/sidecar/orders"}
    assert full == minimal


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_full_names_every_option_with_its_default(option: Option) -> None:
    """The full file has every key, set to its default or behind a #, and words explain what excludes its neighbour."""
    text = (ROOT / "config" / "full.yaml").read_text()
    if nested(option):
        assert re.search(rf"\b{option.path[-1]}: ", text)
        return
    found = find(plain(uncommented(text)), option.path)
    if option.default is not None:
        assert found == option.default


def test_full_names_no_other_option() -> None:
    """Each key of the full file, those behind a # too, is one of the model."""
    known = {option.path for option in options()}

    def paths(data: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        inner = data.items() if isinstance(data, dict) else ()
        return [path, *(found for key, value in inner for found in paths(value, (*path, key)))]

    text = uncommented((ROOT / "config" / "full.yaml").read_text())
    assert {path for path in paths(plain(text), ()) if path} <= known


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tables_of_keys_are_those_of_the_model(document: str) -> None:
    """A table between the marks is what `make docs` would write."""
    text = (ROOT / document).read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert renewed(text, DOCUMENTS[document]()) == text


def test_a_key_has_a_row_with_all_that_the_model_knows() -> None:
    """Types come from bounds, units and choices; on Spark the row of a section is for its keys."""
    told, on_spark = keys().splitlines(), keys_on_spark().splitlines()
    for row in (
        "| `batch.max_messages` | number, 1 to 1,000,000 | `5000` | Maximum messages in a batch. |",
        "| `log.level` | word | `info` | Lowest level that is logged. |",
        "| `drain_timeout` | duration, 0ms to 1h | `20s` | How long a stop waits for messages in flight. |",
        "| `tags.exclude` | expression |  | Tags that are never wanted, `a \\|\\| b`. |",
    ):
        assert row in told
    assert len(told) == len(options()) + 2
    names = {name for line in on_spark for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])}
    for option in options():
        ways = [".".join(option.path[: length + 1]) for length in range(len(option.path))]
        assert option.section or names & set(ways), option.name
    assert {"sink.http.concurrency", "sink.http.tls"} <= names
    assert "sink.http.tls.ca" not in names


def test_reference_shows_the_minimal_file() -> None:
    """The configuration that the reference starts with is the minimal file."""
    assert (ROOT / "config" / "minimal.yaml").read_text() in REFERENCE.read_text()


def test_reference_names_every_refused_property() -> None:
    """The reference lists the client's properties that cannot be set, each with its reason."""
    text = REFERENCE.read_text()
    assert [name for name, reason in REFUSED.items() if f"| `{name}` | {reason} |" not in text] == []
