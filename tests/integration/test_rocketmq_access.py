"""A RocketMQ with access control (2.0): requests are signed, and a refusal ends the start with its reason."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.errors import CredentialsError, UnavailableError
from sidecar.sources.rocketmq.grpc.client import GrpcClient
from tests.support.certificates import Certificates, make_certificates
from tests.support.checking import Checked, checked
from tests.support.kafka import unique
from tests.support.process import wait_until
from tests.support.rocketmq import BROKER, RocketMqNode
from tests.support.rocketmq_access import PASSWORD, USER, sign
from tests.support.rocketmq_reader import Reader

_PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"
_RIGHTS = "org.apache.rocketmq.auth.authorization.provider"
CONFIG = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_PROVIDERS}.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_PROVIDERS}.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{PASSWORD}"}}',
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_RIGHTS}.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_RIGHTS}.LocalAuthorizationMetadataProvider",
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{USER}","secretKey":"{PASSWORD}"}}',
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Whom the proxy is signed by."""
    return make_certificates(tmp_path_factory.mktemp("rocketmq"))


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[RocketMqNode]:
    """A node that lets nobody in without a signature."""
    folder = certificates.ca.parent
    tls = {
        "tlsTestModeEnable": False,
        "tlsCertPath": str(folder / "server.crt"),
        "tlsKeyPath": str(folder / "server.key"),
        "authConfigPath": str(folder / "auth"),
        "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
        "authorizationEnabled": False,
    }
    with RocketMqNode(folder / "node", config=CONFIG, sign=sign, proxy=CONFIG | tls, tls=True) as node:
        yield node


def test_signed_requests_are_served(guarded: RocketMqNode, group: str) -> None:
    """With the right key everything works: reading, locks, commits, reading again for a dead letter."""
    topic = guarded.create_topic(unique("topic"), 2)
    guarded.send(topic, [b"for members only"] * 2, queues=2)
    with Reader(guarded, group, [topic], access_key=USER, secret_key=PASSWORD) as reader:
        assert reader.read(2) == [b"for members only"] * 2
        assert all(reader.commit().values())
        tp = next(tp for tp in reader.assignments if tp.topic == topic)
        again = reader.source.fetch(tp, 0)
        assert again is not None and again.value == b"for members only"
    assert guarded.committed(group, topic, 2) == {0: 1, 1: 1}


@pytest.mark.parametrize("keys", [{}, {"access_key": USER, "secret_key": "wrong"}], ids=["no key", "a wrong key"])
def test_a_refusal_is_told_at_the_start(guarded: RocketMqNode, group: str, keys: dict[str, Any]) -> None:
    """Without a key or with a wrong one the start ends at once, and says what was refused and what to check."""
    topic = guarded.create_topic(unique("topic"), 1)
    with pytest.raises(CredentialsError) as caught:
        Reader(guarded, group, [topic], **keys)
    assert "access_key" in caught.value.hint


def test_a_reset_where_the_broker_may_not_be_asked_is_told(guarded: RocketMqNode, group: str) -> None:
    """A user who may read, and not ask for the broker's start: that an older offset is passed over is a problem."""
    topic = guarded.create_topic(unique("topic"), 1)
    keys = allow(guarded, "reader", {f"Topic:{topic}": ["Sub", "Get"], f"Group:{group}": ["Sub"]})
    guarded.send_batch(topic, [b"a", b"b", b"c"])
    with Reader(guarded, group, [topic], **keys) as first:
        assert first.read(3) == [b"a", b"b", b"c"]
        assert all(first.commit().values())
        first.until(lambda: guarded.committed(group, topic, 1) == {0: 3}, "it is committed")
        first.die()
    guarded.commit(group, topic, 0, 1)
    with Reader(guarded, group, [topic], state=first.state, **keys) as again:
        again.until(lambda: "older offset 1" in again.source.problems().get("offsets", ""), "it is a problem")
        assert again.told("commit.behind")


def allow(node: RocketMqNode, name: str, rights: Mapping[str, list[str]]) -> dict[str, Any]:
    """Create a user with these actions by resource, and give its keys."""
    user = {"username": name, "password": PASSWORD, "userType": "Normal"}
    entries = [{"resource": on, "actions": actions, "decision": "ALLOW"} for on, actions in rights.items() if actions]
    rules = {"subject": f"User:{name}", "policies": [{"policyType": "CUSTOM", "entries": entries}]}
    node.ask_broker(3001, {"username": name}, json.dumps(user).encode())
    node.ask_broker(3006, {"subject": f"User:{name}"}, json.dumps(rules).encode())
    return {"access_key": name, "secret_key": PASSWORD}


def check(node: RocketMqNode, folder: Path, topics: list[str], keys: dict[str, Any]) -> Checked:
    """What `sidecar check` says."""
    source = {"name_servers": node.name_server, "group": "checked", "topics": topics, **keys}
    return checked(folder, {"source": {"rocketmq": source}, "sink": {"console": {}}})


