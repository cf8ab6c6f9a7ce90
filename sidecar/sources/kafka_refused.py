"""Which properties the Kafka client does not take, told by the client itself. Connects to nothing."""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from sidecar.config.base import HIDDEN, secret_name

Make = Callable[[dict[str, Any]], object]
_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_REFUSALS = {ck.KafkaError._INVALID_ARG, ck.KafkaError._CONFLICT}
_ADDRESSES = ("bootstrap.servers", "metadata.broker.list")
_NO_PROVIDER = re.compile(r"No provider for SASL mechanism (\S+): .*Current build options: (.*)")
_MECHANISMS = {"SASL_SCRAM": "SCRAM-SHA-256, SCRAM-SHA-512"}
_FILES = re.compile(r"(ssl|https)\.\w+\.location|sasl\.kerberos\.keytab")


def refused(
    properties: Mapping[str, str], configs: Sequence[tuple[Make, Mapping[str, Any]]]
) -> Iterator[tuple[str, str]]:
    """Names of properties that cannot be used, each with the reason.

    Args:
        properties: What the user wrote.
        configs: What makes each client, and its whole configuration, these properties among it.

    Raises:
        OSError: No client can be made here, whatever is written.
    """
    found = dict(_unusable_files(properties))
    for name, value in properties.items():
        text = _complaint(ck.Consumer, {"group.id": "none", name: value}) if name not in found else ""
        if text and not text.startswith("Failed to create"):  # alone it may lack others, which stand in the whole
            found[name] = text
    if not found:
        for make, config in configs:
            if text := _complaint(make, config):
                found.setdefault(_culprit(text, properties, make, config), _with_ours(text, properties, config))
    for name, text in found.items():
        yield name, f"is refused by the Kafka client: {_without_secrets(text, properties)}"


def _unusable_files(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """OpenSSL waits for ever at a pipe, and of a file that is missing it tells a number."""
    for name, value in properties.items():
        if not _FILES.fullmatch(name) or value == "probe":
            continue
        try:
            kind = stat.S_IFMT(Path(value).stat().st_mode)
        except (OSError, ValueError) as error:
            yield name, f"{value}: {error.strerror if isinstance(error, OSError) else error}"
            continue
        if kind != stat.S_IFREG and not (kind == stat.S_IFDIR and name.endswith("ca.location")):
            yield name, f"{value} is not a file"


def _complaint(make: Make, config: Mapping[str, Any]) -> str:
    """What the client says of a configuration; empty when it takes it."""
    try:
        told = {name: value for name, value in config.items() if name not in _ADDRESSES}
        client = make({"log_level": 2, **told, "logger": _SILENT})
    except ck.KafkaException as error:
        if error.args[0].code() not in _REFUSALS:
            raise OSError(f"a Kafka client cannot be made: {error.args[0].str()}") from error
        return " ".join(error.args[0].str().split())
    if isinstance(client, ck.Consumer):
        client.close()
    return ""


def _culprit(text: str, properties: Mapping[str, str], make: Make, config: Mapping[str, Any]) -> str:
    """The property that the complaint is about: it is named, or its value is, or without it there is none."""
    for name, value in properties.items():
        if _names(text, name) or (not secret_name(name) and len(value) > 2 and _names(text, value)):
            return name
    for name in properties:
        if not _complaint(make, {key: value for key, value in config.items() if key != name}):
            return name
    return ""


def _names(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.]*\w)", text) is not None


def _with_ours(text: str, properties: Mapping[str, str], config: Mapping[str, Any]) -> str:
    ours = [f"{name} is {config[name]}" for name in config if name not in properties and _names(text, name)]
    said = re.sub(r"^Failed to create \w+: ", "", text)
    if lacks := _NO_PROVIDER.search(said):
        there = ", ".join(_MECHANISMS.get(name, name) for name in lacks[2].split())
        return f"it is built without the mechanism {lacks[1]}: set sasl.mechanism to one of {there}"
    return f"{said}; Sidecar decides that {' and '.join(ours)}" if ours else said


def _without_secrets(text: str, properties: Mapping[str, str]) -> str:
    for name, value in properties.items():
        if secret_name(name) and value:
            text = text.replace(value, HIDDEN)
    return text
