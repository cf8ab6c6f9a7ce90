"""The broker that the tests stand on does what they ask of it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from tests.support import jars
from tests.support.kafka import (
    PASSWORD,
    USER,
    Broker,
    KafkaBroker,
    MakeTopic,
    Outgoing,
    produce,
    produce_transaction,
    unique,
)
from tests.support.process import wait_until

SASL = {"sasl.username": USER, "sasl.password": PASSWORD}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker with TLS and SASL that tests may stop and kill."""
    with KafkaBroker(tmp_path_factory.mktemp("own") / "broker", secure=True, client_auth=True) as broker:
        yield broker


def read(bootstrap: str, topic: str, count: int, **properties: str) -> list[Message]:
    """Read `count` messages from the start, of all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("reader"),
            "auto.offset.reset": "earliest",
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
    )
    consumer.subscribe([topic])
    found: list[Message] = []

    def complete() -> bool:
        found.extend(consumer.consume(count - len(found), 0.5) if len(found) < count else [])
        return len(found) == count

    try:
        wait_until(complete, 60, f"{count} messages of {topic}")
    finally:
        consumer.close()
    return found


def is_let_in(properties: dict[str, Any]) -> bool:
    """Whether the broker answers a client with these properties, or refuses its credentials or certificate."""
    refusals: list[KafkaError] = []

    def on_error(error: KafkaError) -> None:
        # A missing client certificate is a transport failure by its code; only the text tells.
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "ssl/tls alert" in error.str():
            refusals.append(error)

    settings: dict[str, Any] = {**properties, "log_level": 0, "error_cb": on_error}
    client = AdminClient(settings)

    def decided() -> str:
        client.poll(0)
        with contextlib.suppress(KafkaException):
            return "in" if client.list_topics(timeout=0.3).brokers else ""
        return "refused" if refusals else ""

    return wait_until(decided, 20, "the broker lets in or refuses") == "in"


def test_a_message_arrives_as_it_was_produced(kafka: Broker, make_topic: MakeTopic) -> None:
    """Partition, key, value, headers and timestamp come back byte for byte, null apart from empty."""
    topic = make_topic(3)
    now_ms = time.time_ns() // 1_000_000  # older than the broker's retention, they would be gone
    sent = [
        Outgoing(0, b"", b"key", [("tag", b"a"), ("tag", None)], now_ms - 2_000),
        Outgoing(1, None, None, None, now_ms - 1_999),
        Outgoing(2, b"\x00\xff\n" * 350_000, b"", [("h", b"")], now_ms - 1_998),
    ]
    assert produce(kafka.bootstrap, topic, sent) == 3
    got = sorted(read(kafka.bootstrap, topic, 3), key=lambda message: message.partition() or 0)
    assert [
        Outgoing(m.partition() or 0, m.value(), m.key(), m.headers(), m.timestamp()[1])  # type: ignore[arg-type]
        for m in got
    ] == sent


def test_a_flood_is_produced_in_seconds(kafka: Broker, make_topic: MakeTopic) -> None:
    """100,000 small messages with a header are all there when `produce` returns."""
    topic = make_topic(4)
    assert produce(kafka.bootstrap, topic, (Outgoing(i % 4, b"v", None, [("tag", b"t")]) for i in range(100_000)))
    assert kafka.end_offsets(topic) == dict.fromkeys(range(4), 25_000)


def test_a_refused_message_is_an_error(kafka: Broker, topic: str) -> None:
    """A message for a partition that is not there fails the call instead of vanishing."""
    with pytest.raises((AssertionError, KafkaException)):
        produce(kafka.bootstrap, topic, [Outgoing(7, b"lost")])


def test_an_aborted_transaction_leaves_a_gap(kafka: Broker, topic: str) -> None:
    """Only committed messages are read, and the markers and the aborted ones take offsets."""
    produce_transaction(kafka.bootstrap, topic, [Outgoing(0, b"no")] * 2, transactional_id=topic, commit=False)
    produce_transaction(kafka.bootstrap, topic, [Outgoing(0, b"yes")], transactional_id=topic)
    assert [(m.offset(), m.value()) for m in read(kafka.bootstrap, topic, 1)] == [(3, b"yes")]
    assert kafka.end_offsets(topic) == {0: 5}


def test_committed_offsets_carry_metadata(kafka: Broker, topic: str, group: str) -> None:
    """What is committed for a group comes back with its metadata, and a commit without metadata erases it."""
    assert kafka.committed(group) == {}
    kafka.alter_group_offsets(group, topic, {0: 5}, metadata="état")
    assert kafka.committed(group) == {(topic, 0): (5, "état")}
    kafka.alter_group_offsets(group, topic, {0: 3})
    assert kafka.committed(group) == {(topic, 0): (3, "")}
    kafka.delete_group(group)
    assert kafka.committed(group) == {}


def test_members_of_a_group_are_named(kafka: Broker, topic: str, group: str) -> None:
    """A consumer that joined is a member with its partitions, and its group's offsets cannot be altered."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), 20, "the consumer has its partition")
    (member,) = kafka.members(group)
    assert [(tp.topic, tp.partition) for tp in member.assignment.topic_partitions] == [(topic, 0)]
    with pytest.raises(KafkaException):
        kafka.alter_group_offsets(group, topic, {0: 0})
    consumer.close()
    assert kafka.members(group) == []


