"""Brokers that demand TLS, a certificate or a password: the right ones work as without, the wrong ones are named."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.certificates import Certificates, make_certificates
from tests.support.checking import Checked, checked
from tests.support.kafka import PASSWORD, USER, KafkaBroker, Outgoing, produce, unique
from tests.support.process import last_words, missing, wait_until
from tests.support.receiver import Receiver
from tests.support.scene import Scene

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker with TLS, SASL and rules of access; the plaintext listener is the administrator's."""
    folder = tmp_path_factory.mktemp("secure") / "broker"
    with KafkaBroker(folder, secure=True, client_auth=True, config=AUTHORIZER) as broker:
        yield broker


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority that the broker does not know."""
    return make_certificates(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def scene(secure: KafkaBroker, group: str, tmp_path: Path) -> Iterator[Scene]:
    """A topic of one partition and a receiver that remembers names."""
    with Receiver() as receiver:
        yield Scene(secure, tmp_path, receiver, secure.create_topic(unique("topic")), group)


def files_of(broker: KafkaBroker) -> Certificates:
    """The certificates of the broker's authority."""
    assert broker.certificates
    return broker.certificates


def tls(broker: KafkaBroker, **change: str) -> dict[str, Any]:
    """`source` for the listener that demands a client certificate."""
    files = files_of(broker)
    properties = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(files.ca),
        "ssl.certificate.location": str(files.client),
        "ssl.key.location": str(files.client_key),
    }
    return _source(broker, "SSL", properties, change)


def sasl(broker: KafkaBroker, listener: str, mechanism: str, **change: str) -> dict[str, Any]:
    """`source` for a listener that demands a password, over TLS or not."""
    properties = {
        "security.protocol": listener,
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        **({"ssl.ca.location": str(files_of(broker).ca)} if listener == "SASL_SSL" else {}),
    }
    return _source(broker, listener, properties, change)


def _source(
    broker: KafkaBroker, listener: str, properties: Mapping[str, str], change: Mapping[str, str]
) -> dict[str, Any]:
    changed = {**properties, **{name.replace("_", "."): value for name, value in change.items()}}
    kept = {name: value for name, value in changed.items() if value}
    return {"kafka": {"bootstrap_servers": broker.address(listener), "properties": kept, "start_timeout": "10s"}}


@pytest.mark.parametrize(
    "method",
    [
        "certificate",
        "SASL_SSL SCRAM-SHA-512",
        *(pytest.param(one, marks=pytest.mark.proof) for one in ("SASL_SSL PLAIN", "SASL_PLAINTEXT SCRAM-SHA-256")),
    ],
)
def test_a_demanding_broker_is_read_and_a_kill_survived(scene: Scene, secure: KafkaBroker, method: str) -> None:
    """One delivery each, and after kill -9 the successor removes the dead member and goes on within seconds."""
    source = tls(secure) if method == "certificate" else sasl(secure, *method.split())
    with scene.daemon(source=source) as daemon:
        scene.send(b"%d" % i for i in range(50))
        scene.await_all(daemon)
        daemon.kill9()
        scene.send(b"after" for _ in range(50))
        daemon.start()
        begun = time.monotonic()
        scene.await_all(daemon)
        waited_s = time.monotonic() - begun  # a start that takes as long as the session finds nobody to remove
        assert waited_s > 8 or len(daemon.events("member.evicted")) == 1
        daemon.stop()


def refusal(scene: Scene, source: Mapping[str, Any]) -> str:
    """What the daemon says last when it ends with 77; never the password."""
    said = last_words(scene.daemon(source=source), 77)
    assert PASSWORD not in said
    return said


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_named(scene: Scene, secure: KafkaBroker, mechanism: str) -> None:
    """Exit 77, with the properties to correct."""
    source = sasl(secure, "SASL_SSL", mechanism, sasl_password="wrong")
    said = refusal(scene, source)
    assert missing(said, secure.address("SASL_SSL"), "Try: ", "sasl.username", "sasl.password") == []


def test_a_wrong_authority_is_named(scene: Scene, secure: KafkaBroker, stranger: Certificates) -> None:
    """Exit 77 where the broker's certificate is of an authority that is not trusted, with the property to correct."""
    source = tls(secure, ssl_ca_location=str(stranger.ca))
    said = refusal(scene, source)
    assert missing(said, secure.address("SSL"), "Try: ", "ssl.ca.location") == []


