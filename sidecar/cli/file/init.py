"""``sidecar init``: writes a first configuration file, from flags or from answers. Connects to nothing."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from pydantic import BaseModel, ValidationError

from sidecar.cli import example
from sidecar.cli.shared.output import say
from sidecar.config.loader import InvalidConfigError, load
from sidecar.config.sinks import HttpSinkSettings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.config.state_dir import default_dir
from sidecar.errors import StateError

Value = TypeVar("Value", str, list[str])
HEAD = """\
# Sidecar takes the messages of some topics and posts them to your service, in batches, each message once.
# Check it:        sidecar check -c {file}
# Run it:          sidecar run -c {file}
# All keys are in docs/configuration.md; `sidecar schema` prints them for editors.

source:
"""
KAFKA = """\
  kafka:
    # Brokers to ask first; they name the others.
    bootstrap_servers: {servers}
    # Processes of the same group share the partitions. What the group has committed is the progress.
    group_id: {group}
    topics: {topics}
    # Where a new group begins: earliest, latest, or a time such as 2027-01-31T12:00:00Z.
    start: earliest
    # TLS and a password, in the words of librdkafka. A secret may be in a file beside this one.
    #properties:
      #security.protocol: SASL_SSL
      #sasl.mechanism: SCRAM-SHA-512
      #sasl.username: sidecar
      #sasl.password: file:kafka-password

# Only messages with these tags, and each batch of one tag. Without this section: all messages.
#tags:
  #from: {{header: tag}}
  #subscribe: created || paid
"""
ROCKETMQ = """\
  rocketmq:
    # Name servers; they name the brokers.
    name_servers: {servers}
    # Processes of the same group share the queues. The group must have no other consumers.
    group: {group}
    topics: {topics}
    # Where a new group begins: earliest, latest, or a time such as 2027-01-31T12:00:00Z.
    start: earliest
    # Access control and TLS. A secret may be in a file beside this one.
    #access_key: sidecar
    #secret_key: file:rocketmq-secret-key
    #tls: {{ca: rocketmq-ca.pem}}

# Only messages with these tags, and each batch of one tag. Without this section: all messages, by their tags.
#tags:
  #subscribe: created || paid
"""
TAIL = """
# A producer may send a message twice. If each has an id, the second one is dropped.
#dedup:
  #by: {{header: message-id}}

sink:
  http:
    # Your service stores the rows of each POST, and answers 204 (docs/http.md).
    url: {url}
    #auth: {{bearer: file:receiver-token}}

{state}

# Health, status and metrics are at http://127.0.0.1:9464.
#admin:
  #listen: 127.0.0.1:9464
