"""Appending to a changelog in Kafka: when an entry counts, and what breaks it. The producer is a fake."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka as ck
import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.kafka.producer import GONE_ANSWERS, WAITING_S, KafkaChangelog
from tests.support.spark.tasks import make_settings

TP, OTHER = TopicPartition("orders", 3), TopicPartition("orders", 4)
A, B, C = ChangelogEntry(b"a", b"1"), ChangelogEntry(b"b", None), ChangelogEntry(b"c", b"3")


class Producer:
    """A producer whose reports come when told."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.sent: list[tuple[str, bytes | None, bytes, int]] = []
        self.reports: list[Callable[[Any, Any], None]] = []
        self.errors: list[KafkaError] = []
        self.listed: list[str] = []
        self.calls: list[str] = []

    def produce(self, name: str, value: bytes | None, key: bytes, partition: int, report: Any) -> None:
        """Take an entry, unless an error is due."""
        if self.errors:
            raise KafkaException(self.errors.pop(0))
        self.sent.append((name, value, key, partition))
        self.reports.append(report)

    def list_topics(self, name: str, timeout: float) -> None:
        """Ask a broker."""
        self.listed.append(name)

    def poll(self, timeout_s: float) -> None:
        """Reports come by `land`."""

    def purge(self) -> None:
        """Note it."""
        self.calls.append("purge")

    def flush(self, timeout_s: float) -> None:
        """Note it."""
        self.calls.append("flush")

    def land(self, *offsets: int, error: KafkaError | None = None) -> None:
        """The oldest entries are acknowledged at these offsets, or refused."""
        for offset in offsets:
            self.reports.pop(0)(error, SimpleNamespace(offset=lambda offset=offset: offset))


class Topics:
    """The topics of the changelogs, with the ids that a broker tells."""

    servers = "localhost:1"

    def __init__(self) -> None:
        self.kafka = make_settings("http://localhost:1/").source.kafka
        self.ids = {"held-orders": "id1"}
        self.told: list[tuple[str, str]] = []
        self.forgotten: list[str] = []

    def name(self, topic: str) -> str:
        """Of the changelog."""
        return f"held-{topic}"

    def id_of(self, name: str) -> str:
        """At the start."""
        return self.ids[name]

    def watch(self) -> list[tuple[str, str]]:
        """What a broker has told since."""
        told, self.told = self.told, []
        return told

    def forget_topic(self, name: str) -> None:
        """It is asked about no more."""
        self.forgotten.append(name)


class Scene:
    """A changelog, its producer and what was acknowledged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.producer, self.topics = Producer(), Topics()

        def made(config: dict[str, Any]) -> Producer:
            self.producer.config = config
            return self.producer

        monkeypatch.setattr(ck, "Producer", made)
        self.now_s = 100.0
        self.changelog = KafkaChangelog(cast(Any, self.topics), lambda: self.now_s)
        self.done: list[int] = []

    def append(self, *entries: ChangelogEntry, tp: TopicPartition = TP) -> None:
        """Append these in one call."""
        self.changelog.append(tp, entries, self.done.append)

    def land(self, *offsets: int, error: KafkaError | None = None) -> None:
        """Reports come, and are served."""
        self.producer.land(*offsets, error=error)
        self.changelog.serve()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Nothing is appended yet."""
    return Scene(monkeypatch)


def test_entries_go_to_the_partition_of_their_messages(scene: Scene) -> None:
    """In their order; one without a value removes."""
    scene.append(A, B)
    scene.append(C, tp=OTHER)
    assert scene.producer.sent == [
        ("held-orders", b"1", b"a", 3), ("held-orders", None, b"b", 3), ("held-orders", b"3", b"c", 4)
    ]  # fmt: skip


def test_a_call_ends_with_its_last_entry(scene: Scene) -> None:
    """At the offset of that, and after the calls before it; partitions do not wait for each other."""
    scene.append(A, B)
    scene.changelog.append(TP, [C])
    scene.append(C, tp=OTHER)
    scene.land(10)
    assert scene.done == []
    scene.land(11)
    assert scene.done == [11]
    scene.land(12, 50)
    assert scene.done == [11, 50]


def test_nothing_is_told_outside_of_serve(scene: Scene) -> None:
    """The main loop is in its place then."""
    scene.append(A)
    scene.producer.land(1)
    assert scene.done == []
    scene.changelog.serve()
    scene.changelog.serve()
    assert scene.done == [1]