def test_a_missing_client_certificate_is_named(scene: Scene, secure: KafkaBroker) -> None:
    """Exit 77 where the broker demands a certificate and there is none, with the properties to set."""
    source = tls(secure, ssl_certificate_location="", ssl_key_location="")
    said = refusal(scene, source)
    assert missing(said, secure.address("SSL"), "Try: ", "ssl.certificate.location", "ssl.key.location") == []


def test_a_strange_client_certificate_is_named(scene: Scene, secure: KafkaBroker, stranger: Certificates) -> None:
    """Exit 77 where the broker does not know the authority of the certificate."""
    mine = {"ssl_certificate_location": str(stranger.client), "ssl_key_location": str(stranger.client_key)}
    said = refusal(scene, tls(secure, **mine))
    assert missing(said, secure.address("SSL"), "Try: ", "ssl.certificate.location") == []


def denied(kind: ResourceType, name: str) -> AclBinding:
    """A rule that keeps the user from reading a topic or from a group."""
    return rule(kind, name, AclOperation.ALL, AclPermissionType.DENY)


def rule(kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    """A rule about our user."""
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, permission)


def put_rule(broker: KafkaBroker, rule: AclBinding) -> None:
    """Make the rule hold."""
    for future in broker.admin.create_acls([rule]).values():
        future.result(10)


def lift_rule(broker: KafkaBroker, rule: AclBinding) -> None:
    """Let the rule hold no more."""
    which = AclBindingFilter(
        rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host, rule.operation,
        rule.permission_type,
    )  # fmt: skip
    for future in broker.admin.delete_acls([which]).values():
        assert future.result(10)


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.GROUP], ids=["topic", "group"])
def test_a_missing_permission_is_named(scene: Scene, secure: KafkaBroker, kind: ResourceType) -> None:
    """Exit 77 with the topic or the group that the user may not read."""
    name = scene.topic if kind is ResourceType.TOPIC else scene.group
    put_rule(secure, denied(kind, name))
    source = sasl(secure, "SASL_PLAINTEXT", "PLAIN")
    said = refusal(scene, source)
    assert missing(said, name, "Try: ", "Read") == []


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.GROUP], ids=["topic", "group"])
def test_a_permission_taken_away_later_heals(scene: Scene, secure: KafkaBroker, kind: ResourceType) -> None:
    """While it may not read, or not commit, the daemon tells so and runs on; with the permission back all arrives."""
    rule = denied(kind, scene.topic if kind is ResourceType.TOPIC else scene.group)
    with scene.daemon(source=sasl(secure, "SASL_PLAINTEXT", "PLAIN")) as daemon:
        scene.send([b"before"])
        scene.await_all(daemon)
        put_rule(secure, rule)
        scene.send([b"meanwhile"])
        wait_until(lambda: "uthoriz" in str(daemon.status()["problems"]), 15, "it is told", detail=daemon.log_tail)
        lift_rule(secure, rule)
        scene.await_all(daemon, 20)
        assert len(scene.receiver.rows()) == 2
        wait_until(lambda: not daemon.status()["problems"], 10, "nothing is told any more", detail=daemon.log_tail)
        daemon.stop()


def test_a_right_to_write_dead_letters_given_later_heals(scene: Scene, secure: KafkaBroker) -> None:
    """Denied to write, the producer of dead letters is broken for good; with the right given, the letter is stored."""
    letters = secure.create_topic(unique("dead"))
    rules = [
        rule(ResourceType.TOPIC, "*", AclOperation.READ, AclPermissionType.ALLOW),
        rule(ResourceType.TOPIC, "*", AclOperation.WRITE, AclPermissionType.DENY),
        rule(ResourceType.BROKER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE, AclPermissionType.DENY),
    ]
    scene.receiver.fail("status", status=422, marker="POISON")
    produce(secure.bootstrap, scene.topic, [Outgoing(0, b"POISON", None, [("tag", b"a")])])
    source = sasl(secure, "SASL_PLAINTEXT", "PLAIN")
    for one in rules:
        put_rule(secure, one)
    try:
        with scene.daemon(source=source, dead_letters={"kafka": {"topic": letters}}) as daemon:

            def told() -> list[dict[str, Any]]:
                return daemon.events("dead_letters.not_stored")

            def broken() -> int:
                return daemon.log_path.read_text().count("|FATAL|")  # the client's own words

            wait_until(lambda: told() and broken() > 1, 30, "it is tried in vain, again", detail=daemon.log_tail)
            assert letters in told()[-1]["reason"]
            assert not any("exception set" in problem for problem in daemon.status()["problems"])
            while rules:
                lift_rule(secure, rules.pop())
            wait_until(lambda: daemon.status()["dead_lettered"] == 1, 15, "it is stored", detail=daemon.log_tail)
            daemon.stop()
    finally:
        while rules:
            lift_rule(secure, rules.pop())
    assert secure.end_offsets(letters) == {0: 1}


