"""The options of the sources, checked, and named in errors. It uses no Spark."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import orjson
from pydantic import ValidationError

from sidecar.config.document import FileProblem, KeyPath, dotted, parse
from sidecar.config.explain import explain
from sidecar.config.loader import load
from sidecar.config.members import decided
from sidecar.config.model import Settings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.config.tags import Dedup, Tags
from sidecar.errors import ConfigError
from sidecar.runtime.lane import refusal_of_fields
from sidecar.spark.query.offsets import Option, Place, parse_place
from sidecar.spark.ranges import broker_of
from sidecar.spark.ranges.broker import ON_GAP, BrokerRanges, OnGap
from sidecar.zone.schema import DDL_OF, SCHEMA

Broker: TypeAlias = Literal["kafka", "rocketmq"]
OFFSETS_MAX: Final = 1_000_000
GROUP: Final = "sidecar-spark"
_OWN: Final = ("config", "columns", "start", "end", "state", "maxOffsetsPerTrigger", "on_gap")
_SECTIONS: Final = ("tags", "dedup")
_OF_STREAMS: Final = ("state", "maxOffsetsPerTrigger", "on_gap")
_NO_END: Final = "a stream with trigger(availableNow=True) ends where the logs ended when it began"
_OF_THE_ZONE: Final = ("writer", "sequence", "batch_id")
COLUMNS: Final = tuple(name for name in SCHEMA.names if name not in _OF_THE_ZONE)
"""The columns of Kafka's messages; RocketMQ's also have `broker`."""
_DDL_OF: Final = DDL_OF | {"broker": "broker string"}
_NUMBERS: Final = ("dedup.capacity",)
_INSTEAD: Final = {
    "kafka.bootstrap.servers": "Use bootstrap_servers",
    "kafka.group.id": "Use group_id; a query commits nothing to the broker",
    "groupidprefix": "A query has no consumer group at the broker",
    "subscribe": "Use topics",
    "subscribepattern": "Use topics with a pattern that begins with ^",
    "assign": "All partitions of the topics are read; filter by partition in the query",
    "startingoffsets": "Use start: earliest, latest, a time, or the same JSON",
    "startingtimestamp": "Use start with the time",
    "startingoffsetsbytimestamp": "Use start with one time for all partitions, or with their offsets",
    "endingoffsets": "Use end: latest, a time, or the same JSON",
    "endingtimestamp": "Use end with the time",
    "endingoffsetsbytimestamp": "Use end with one time for all partitions, or with their offsets",
    "minpartitions": "Each partition of a topic is a task; repartition in the query",
    "failondataloss": "Use on_gap: stop, or log_start, which goes on where the log begins",
    "includeheaders": "The column headers is always there; choose columns with columns",
}
"""Replacements for the options of Spark's connector for Kafka."""


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a read.

    Args:
        ids: The settings of message ids, for the name of their folder.
        state: The folder of the windows of ids, on storage that all executors share; None if nothing is remembered
            between micro-batches.
        end: Where a batch read ends; None for the ends of the logs.
    """

    broker: BrokerRanges
    tags: Tags
    dedup: Dedup
    ids: str
    log: tuple[str, str]
    columns: tuple[str, ...]
    offsets_max: int
    state: Path | None
    start: Place = "earliest"
    end: Place | None = None
    on_gap: OnGap = "stop"

    @property
    def keeps_ids(self) -> bool:
        """Whether a stream keeps ids between micro-batches."""
        return self.state is not None and self.dedup.field is not None

    @property
    def ddl(self) -> str:
        """The columns in Spark's DDL."""
        return ", ".join(_DDL_OF[name] for name in self.columns)


def parse_options(broker: Broker, given: Mapping[str, str], *, stream: bool | None) -> Query:
    """Parse Spark's options, whatever the case of their names; raises `ConfigError` with the name of a wrong one."""
    own, others = _divided(given)
    for name in _OF_STREAMS:
        if name in own and stream is False:
            raise _error(broker, f"option {name} is for readStream; a batch read reads everything")
    if "end" in own and stream:
        raise _error(broker, f"option end is for spark.read; {_NO_END}")
    if "config" in own:
        if others:
            raise _error(broker, f"option {min(others)} belongs into the file that the option config names")
        settings = load(own["config"], refusals=lambda settings: list(_refusals(broker, settings)))
    else:
        settings = _settings(broker, others)
    dedup = settings.dedup
    query = Query(
        broker_of(settings, refusal_of_fields(settings), retried=False),
        settings.tags,
        dedup,
        orjson.dumps(decided(settings, lambda row: row.names_ids)).decode(),
        (settings.log.format, settings.log.level),
        _columns(broker, own.get("columns")),
        _offsets_max(broker, own.get("maxOffsetsPerTrigger")),
        Path(own["state"]).absolute() if "state" in own else None,
        _place(broker, "start", own["start"]) if "start" in own else settings.source.start,
        _place(broker, "end", own["end"]) if "end" in own else None,
        _on_gap(broker, own.get("on_gap", "stop")),
    )
    if stream and dedup.field is not None and query.state is None:
        text = "option state is missing: with dedup by an id, it names a folder that driver and executors share"
        raise _error(broker, f"{text}, in which the query keeps the ids")
    return query


def _place(broker: Broker, option: Option, text: str) -> Place:
    try:
        return parse_place(option, text)
    except ValueError as error:
        raise _error(broker, f"option {option} {error}") from None