def test_silence_is_told_with_its_reason(scene: Scene) -> None:
    """Once it lasts; each acknowledgement ends it, and where nothing waits there is none."""
    assert scene.changelog.waiting == ""
    scene.append(A, B)
    scene.now_s += WAITING_S - 0.1
    scene.append(C)
    assert scene.changelog.waiting == ""
    scene.now_s += 0.1
    assert "does not acknowledge delayed messages: the client knows no reason" in scene.changelog.waiting
    scene.producer.config["error_cb"](KafkaError(KafkaError._TRANSPORT, "no route"))
    assert scene.changelog.waiting.startswith("Kafka at localhost:1 does not acknowledge delayed messages: ")
    assert "no route" in scene.changelog.waiting
    scene.land(1)
    assert scene.changelog.waiting == ""
    scene.now_s += WAITING_S
    assert "the client knows no reason" in scene.changelog.waiting
    scene.land(2, 3)
    assert scene.changelog.waiting == ""
    scene.now_s += 100
    scene.append(A)
    assert scene.changelog.waiting == ""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "the topic held-orders refuses a delayed message as too large"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "allow our user the operation Write on the topic held-orders"),
        (KafkaError._UNKNOWN_TOPIC, "the topic held-orders, which holds delayed messages, was deleted; restart the"),
        (KafkaError.INVALID_RECORD, "Kafka refuses to append to the topic held-orders: "),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_an_entry_that_is_refused_breaks_the_changelog(scene: Scene, code: int, says: str, at_once: bool) -> None:
    """Those behind it may be acknowledged, and do not count; nothing is appended any more."""
    if at_once:
        scene.producer.errors = [KafkaError(code, "it says so")]
        scene.append(A)
    else:
        scene.append(A)
        scene.append(B)
        scene.land(1, error=KafkaError(code, "it says so"))
        scene.land(2)
    assert says in scene.changelog.broken
    assert scene.done == []
    sent = len(scene.producer.sent)
    scene.append(C)
    assert len(scene.producer.sent) == sent


def test_the_first_cause_is_told(scene: Scene) -> None:
    """What follows from it is none."""
    scene.append(A)
    scene.append(B, tp=OTHER)
    scene.land(1, error=KafkaError(KafkaError.INVALID_RECORD, "the first"))
    scene.land(1, error=KafkaError(KafkaError._UNKNOWN_TOPIC, "the second"))
    assert "the first" in scene.changelog.broken


def test_a_partition_that_came_since_is_asked_for(scene: Scene) -> None:
    """Once; a second refusal breaks the changelog."""
    unknown = KafkaError(KafkaError._UNKNOWN_PARTITION, "no such partition")
    scene.producer.errors = [unknown]
    scene.append(A, B)
    assert (scene.producer.listed, len(scene.producer.sent)) == (["held-orders"], 2)
    scene.land(1, 2)
    assert (scene.done, scene.changelog.broken) == ([2], "")
    scene.producer.errors = [unknown, unknown]
    scene.append(A)
    assert "was deleted" in scene.changelog.broken


def test_a_client_that_gives_up_breaks_the_changelog(scene: Scene) -> None:
    """Other errors of it are tried again."""
    scene.append(A)
    scene.producer.config["error_cb"](KafkaError(KafkaError._TRANSPORT, "no route"))
    assert scene.changelog.broken == ""
    scene.producer.config["error_cb"](KafkaError(KafkaError._FATAL, "fenced", fatal=True))
    assert "the Kafka client gave up: " in scene.changelog.broken
    assert scene.changelog.broken.endswith("; restart the daemon")


def test_a_topic_that_is_another_one_breaks_the_changelog(scene: Scene) -> None:
    """Told twice in a row: the first answer may come from a broker that lags behind."""
    scene.append(A)
    for _ in range(GONE_ANSWERS - 1):
        scene.topics.told = [("held-orders", "id2")]
        scene.changelog.serve()
    scene.topics.told = [("held-orders", "id1"), ("held-others", "id9")]
    scene.changelog.serve()
    for answer in range(GONE_ANSWERS):
        assert scene.changelog.broken == "", answer
        scene.topics.told = [("held-orders", "id2")]
        scene.changelog.serve()
    assert "held-orders, which holds delayed messages, was deleted" in scene.changelog.broken
    assert scene.topics.forgotten == ["held-orders"]


def test_what_is_on_its_way_at_the_end_is_not_told(scene: Scene) -> None:
    """It may be appended all the same; nothing is appended any more."""
    scene.append(A)
    scene.append(B)
    scene.producer.land(1)
    scene.changelog.close()
    assert scene.producer.calls == ["purge", "flush"]
    scene.producer.land(2, error=KafkaError(KafkaError._PURGE_QUEUE, "purged"))
    scene.changelog.serve()
    scene.append(C)
    assert (scene.done, scene.changelog.broken, len(scene.producer.sent)) == ([], "", 2)
    scene.changelog.close()
