"""Requests to a proxy over gRPC, and decoding of its messages. No connection, no thread."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import platform
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.messages.tags import Memo
from sidecar.core.records import Header, Place, TopicPartition
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.grpc.stubs import VERSION, Stubs
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.sources.rocketmq.wire.messages import packed_by, unpack

BATCH_MAX = 32
"""Most messages that a proxy gives for one request."""
REQUEST_S = 3.0
POLL_S = 5.0
"""Time that a proxy waits for messages, its minimum: messages that it gives to a dead process's request come later
again."""

FIFO = "999"
"""The revive queue in the receipt handle of a message of a FIFO queue."""
RENEWED_MS = 86_400_000

_Metadata = list[tuple[str, str]]


Stored = tuple[str, str, int, int, int]
"""The place of a stored message: kind of topic, broker, queue, offset, and position in the commit log.

The kind is `0` for the topic itself, `1` and `2` for the retry topics of either naming.
"""


def stored_at(handle: str) -> Stored | None:
    """The place in a receipt handle of RocketMQ 5, None if it has another form."""
    fields = handle.split(" ")
    try:
        return fields[4], fields[5], int(fields[6]), int(fields[7]), int(fields[8])
    except (IndexError, ValueError):
        return None


def renewed(handle: str) -> str:
    """The receipt handle of a message of a FIFO queue with a distant expiry; any other unchanged.

    A proxy reads its expiry from it. A broker checks only whether messages of the queue were received since.
    """
    fields = handle.split(" ")
    try:
        if fields[3] == FIFO:
            return " ".join([*fields[:2], str(int(fields[2]) + RENEWED_MS), *fields[3:]])
    except (IndexError, ValueError):
        pass
    return handle


def extended(handle: str) -> str:
    """The receipt handle that an extension returned, such that the next extension and the acknowledgement match.

    The broker has a checkpoint of its own for an extended message, which begins at the message. A proxy in cluster mode
    returns its handle. One in local mode leaves the start of the received batch in the first field: for all but the
    batch's first message, the broker then accepts later requests, which match nothing.
    """
    fields = handle.split(" ")
    if stored_at(handle) is None or fields[3] == FIFO:
        return handle
    return " ".join([fields[7], *fields[1:]])


class GrpcRequests:
    """Makes requests."""

    def __init__(self, stubs: Stubs, settings: RocketMqSettings, client_id: str, expression: str, tell: Tell) -> None:
        self._values, self._requests = stubs.values, stubs.requests
        self._gzip = self._values.GZIP
        self._settings = settings
        self._client_id = client_id
        self._tell = tell
        kind = self._values.SQL if settings.sql else self._values.TAG
        self._filter = self._values.FilterExpression(type=kind, expression=settings.sql or expression)
        self._group = self.resource(settings.group)

    def resource(self, name: str) -> Any:
        return self._values.Resource(resource_namespace=self._settings.namespace or "", name=name)

    def metadata(self) -> _Metadata:
        """Metadata of each request: the client, and its signature if there are keys."""
        settings, now = self._settings, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = [
            ("x-mq-language", "PYTHON"), ("x-mq-protocol", "GRPC_V2"), ("x-mq-client-version", VERSION),
            ("x-mq-date-time", now), ("x-mq-request-id", str(uuid.uuid4())), ("x-mq-client-id", self._client_id),
            ("x-mq-namespace", settings.namespace or ""),
        ]  # fmt: skip
        if settings.access_key and settings.secret_key:
            key = settings.secret_key.get_secret_value().encode()
            signature = hmac.new(key, now.encode(), hashlib.sha1).hexdigest()
            credential = f"MQv2-HMAC-SHA1 Credential={settings.access_key}, SignedHeaders=x-mq-date-time"
            headers.append(("authorization", f"{credential}, Signature={signature}"))
            if settings.security_token:
                headers.append(("x-mq-session-token", settings.security_token.get_secret_value()))
        return headers

    def endpoints(self, server: str) -> Any:
        host, port = server.rsplit(":", 1)
        host = host.strip("[]")
        schemes = {4: self._values.IPv4, 6: self._values.IPv6}
        try:
            scheme = schemes[ipaddress.ip_address(host).version]
        except ValueError:
            scheme = self._values.DOMAIN_NAME
        address = self._values.Address(host=host, port=int(port))
        return self._values.Endpoints(scheme=scheme, addresses=[address])

    def telemetry(self, server: str) -> Any:
        """The first command of a session: this client, and its subscription."""
        command = self._requests.TelemetryCommand()
        settings = command.settings
        settings.client_type = self._values.SIMPLE_CONSUMER
        settings.access_point.CopyFrom(self.endpoints(server))
        settings.request_timeout.FromMilliseconds(round(REQUEST_S * 1000))
        settings.subscription.group.CopyFrom(self._group)
        settings.subscription.long_polling_timeout.FromMilliseconds(round(POLL_S * 1000))
        for topic in self._settings.topics:
            settings.subscription.subscriptions.add(topic=self.resource(topic), expression=self._filter)
        agent = settings.user_agent
        agent.language, agent.version, agent.hostname = self._values.PYTHON, VERSION, platform.node()
        return command

    def route(self, topic: str, server: str) -> Any:
        return self._requests.QueryRouteRequest(topic=self.resource(topic), endpoints=self.endpoints(server))

    def heartbeat(self) -> Any:
        return self._requests.HeartbeatRequest(group=self._group, client_type=self._values.SIMPLE_CONSUMER)

    def leave(self) -> Any:
        return self._requests.NotifyClientTerminationRequest(group=self._group)

    def receive(self, queue: Any, count: int, invisible_s: float, attempt_id: str = "") -> Any:
        """The request for messages of a topic's share on one broker."""
        request = self._requests.ReceiveMessageRequest(
            group=self._group, message_queue=queue, filter_expression=self._filter, batch_size=count
        )
        if attempt_id:
            request.attempt_id = attempt_id
        request.invisible_duration.FromMilliseconds(round(invisible_s * 1000))
        request.long_polling_timeout.FromMilliseconds(round(POLL_S * 1000))
        return request

    def ack(self, topic: str, entries: Iterable[tuple[str, str]]) -> Any:
        request = self._requests.AckMessageRequest(group=self._group, topic=self.resource(topic))
        for message_id, handle in entries:
            request.entries.add(message_id=message_id, receipt_handle=handle)
        return request

    def change(self, topic: str, message_id: str, handle: str, invisible_s: float) -> Any:
        """The request that sets the time until a message is redelivered, from now on."""
        request = self._requests.ChangeInvisibleDurationRequest(
            group=self._group, topic=self.resource(topic), receipt_handle=handle, message_id=message_id
        )
        request.invisible_duration.FromMilliseconds(round(invisible_s * 1000))
        return request

    def handed(self, token: int, message: Any) -> HandedMessage:
        system, topic = message.system_properties, message.topic.name
        stored = stored_at(system.receipt_handle) or ("0", "", system.queue_id, system.queue_offset, -1)
        kind, broker, queue, offset, position = stored
        place = Place(topic if kind == "0" else self._retry_topic(topic, kind), broker, queue, offset)
        message_id, tag, words = system.message_id, system.tag.encode(), system.keys
        keys = [key.encode() for key in words] if words else []  # iterating over an empty one takes 0.4 us
        return HandedMessage(
            token, topic, place, self._body(message, system, place),
            _milliseconds(system, "born_timestamp"), _milliseconds(system, "store_timestamp"),
            message_id, _offset_message_id(system.store_host, position), tag, keys,
            _properties(message, system, message_id, tag, keys, "" if place.topic == topic else topic),
            max(system.delivery_attempt - 1, 0),
        )  # fmt: skip

    def _retry_topic(self, topic: str, kind: str) -> str:
        signs = {"1": "_", "2": "+"}
        return f"%RETRY%{self._settings.group}{signs[kind]}{topic}" if kind in signs else topic

    def _body(self, message: Any, system: Any, place: Place) -> bytes:
        """The body, decompressed as its first bytes show: producers use more formats than the protocol has names for.

        A proxy within a broker decompresses it, but still reports it as compressed: a body that does not look
        compressed is unchanged.
        """
        body = bytes(message.body)
        kind = packed_by(body) if system.body_encoding == self._gzip else None
        if kind is None:
            return body
        try:
            return unpack(body, kind)
        except ValueError:
            tp = TopicPartition(message.topic.name, place.queue, place.broker)
            self._tell("body.not_unpacked", "warning", {**tp.fields(), "offset": place.offset})
            return body