def _divided(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    names = {name.lower(): name for name in _OWN}
    own = {names[name.lower()]: text for name, text in given.items() if name.lower() in names}
    return own, {name.lower(): text for name, text in given.items() if name.lower() not in names}


def _settings(broker: Broker, options: Mapping[str, str]) -> Settings:
    """Settings from options that are keys of the file: of `tags`, of `dedup`, and of the source without its name."""
    group = "group_id" if broker == "kafka" else "group"
    source: dict[str, Any] = {group: GROUP}
    document: dict[str, Any] = {"source": {broker: source}, "sink": {"console": {}}, "state": {"dir": "."}}
    for name, text in sorted(options.items()):
        _check_known(broker, name)
        section, path = (document, name.split(".")) if name.split(".")[0] in _SECTIONS else (source, name.split("."))
        if path[0] == "properties" and len(path) > 1:  # names of properties have dots
            path = ["properties", name.partition(".")[2]]
        for step in path[:-1]:
            section = section.setdefault(step, {})
            if not isinstance(section, dict):
                raise _error(broker, f"option {name} contradicts another option")
        section[path[-1]] = _value(broker, name, text)
    return _validated(broker, document)


def _check_known(broker: Broker, name: str) -> None:
    model = KafkaSettings if broker == "kafka" else RocketMqSettings
    known = [field.alias or key for key, field in model.model_fields.items()]
    if name.split(".")[0] in (*known, *_SECTIONS):
        return
    raise _error(broker, f"unknown option {name}. {_cure(broker, name, known)}")


def _cure(broker: Broker, name: str, known: list[str]) -> str:
    if broker == "kafka" and name in _INSTEAD:
        return _INSTEAD[name]
    if broker == "kafka" and name.startswith("kafka."):
        return f"Use properties.{name.removeprefix('kafka.')}"
    near = difflib.get_close_matches(name, [*known, *map(str.lower, _OWN), *_SECTIONS], 1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join((*_OWN, *known))}, tags.* and dedup.*"


def _value(broker: Broker, name: str, text: str) -> Any:
    if text.lstrip().startswith(("{", "[")) or name in _NUMBERS:
        try:
            return orjson.loads(text)
        except ValueError:
            kind = "a number" if name in _NUMBERS else "JSON"
            raise _error(broker, f"option {name} is {text!r} and must be {kind}") from None
    return [topic.strip() for topic in text.split(",")] if name == "topics" else text


def _validated(broker: Broker, data: Mapping[str, Any]) -> Settings:
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        document = parse(orjson.dumps(data).decode(), lambda text, _: text)
        problems = [explain(details, document) for details in error.errors(include_url=False)]
        raise _error(broker, "; ".join(_told(broker, problem) for problem in problems)) from None
    for path, text in _refusals(broker, settings):
        raise _error(broker, f"option {_option(broker, path)} {text}")
    return settings


def _told(broker: Broker, problem: FileProblem) -> str:
    value = f" ({problem.value})" if problem.value else ""
    name = _option(broker, problem.path)
    named = f"option {name} " if name else ""  # an error about the whole source names its keys itself
    return f"{named}{problem.text}{value}{'; ' if problem.cure else ''}{problem.cure}"


def _option(broker: Broker, path: KeyPath) -> str:
    return dotted(path[2:] if path[:2] == ("source", broker) else path)


def _refusals(broker: Broker, settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Settings that the sources do not support, each with the reason."""
    if settings.source.name != broker:
        yield ("source",), f"is {settings.source.name}: use sidecar-{settings.source.name}"
        return
    if settings.delay is not None:
        yield ("delay",), "is not possible: a query cannot hold messages until they are due"
    if settings.dedup.ledger is not None:
        yield ("dedup", "ledger"), "is not possible: a query compares ids within a partition"
    if settings.dedup.keep_ms is not None:
        yield ("dedup", "keep"), "is not possible: a repeated task must make the same decisions at any time"
    if (rocketmq := settings.source.rocketmq) is None:
        return
    if rocketmq.client != "remoting":
        text = f"is {rocketmq.client}: only with remoting do messages have lasting offsets"
        yield ("source", "rocketmq", "client"), text
    if rocketmq.sql is not None:
        yield ("source", "rocketmq", "sql"), "is not possible here: filter by tags, or in the query"


def _columns(broker: Broker, text: str | None) -> tuple[str, ...]:
    known = COLUMNS if broker == "kafka" else (*COLUMNS[:1], "broker", *COLUMNS[1:])
    if text is None:
        return known
    names = _value(broker, "columns", text)
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not names or any(name not in known or names.count(name) > 1 for name in names):
        raise _error(broker, f"option columns is {text!r} and must be some of {', '.join(known)}, each once")
    return tuple(names)


def _offsets_max(broker: Broker, text: str | None) -> int:
    if text is None:
        return OFFSETS_MAX
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63):
        raise _error(broker, f"option maxOffsetsPerTrigger is {text!r} and must be a number from 1 on")
    return int(text)


def _on_gap(broker: Broker, text: str) -> OnGap:
    if text not in ON_GAP:
        raise _error(broker, f"option on_gap is {text!r} and must be {' or '.join(ON_GAP)}")
    return cast("OnGap", text)


def _error(broker: Broker, text: str) -> ConfigError:
    return ConfigError(f"sidecar-{broker} source: {text}")