# `sidecar check`


@pytest.mark.parametrize(
    "method", ["certificate", "SASL_SSL PLAIN", "SASL_SSL SCRAM-SHA-512", "SASL_PLAINTEXT SCRAM-SHA-256"]
)
def test_the_check_of_a_demanding_broker_holds(scene: Scene, secure: KafkaBroker, tmp_path: Path, method: str) -> None:
    """With the right certificates and passwords, connection and rights are there."""
    source = tls(secure) if method == "certificate" else sasl(secure, *method.split())
    outcome = checked(tmp_path, scene.config(source=source))
    assert (outcome.code, outcome.bad) == (0, [])


def test_the_check_names_refused_credentials(
    scene: Scene, secure: KafkaBroker, stranger: Certificates, tmp_path: Path
) -> None:
    """Exit 77 with the property to correct, whichever it is; never the password."""
    sources = {
        "sasl.password": sasl(secure, "SASL_SSL", "PLAIN", sasl_password="wrong-secret"),
        "ssl.ca.location": tls(secure, ssl_ca_location=str(stranger.ca)),
        "ssl.certificate.location": tls(secure, ssl_certificate_location="", ssl_key_location=""),
    }
    for word, source in sources.items():
        outcome = checked(tmp_path, scene.config(source=source))
        assert outcome.code == 77
        assert word in outcome.of("Kafka at ")["cure"]
        assert "wrong-secret" not in outcome.text


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.GROUP], ids=["topic", "group"])
@pytest.mark.parametrize("is_described", [False, True], ids=["nothing", "described only"])
def test_the_check_names_a_missing_right_to_read(
    scene: Scene, secure: KafkaBroker, tmp_path: Path, kind: ResourceType, is_described: bool
) -> None:
    """Exit 77 with the topic or the group, whether it may be described or not; the other one is fine."""
    name, word = (scene.topic, "topic") if kind is ResourceType.TOPIC else (scene.group, "group")
    put_rule(secure, rule(kind, name, AclOperation.READ, AclPermissionType.DENY))
    if is_described:
        put_rule(secure, rule(kind, name, AclOperation.DESCRIBE, AclPermissionType.ALLOW))
    outcome = await_bad(scene, tmp_path, sasl(secure, "SASL_PLAINTEXT", "PLAIN"))
    assert (outcome.code, [finding["subject"] for finding in outcome.bad]) == (77, [f"{word} {name}"])
    assert f"operations Describe and Read on the {word} {name}" in outcome.bad[0]["cure"]


def await_bad(scene: Scene, folder: Path, source: Mapping[str, Any], **more: Any) -> Checked:
    """The outcome once the broker applies the rules that were made last."""
    outcomes: list[Checked] = []

    def is_bad() -> bool:
        outcomes.append(checked(folder, scene.config(source=source, **more)))
        return bool(outcomes[-1].bad)

    wait_until(is_bad, 20, "the rule holds")
    return outcomes[-1]


def test_the_check_names_missing_rights_to_write_and_create(scene: Scene, secure: KafkaBroker, tmp_path: Path) -> None:
    """Exit 77 with the topic of dead letters, and with the changelog that could not be created."""
    dead, delayed = secure.create_topic(unique("dead")), unique("delayed")
    put_rule(secure, rule(ResourceType.TOPIC, dead, AclOperation.READ, AclPermissionType.ALLOW))
    for kind, name in ((ResourceType.TOPIC, delayed), (ResourceType.BROKER, "kafka-cluster")):
        put_rule(secure, rule(kind, name, AclOperation.CREATE, AclPermissionType.DENY))
    put_rule(secure, rule(ResourceType.TOPIC, delayed, AclOperation.DESCRIBE, AclPermissionType.ALLOW))
    more = {"delay": {"changelog": {"topic": delayed}}, "dead_letters": {"kafka": {"topic": dead}}}
    try:
        outcome = await_bad(scene, tmp_path, sasl(secure, "SASL_PLAINTEXT", "PLAIN"), **more)
    finally:
        lift_rule(secure, rule(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE, AclPermissionType.DENY))
    assert outcome.code == 77
    assert missing(outcome.of("topic of dead letters ")["cure"], "Write", dead) == []
    assert missing(str(outcome.of("topic of delayed messages ")), "may not be created", "Create") == []