@pytest.mark.parametrize("keys", [{}, {"access_key": USER, "secret_key": "wrong"}], ids=["no key", "a wrong key"])
def test_the_check_names_refused_keys(guarded: RocketMqNode, tmp_path: Path, keys: dict[str, Any]) -> None:
    """Exit code 77, and what to check."""
    outcome = check(guarded, tmp_path, [guarded.create_topic(unique("topic"), 1)], keys)
    assert outcome.code == 77
    assert outcome.of("broker ")["cure"] == "check access_key and secret_key under source.rocketmq"


@pytest.mark.parametrize(
    ("kind", "actions"), [("topic", []), ("topic", ["Sub"]), ("topic", ["Get"]), ("group", []), ("group", ["Get"])]
)
def test_the_check_names_each_missing_right(
    guarded: RocketMqNode, tmp_path: Path, kind: str, actions: list[str]
) -> None:
    """To read and to ask, of each topic and of the group; a user that has all of them may read."""
    one, other = sorted(guarded.create_topic(unique("topic"), 1) for _ in range(2))
    both = {f"Topic:{one}": ["Sub", "Get"], f"Topic:{other}": ["Sub", "Get"], "Group:checked": ["Sub", "Get"]}
    assert check(guarded, tmp_path, [one, other], allow(guarded, unique("user"), both)).code == 0
    lacking = f"Topic:{one}" if kind == "topic" else "Group:checked"
    outcome = check(guarded, tmp_path, [one, other], allow(guarded, unique("user"), {**both, lacking: actions}))
    found = outcome.of("broker ")
    assert (outcome.code, f"no permission to access {lacking} " in found["text"]) == (77, True)
    assert (
        found["cure"] == f"allow this user the actions Sub and Get on the topics {one}, {other} and the group checked"
    )


def test_the_check_names_a_broker_that_does_not_answer(guarded: RocketMqNode, tmp_path: Path) -> None:
    """The name server knows it still: exit code 69, with its address and what to start."""
    topic, keys = guarded.create_topic(unique("topic"), 1), {"access_key": USER, "secret_key": PASSWORD}
    guarded.freeze()
    try:
        outcome = check(guarded, tmp_path, [topic], keys)
    finally:
        guarded.thaw()
    found = outcome.of(f"broker {BROKER} at {guarded.broker_address}")
    assert (outcome.code, found["text"], found["cure"].startswith("start it")) == (69, "no answer", True)


def over_grpc(node: RocketMqNode, group: str, topic: str, **change: Any) -> GrpcClient:
    """A client on the proxy."""
    server = node.endpoints.replace("127.0.0.1", "localhost")
    config = {"client": "grpc", "endpoints": server, "group": group, "topics": [topic], "start_timeout": "30s"}
    return GrpcClient(Settings.model_validate(config | change), "*", 4 << 20, lambda *event: None)


def test_a_proxy_serves_signed_requests_over_tls(guarded: RocketMqNode, certificates: Certificates, group: str) -> None:
    """With the right key and certificate messages are received and acknowledged: none comes again."""
    topic = guarded.create_topic(unique("topic"), 2)
    guarded.create_group(group)
    keys = {"access_key": USER, "secret_key": PASSWORD, "tls": {"ca": str(certificates.ca)}}
    for bodies in ([b"for members only"] * 2, [b"new"] * 2):
        guarded.send(topic, bodies, queues=2)
        client = over_grpc(guarded, group, topic, **keys)
        client.open()
        found = list(wait_until(lambda: client.receive(0.1), 60, "a message", detail=client.problems))  # noqa: B023
        until_s = time.monotonic() + 60
        while len(found) < 2 and time.monotonic() < until_s:
            found += client.receive(0.1)
        assert [one.body for one in found] == bodies
        client.ack([one.handle for one in found])
        client.close()


@pytest.mark.parametrize("keys", [{}, {"access_key": USER, "secret_key": "wrong"}], ids=["no key", "a wrong key"])
def test_a_proxy_s_refusal_is_told_at_the_start(guarded: RocketMqNode, group: str, keys: dict[str, Any]) -> None:
    """Over gRPC too: exit code 77, and what to check."""
    topic = guarded.create_topic(unique("topic"), 1)
    guarded.create_group(group)
    with pytest.raises(CredentialsError) as caught:
        over_grpc(guarded, group, topic, **keys).open()
    assert "access_key" in caught.value.hint


def test_a_proxy_that_nobody_vouches_for_is_not_talked_to(guarded: RocketMqNode, group: str) -> None:
    """A certificate that the system does not trust ends the start after its time."""
    topic = guarded.create_topic(unique("topic"), 1)
    with pytest.raises(UnavailableError, match=r"(?i)certificate|handshake|ssl"):
        over_grpc(guarded, group, topic, tls={}, start_timeout="5s").open()
