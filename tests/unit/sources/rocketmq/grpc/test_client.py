"""The gRPC client without a proxy: its package, what it asks, and what it makes of answers."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import sys
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.core.records import Place
from sidecar.errors import ConfigError
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.grpc import stubs
from sidecar.sources.rocketmq.grpc.client import Arrivals, GrpcClient
from sidecar.sources.rocketmq.grpc.requests import POLL_S, GrpcRequests, extended, renewed, stored_at
from sidecar.sources.rocketmq.grpc.session import Session

HANDLE = "0 1795321906376 15000 3 {} broker-a 2 17 24853754"


def settings(**change: Any) -> Settings:
    """A source section."""
    found = {"client": "grpc", "endpoints": "a:1,[::1]:2", "group": "g", "topics": ["t"], **change}
    return Settings.model_validate(found)


def silent(name: str, level: str, fields: object) -> None:
    """No log."""


def requests(tell: Tell = silent, **change: Any) -> GrpcRequests:
    """What makes requests."""
    return GrpcRequests(stubs.load(), settings(**change), "me", "a || b", tell)


def body_of(body: bytes, *, flagged: bool = True) -> tuple[bytes, list[object]]:
    """What a body that is said to be packed comes as, and what the log tells."""
    values, told = stubs.load().values, list[object]()
    message = values.Message(topic=values.Resource(name="t"), body=body)
    message.system_properties.receipt_handle = HANDLE.format("0")
    message.system_properties.body_encoding = values.GZIP if flagged else values.IDENTITY
    found = requests(lambda *event: told.append(event)).handed(7, message)
    return found.body, told


class Installed:
    """A distribution as its metadata tells it."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self._folder = folder

    def locate_file(self, path: str) -> Path:
        """Where one of its files is."""
        return self._folder / path


def test_a_request_for_messages_waits_at_the_server() -> None:
    """As long as the session says; else an idle topic would be asked about all the time."""
    made = requests()
    queue = made._values.MessageQueue(topic=made.resource("orders"))
    request = made.receive(queue, 32, 30.0, "attempt")
    told = made.telemetry("localhost:8081").settings.subscription.long_polling_timeout
    assert request.long_polling_timeout.ToMilliseconds() == told.ToMilliseconds() == POLL_S * 1000
    assert (request.invisible_duration.ToMilliseconds(), request.batch_size) == (30_000, 32)


def test_a_missing_package_is_told_with_the_command_that_cures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 78; another distribution of the same import name is named."""

    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"rocketmq": ["rocketmq-client-python"]})
    with pytest.raises(ConfigError, match="not installed; rocketmq-client-python, which is, is for other") as caught:
        GrpcClient(settings(), "*", 1 << 20, silent)
    assert "pip install 'consumer-sidecar[rocketmq-grpc]'" in caught.value.hint


@pytest.mark.parametrize(("version", "says"), [("5.1.1", "and 5.1.1 is installed"), ("5.1.2", "whose files are gone")])
def test_another_version_and_lost_files_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, says: str
) -> None:
    """The stubs are no documented interface, so their version must be the one that was tried."""
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(version, tmp_path))
    with pytest.raises(ConfigError, match=says) as caught:
        stubs.load()
    assert "pip install" in caught.value.hint


def test_the_package_s_own_code_is_not_run() -> None:
    """Only stubs are loaded: its `__init__` would make a log folder in the home folder, or be another package's."""
    before = sys.modules.get("rocketmq")
    assert stubs.load().values.OK == 20_000
    assert sys.modules.get("rocketmq") is before


def test_a_kept_receipt_handle_of_a_fifo_queue_is_made_valid_for_longer() -> None:
    """A proxy would refuse it after its 15 s; one of another queue or form stays as it is."""
    fifo = "0 1795321906376 15000 999 0 broker-a 2 17 24853754"
    assert renewed(fifo) == "0 1795321906376 86415000 999 0 broker-a 2 17 24853754"
    assert [renewed(one) for one in (HANDLE.format(0), "", "a b c 999 d")] == [HANDLE.format(0), "", "a b c 999 d"]


def test_a_receipt_handle_tells_the_place() -> None:
    """Broker, queue, offset and whether it is the retry queue; what is written otherwise tells nothing."""
    assert stored_at(HANDLE.format(1)) == ("1", "broker-a", 2, 17, 24853754)
    assert stored_at("opaque") is None


@pytest.mark.parametrize(
    ("kind", "attempt", "retry"), [("0", 1, ""), ("0", 2, ""), ("1", 2, "%RETRY%g_t"), ("2", 3, "%RETRY%g+t")]
)
def test_a_message_is_taken_apart(kind: str, attempt: int, retry: str) -> None:
    """Times in milliseconds, ids, tag and keys among the properties, and where it is stored."""
    message = stubs.load().values.Message()
    message.topic.name, message.body = "t", b"\0body"
    message.user_properties.update({"b": "2", "a": "1"})
    system = message.system_properties
    system.tag, system.message_id, system.store_host = "paid", "ID", "127.0.0.1:21911"
    system.keys.extend(["k1", "k2"])
    system.born_timestamp.FromMilliseconds(1_234)
    system.receipt_handle, system.delivery_attempt = HANDLE.format(kind), attempt
    found = requests().handed(7, message)
    assert (found.handle, found.topic, found.body, found.born_ms, found.stored_ms) == (7, "t", b"\0body", 1_234, None)
    assert (found.place, found.retry_topic) == (Place(retry or "t", "broker-a", 2, 17), retry)
    assert found.offset_message_id == "7F00000100005597000000000" + "17B3CFA"
    expected = [("a", b"1"), ("b", b"2"), ("TAGS", b"paid"), ("KEYS", b"k1 k2"), ("UNIQ_KEY", b"ID")]
    assert found.properties == [*expected, *([("RETRY_TOPIC", b"t")] if retry else [])]
    assert found.reconsume_times == attempt - 1


