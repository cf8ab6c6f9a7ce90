"""The Kafka connector's options from the settings of the daemon's client. Tables and text; sends no request.

librdkafka's names become those of the Java client. A property without a counterpart raises a `ValueError` with the
reason, and `validate --engine spark` refuses it with its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from sidecar.config.model import Settings
from sidecar.config.source.kafka import KafkaSettings

_NAMES = {
    name: name
    for name in (
        "client.id", "client.rack", "connections.max.idle.ms", "enable.metrics.push", "fetch.min.bytes",
        "isolation.level", "max.partition.fetch.bytes", "metadata.max.age.ms", "reconnect.backoff.max.ms",
        "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms", "sasl.kerberos.service.name",
        "sasl.mechanism", "security.protocol", "socket.connection.setup.timeout.ms", "ssl.cipher.suites",
        "ssl.key.password",
    )
} | {
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
}  # fmt: skip
"""The names of the Java client for those of librdkafka."""
_WITHOUT_EFFECT = {"log_level", "socket.keepalive.enable", "socket.nagle.disable"}
"""Properties that affect no message and no credential: the executors' own client still gets them."""
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_JOINED = {
    "enable.ssl.certificate.verification", "sasl.password", "sasl.username", "ssl.ca.location", "ssl.ca.pem",
    "ssl.certificate.location", "ssl.certificate.pem", "ssl.endpoint.identification.algorithm", "ssl.key.location",
    "ssl.key.pem",
}  # fmt: skip


def reason_against(name: str, properties: Mapping[str, str]) -> str | None:
    """The reason for which Spark does not support this property; None if it does."""
    value = properties[name]
    if name == "enable.ssl.certificate.verification" and value != "true":
        return "the Java client has no way to trust every certificate: name the authority in ssl.ca.location"
    if name in ("sasl.mechanism", "sasl.mechanisms") and value not in _MODULES:
        return f"on Spark the mechanisms are {', '.join(_MODULES)}"
    if name not in _NAMES.keys() | _WITHOUT_EFFECT | _JOINED:
        return "the Java client of Spark's Kafka connector has no such property"
    return None


def client_options(kafka: KafkaSettings) -> dict[str, str]:
    """The options that begin with ``kafka.``: addresses, credentials, isolation.

    Raises:
        OSError: A certificate or key cannot be read.
        ValueError: A property has no counterpart.
    """
    properties = kafka.properties
    for name in properties:
        if reason := reason_against(name, properties):
            raise ValueError(f"{name}: {reason}")
    options = {"isolation.level": "read_committed", "client.id": "sidecar"}
    options |= {_NAMES[name]: value for name, value in properties.items() if name in _NAMES}
    if "security.protocol" in options:
        options["security.protocol"] = options["security.protocol"].upper()
    options |= _login(properties) | _trust(properties) | _own_certificate(properties)
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, **{f"kafka.{name}": v for name, v in options.items()}}


def _login(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")
    if not mechanism:
        return {}
    user, password = (_quoted(properties.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return {"sasl.jaas.config": f"{_MODULES[mechanism]} required username={user} password={password};"}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _trust(properties: Mapping[str, str]) -> dict[str, str]:
    options = {}
    if pem := _pem(properties, "ssl.ca.location", "ssl.ca.pem"):
        options = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    if "ssl.endpoint.identification.algorithm" in properties:
        algorithm = properties["ssl.endpoint.identification.algorithm"]
        options["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return options


def _own_certificate(properties: Mapping[str, str]) -> dict[str, str]:
    certificate = _pem(properties, "ssl.certificate.location", "ssl.certificate.pem")
    key = _pem(properties, "ssl.key.location", "ssl.key.pem") or certificate
    if not certificate:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _only(certificate, r"-+BEGIN CERTIFICATE-.*?-END CERTIFICATE-+"),
        "ssl.keystore.key": _only(key, r"-+BEGIN [A-Z ]*PRIVATE KEY-.*?-END [A-Z ]*PRIVATE KEY-+"),
    }


def _pem(properties: Mapping[str, str], location: str, text: str) -> str:
    """The text of a certificate or key, which is passed in the options: executors need no such file."""
    if text in properties:
        return properties[text]
    return Path(properties[location]).read_text("ascii") if location in properties else ""


def _only(pem: str, pattern: str) -> str:
    return "\n".join(re.findall(pattern, pem, re.DOTALL))


def topic_options(kafka: KafkaSettings) -> dict[str, str]:
    """The subscription: topics by name, or one pattern if any of them is a pattern."""
    if not any(topic.startswith("^") for topic in kafka.topics):
        return {"subscribe": ",".join(kafka.topics)}
    # The daemon's client searches for the pattern anywhere, Java's must match the whole name.
    patterns = [f".*(?:{name}).*" if name.startswith("^") else re.escape(name) for name in kafka.topics]
    return {"subscribePattern": "|".join(patterns)}


def start_options(kafka: KafkaSettings, stood: Mapping[str, Mapping[str, int]] | None) -> dict[str, str]:
    """The start of a new checkpoint at the daemon's offsets, if any; what is added later is read from its start."""
    if stood is not None:
        return {"startingOffsets": json.dumps(stood)}
    if isinstance(kafka.start, str):
        return {"startingOffsets": kafka.start}
    return {"startingTimestamp": str(kafka.start), "startingOffsetsByTimestampStrategy": "latest"}


def trigger_options(settings: Settings, *, once: bool) -> dict[str, str]:
    """The limits of a micro-batch: its number of messages, and its wait for more of them."""
    batch = settings.batch
    options = {"maxOffsetsPerTrigger": str(batch.span_max)}
    if batch.linger_ms and not once:
        options["minOffsetsPerTrigger"] = str(min(batch.max_messages, batch.span_max))
        options["maxTriggerDelay"] = f"{batch.linger_ms}ms"
    return options


def source_options(
    settings: Settings, *, once: bool, headers: bool, stood: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, str]:
    """All options of the connector."""
    kafka = settings.source.kafka
    return {
        **client_options(kafka),
        **topic_options(kafka),
        **start_options(kafka, stood),
        **trigger_options(settings, once=once),
        "includeHeaders": str(headers).lower(),
        "groupIdPrefix": kafka.group_id,  # for brokers that allow only groups with a prefix
        "failOnDataLoss": "true",  # expired unread messages are reported, never skipped silently
    }