"""
_PLAIN = re.compile(r"(?!(true|false|null)$)[A-Za-z/]([\w./?=&-]|:(?=[\w/]))*", re.ASCII | re.IGNORECASE)


class Answers(NamedTuple):
    """The content of the file."""

    is_kafka: bool
    servers: str
    topics: list[str]
    group: str
    url: str


@click.command(
    epilog=example(
        "sidecar init",
        "sidecar init --kafka localhost:9092 --topics orders --group orders-sidecar --url http://localhost:8080/ingest",
    )
)
@click.option("--kafka", metavar="HOST:PORT", help="A Kafka broker; several are separated by commas.")
@click.option("--rocketmq", metavar="HOST:PORT", help="A RocketMQ name server, instead of Kafka.")
@click.option("--topics", metavar="A,B", help="Topics, separated by commas.")
@click.option("--group", metavar="NAME", help="Consumer group.")
@click.option("--url", metavar="URL", help="URL of your service, to which batches are posted.")
@click.option(
    "-o", "--output", "file", default="sidecar.yaml", show_default=True, metavar="FILE", help="The file; - is stdout."
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
def init(
    kafka: str | None,
    rocketmq: str | None,
    topics: str | None,
    group: str | None,
    url: str | None,
    file: str,
    force: bool,
) -> None:
    """Write a first configuration file; ask for values that no flag gives."""
    if kafka is not None and rocketmq is not None:
        raise click.UsageError("--kafka and --rocketmq exclude each other: a file has one source")
    servers = kafka if rocketmq is None else rocketmq
    given = {"--kafka or --rocketmq": servers, "--topics": topics, "--group": group, "--url": url}
    lacking = [flag for flag, value in given.items() if value is None]
    if lacking and not sys.stdin.isatty():
        raise click.UsageError(f"no terminal to ask on: add {', '.join(lacking)}")
    if file != "-" and not force and Path(file).exists():
        raise StateError(f"{file} exists", hint="add --force to overwrite it, or -o with another name")
    text = rendered(_answers(servers, topics, group, url, is_kafka=rocketmq is None), file, os.environ)
    _prove(text)
    if file == "-":
        say(text.removesuffix("\n"))
    else:
        _write(Path(file), text)
        say(f"wrote {file}; next: sidecar check -c {file}", err=True)


def _answers(servers: str | None, topics: str | None, group: str | None, url: str | None, *, is_kafka: bool) -> Answers:
    source = KafkaSettings if is_kafka else RocketMqSettings
    keys = ("bootstrap_servers", "group_id") if is_kafka else ("name_servers", "group")
    good: dict[str, Any] = {keys[0]: "localhost:1", keys[1]: "g", "topics": ["t"]}

    def usable(key: str, value: Value) -> Value:
        _check(source, {**good, key: value})
        return value

    def names(text: str) -> list[str]:
        return usable("topics", [name.strip() for name in text.split(",") if name.strip()])

    flag, kind, port = ("--kafka", "Kafka broker", 9092) if is_kafka else ("--rocketmq", "RocketMQ name server", 9876)
    offer = f"localhost:{port}"
    servers = _value(flag, f"{kind}, HOST:PORT", servers, lambda text: usable(keys[0], text.strip()), offer)
    read = _value("--topics", "Topics, separated by commas", topics, names)
    offer = f"{re.sub(r'[^A-Za-z0-9_-]', '', read[0])}-sidecar"
    group = _value("--group", "Consumer group", group, lambda text: usable(keys[1], text.strip()), offer)
    url = _value("--url", "URL of your service", url, _url, "http://localhost:8080/ingest")
    return Answers(is_kafka, servers, read, group, url)


def _value(flag: str, question: str, given: str | None, read: Callable[[str], Value], offer: str = "") -> Value:
    """The value of a flag, or the answer to the question, which is repeated until there is a good one."""

    def usable(text: str, name: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise click.UsageError(f"{name} {error}") from error

    if given is not None:
        return usable(given, flag)
    answer: Value = click.prompt(question, offer or None, value_proc=lambda text: usable(text, "this"), err=True)
    return answer


def _url(text: str) -> str:
    _check(HttpSinkSettings, {"url": text.strip()})
    return text.strip()


def _check(model: type[BaseModel], values: dict[str, Any]) -> None:
    try:
        model.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        text = str(details.get("ctx", {}).get("error", "")) or f"cannot be used: {details['msg']}"
        raise ValueError(text) from error


def rendered(answers: Answers, file: str, environ: Mapping[str, str]) -> str:
    """The text of a file of this name; the variables determine the default of the state folder."""
    template = HEAD + (KAFKA if answers.is_kafka else ROCKETMQ) + TAIL
    return template.format(
        file="FILE" if file == "-" else file,
        servers=_yaml(answers.servers),
        group=_yaml(answers.group),
        topics=f"[{', '.join(map(_yaml, answers.topics))}]",
        url=_yaml(answers.url),
        state=_state(answers, environ),
    )


def _state(answers: Answers, environ: Mapping[str, str]) -> str:
    what = (
        "Dead letters and message ids" if answers.is_kafka else "What may have been sent, dead letters and message ids"
    )
    try:
        folder, mark = str(default_dir(environ, answers.group)), "#"
    except ValueError:
        folder, mark = "/var/lib/sidecar", ""
    return f"# {what} are kept in this folder.\n{mark}state:\n  {mark}dir: {_yaml(folder)}"


def _yaml(text: str) -> str:
    """The text in YAML; in quotes if it could be read as something else."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _prove(text: str) -> None:
    """Raise a UsageError if the file could not be used: an answer may have a variable, for example."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            load(file.name)
        except InvalidConfigError as error:
            raise click.UsageError("; ".join(problem.text for problem in error.problems)) from error


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StateError(f"{file} cannot be written: {error.strerror}", hint="name another file with -o") from error