def test_packed_bodies_are_unpacked() -> None:
    """By gzip, zlib, lz4 or zstd; what only looks packed stays as it is."""
    body = b"body " * 100
    packed = [gzip.compress(body), zlib.compress(body), lz4.frame.compress(body), zstandard.compress(body), body]
    assert [body_of(one) for one in packed] == [(body, [])] * 5
    assert body_of(b"\x78 but no zlib") == (b"\x78 but no zlib", [])
    assert body_of(packed[0], flagged=False) == (packed[0], [])


def test_a_body_that_cannot_be_unpacked_comes_as_it_is_stored_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off, damaged, two in one, or more than is taken when unpacked: never a part of it comes."""
    body = random.Random(1).randbytes(300_000)
    whole = [gzip.compress(body), zlib.compress(body), lz4.frame.compress(body), zstandard.compress(body)]
    bad = [*(one[:200_000] for one in whole), b"\x78\x9cno zlib", whole[0] * 2]
    event = ("body.not_unpacked", "warning", {"topic": "t", "partition": 2, "broker": "broker-a", "offset": 17})
    assert [body_of(one) for one in whole] == [(body, [])] * 4
    assert [body_of(one) for one in bad] == [(one, [event]) for one in bad]
    monkeypatch.setattr("sidecar.sources.rocketmq.wire.messages.BODY_BYTES_MAX", 1 << 16)
    for compress in (gzip.compress, zlib.compress, lz4.frame.compress, zstandard.compress):
        bomb = compress(bytes(1 << 20))
        assert body_of(bomb) == (bomb, [event])


def test_requests_are_signed() -> None:
    """With keys each request has a signature and the token; without them none."""
    found = dict(requests(access_key="ak", secret_key="sk", security_token="st").metadata())
    assert found["authorization"].startswith("MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature=")
    assert found["x-mq-session-token"] == "st"
    assert "authorization" not in dict(requests().metadata())


def test_sql_and_tags_are_pushed() -> None:
    """The proxy filters by the tags, or by the expression that stands in their place."""
    values = stubs.load().values
    (plain,) = requests().telemetry("a:1").settings.subscription.subscriptions
    assert (plain.expression.type, plain.expression.expression, plain.topic.name) == (values.TAG, "a || b", "t")
    (sql,) = requests(sql="x > 1", namespace="shop").telemetry("a:1").settings.subscription.subscriptions
    assert (sql.expression.type, sql.expression.expression) == (values.SQL, "x > 1")
    assert sql.topic.resource_namespace == "shop"


@pytest.mark.parametrize(("server", "scheme"), [("a:1", "DOMAIN_NAME"), ("1.2.3.4:1", "IPv4"), ("[::1]:1", "IPv6")])
def test_servers_are_named_as_the_protocol_does(server: str, scheme: str) -> None:
    """Names, and addresses of both kinds."""
    found = requests().endpoints(server)
    assert found.scheme == getattr(stubs.load().values, scheme)
    assert (found.addresses[0].host, found.addresses[0].port) == (server[:-2].strip("[]"), 1)


def test_large_messages_are_asked_for_one_by_one() -> None:
    """What requests that are open at once may bring stays within the budget, by the largest message of late."""
    arrivals = Arrivals(4 << 20, asyncio.new_event_loop(), in_order=False)
    assert arrivals.share(1) == (1, 1)
    arrivals._knows_size, arrivals._size = True, 1024
    assert arrivals.share(1) == (16, 32)
    arrivals._size = 256 << 10
    assert arrivals.share(1) == (5, 1)
    arrivals._size = 64 << 20
    assert arrivals.share(4) == (1, 1)
    arrivals._loop.close()


def test_a_call_within_a_session_that_is_closed_ends() -> None:
    """What waits for an answer then is told that there is none: else acknowledging would end with the first session."""

    async def ended() -> list[Any]:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            server = f"127.0.0.1:{silent.getsockname()[1]}"
            session = Session(stubs.load(), settings(), requests(), server, None)
            waiting = asyncio.ensure_future(session.call("Heartbeat", requests().heartbeat(), 60.0))
            silent.settimeout(30.0)
            await asyncio.to_thread(silent.accept)
            await session.close()
            late = session.call("Heartbeat", requests().heartbeat(), 60.0)
            return list(await asyncio.gather(waiting, late, return_exceptions=True))

    assert [type(one) for one in asyncio.run(ended())] == [ConnectionError] * 2


@pytest.mark.parametrize("more", ["", " 0"])
def test_an_extended_handle_begins_at_its_message(more: str) -> None:
    """As the broker's new checkpoint does, whatever batch it came with, and however many fields follow."""
    local = "12 1795321906376 60000 3 0 broker-a 2 17 24853754" + more
    assert extended(local) == "17 " + local.removeprefix("12 ")
    assert extended(extended(local)) == extended(local)


@pytest.mark.parametrize("handle", ["", "opaque", "12 1795321906376 60000 999 0 broker-a 2 17 24853754"])
def test_other_handles_stay_after_an_extension(handle: str) -> None:
    """Those of FIFO queues, which have no checkpoint, and those of other forms."""
    assert extended(handle) == handle