def test_deleted_records_move_the_start(kafka: Broker, topic: str) -> None:
    """After `delete_records` the first readable offset is the one that was given."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v")] * 10)
    kafka.delete_records(topic, {0: 4})
    assert (kafka.start_offsets(topic), kafka.end_offsets(topic)) == ({0: 4}, {0: 10})


def test_retention_deletes_within_seconds(kafka: Broker, make_topic: MakeTopic) -> None:
    """A topic with a short retention loses its old messages while a test can wait."""
    topic = make_topic(1, {"retention.ms": "100", "segment.ms": "100"})
    produce(kafka.bootstrap, topic, [Outgoing(0, b"old")] * 10)
    wait_until(lambda: kafka.start_offsets(topic)[0] > 0, 30, "old messages are deleted")
    assert kafka.end_offsets(topic) == {0: 10}


def test_a_recreated_topic_has_another_id(kafka: Broker, topic: str) -> None:
    """Deleted and made again under its name, a topic starts at offset 0 with a new id."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v")])
    first = kafka.topic_id(topic)
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    assert kafka.topic_id(topic) != first
    assert kafka.end_offsets(topic) == {0: 0}


def test_data_survives_restart_and_kill(own_broker: KafkaBroker) -> None:
    """After an orderly restart and after SIGKILL the messages are there at the same address."""
    topic = own_broker.create_topic(unique("kept"))
    produce(own_broker.bootstrap, topic, [Outgoing(0, b"v")] * 3)
    own_broker.restart()
    assert own_broker.end_offsets(topic) == {0: 3}
    own_broker.kill()
    assert not own_broker.running
    own_broker.start()
    assert own_broker.end_offsets(topic) == {0: 3}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_sasl_lets_in_only_the_right_password(own_broker: KafkaBroker, protocol: str, mechanism: str) -> None:
    """Each mechanism works on both listeners, and a wrong password is refused."""
    assert own_broker.certificates
    properties = {
        "bootstrap.servers": own_broker.address(protocol),
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "ssl.ca.location": str(own_broker.certificates.ca),
        **SASL,
    }
    assert is_let_in(properties)
    assert not is_let_in({**properties, "sasl.password": "wrong"})


def test_tls_wants_a_client_certificate(own_broker: KafkaBroker) -> None:
    """The TLS listener lets in who shows a certificate of the authority, and nobody else."""
    assert own_broker.certificates
    files = own_broker.certificates
    properties = {
        "bootstrap.servers": own_broker.address("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(files.ca),
    }
    mine = {"ssl.certificate.location": str(files.client), "ssl.key.location": str(files.client_key)}
    assert is_let_in({**properties, **mine})
    assert not is_let_in(properties)


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    """A process that `spawn` started is gone soon after its parent was killed with SIGKILL."""
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.support.process import spawn\n"
        "child = spawn(['sleep', '300'], sys.stderr.buffer)\n"
        f"Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=jars.ROOT, check=False, capture_output=True)
    assert done.returncode == -9, done.stderr
    pid = int((tmp_path / "pid").read_text())

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except OSError:
            return True

    wait_until(gone, 15, "the child is gone")


def test_missing_java_fails_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java the tests fail, and the message has the command that installs it."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="apt-get install openjdk-17-jre-headless maven"):
        jars.jars()