def _milliseconds(system: Any, name: str) -> int | None:
    stamp = getattr(system, name)
    return stamp.seconds * 1000 + stamp.nanos // 1_000_000 or (0 if system.HasField(name) else None)


def _offset_message_id(host: str, position: int) -> str:
    packed = _HOSTS[host]
    return f"{packed}{position:016X}" if packed and 0 <= position < 1 << 64 else ""


def _host(host: str) -> str:
    """Address and port in the form of a message id, empty if they are invalid."""
    address, _, port = host.rpartition(":")
    try:
        return (ipaddress.ip_address(address.strip("[]")).packed + int(port).to_bytes(4)).hex().upper()
    except (ValueError, OverflowError):
        return ""


_HOSTS = Memo(_host)


def _properties(
    message: Any, system: Any, message_id: str, tag: bytes, keys: list[bytes], retried: str
) -> list[Header]:
    properties: list[Header] = []
    if users := message.user_properties:
        properties += [(name, value.encode()) for name, value in sorted(users.items())]
    if tag:
        properties.append(("TAGS", tag))
    if keys and (joined := b" ".join(keys)):
        properties.append(("KEYS", joined))
    if message_id:
        properties.append(("UNIQ_KEY", message_id.encode()))
    if group := system.message_group:
        properties.append(("__SHARDINGKEY", group.encode()))
    if retried:
        properties.append(("RETRY_TOPIC", retried.encode()))
    return properties
