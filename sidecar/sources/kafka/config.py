"""Configuration of the clients and of the fast lane, and their refusals. Connects to nothing."""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import confluent_kafka as ck

from sidecar.config.base import HIDDEN, secret_name
from sidecar.config.source.kafka import SESSION_TIMEOUT_MS, KafkaSettings
from sidecar.errors import ConfigError

if TYPE_CHECKING:
    from sidecar.sources.kafka.lane import FastLane

HEARTBEAT_MS = 500
"""The time of a takeover is promised, and a rebalance stops commits until each member hears of it."""
JOIN_MS = 60_000
"""How long a rebalance waits for a member that does not join: by default 5 minutes, in which no member reads. It also
limits the time between two polls; the main loop polls many times a second."""
MESSAGE_BYTES = 400
"""Memory that the client takes for each message in its queue, beyond the value; measured."""
FETCH_SHARE = 4
"""A fetch is a quarter of the queue: a fetch of one-byte values takes 20 times as much when unpacked."""
FETCH_MAX_BYTES = 1_000_000
"""The client's minimum for `fetch.max.bytes`, unless `message.max.bytes` is less."""
Make = Callable[[dict[str, Any]], object]
_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_REFUSALS = {ck.KafkaError._INVALID_ARG, ck.KafkaError._CONFLICT}
_ADDRESSES = ("bootstrap.servers", "metadata.broker.list")
_NO_PROVIDER = re.compile(r"No provider for SASL mechanism (\S+): .*Current build options: (.*)")
_MECHANISMS = {"SASL_SCRAM": "SCRAM-SHA-256, SCRAM-SHA-512"}
_FILES = re.compile(r"(ssl|https)\.\w+\.location|sasl\.kerberos\.keytab")


def client_config(settings: KafkaSettings, client_id: str = "sidecar") -> dict[str, Any]:
    """Configuration of every client: addresses, credentials, quick recovery; the user's `client.id` counts."""
    return {
        "client.id": client_id,
        "isolation.level": "read_committed",
        "reconnect.backoff.max.ms": 1_000,  # 10 s by default, which can be longer than the outage
        # A broker that was cut off from its controller leaves itself out of the metadata when it is back: the client
        # then knows no broker at all, by default for 5 minutes.
        "metadata.recovery.rebootstrap.trigger.ms": 1_000,
        "socket.keepalive.enable": True,
        "log_level": 2,  # it writes a line to stderr at each connection attempt; relevant failures come as errors
        **settings.properties,
        "bootstrap.servers": settings.bootstrap_servers,
    }


def consumer_config(settings: KafkaSettings, queue_bytes: int, client_id: str = "sidecar") -> dict[str, Any]:
    """The consumer's configuration."""
    fetch_bytes = queue_bytes // FETCH_SHARE
    return {
        "fetch.wait.max.ms": 100,
        "max.poll.interval.ms": JOIN_MS,
        **client_config(settings, client_id),
        "group.id": settings.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # decided by `Starts`
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,  # a rebalance stops commits until each member hears of it
        "enable.partition.eof": True,  # reports the position behind gaps and transaction markers
        "allow.auto.create.topics": False,
        "fetch.queue.backoff.ms": 10,  # 1000 by default: 142-204k messages a second instead of 374-455k
        "queued.max.messages.kbytes": max(1, queue_bytes >> 10),
        "queued.min.messages": max(1, queue_bytes // MESSAGE_BYTES),
        "fetch.max.bytes": fetch_bytes,
        "message.max.bytes": min(FETCH_MAX_BYTES, fetch_bytes),  # for producers; but `fetch.max.bytes` may not be less
        "topic.metadata.refresh.interval.ms": 5_000,  # new and recreated topics
        "debug": f"metadata,{settings.properties.get('debug', '')}".rstrip(","),  # see `MadeAgain`
    }


def lane_for(wanted: Literal["auto", "on", "off"], refusal: str, queue_bytes: int) -> FastLane | str:
    """The lane, or the reason why there is none; raises `ConfigError` if it must be used, and cannot."""
    if wanted == "off":
        return "source.kafka.lane is off"
    try:
        if refusal:
            raise ConfigError(f"the fast lane does not do {refusal}", hint="set source.kafka.lane: off")
        from sidecar.sources.kafka.lane import FastLane, load

        return FastLane(load(), queue_bytes)
    except ConfigError as error:
        if wanted == "on":
            raise
        return str(error)


def refused(
    properties: Mapping[str, str], configs: Sequence[tuple[Make, Mapping[str, Any]]]
) -> Iterator[tuple[str, str]]:
    """Names of unusable properties, each with the reason.

    Args:
        configs: The constructor of each client, and its whole configuration, including these properties.

    Raises:
        OSError: No client can be created here with any configuration.
    """
    reasons = dict(_unusable_files(properties))
    for name, value in properties.items():
        text = _complaint(ck.Consumer, {"group.id": "none", name: value}) if name not in reasons else ""
        if text and not text.startswith("Failed to create"):  # alone it may lack others that the whole has
            reasons[name] = text
    if not reasons:
        for make, config in configs:
            if text := _complaint(make, config):
                reasons.setdefault(_culprit(text, properties, make, config), _with_ours(text, properties, config))
    for name, text in reasons.items():
        yield name, f"is refused by the Kafka client: {_without_secrets(text, properties)}"


def _unusable_files(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """OpenSSL blocks on a pipe, and reports a missing file as a number."""
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
    """The client's error for a configuration; empty if it is accepted."""
    try:
        properties = {name: value for name, value in config.items() if name not in _ADDRESSES}
        client = make({"log_level": 2, **properties, "logger": _SILENT})
    except ck.KafkaException as error:
        if error.args[0].code() not in _REFUSALS:
            raise OSError(f"a Kafka client cannot be made: {error.args[0].str()}") from error
        return " ".join(error.args[0].str().split())
    if isinstance(client, ck.Consumer):
        client.close()
    return ""


def _culprit(text: str, properties: Mapping[str, str], make: Make, config: Mapping[str, Any]) -> str:
    """The property at fault: the complaint names it or its value, or there is no complaint without it."""
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
