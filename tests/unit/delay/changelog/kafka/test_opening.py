"""Opening the topic of a changelog: found, created, grown, checked or refused. The broker is a fake."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from sidecar.config.delay import ChangelogSettings
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.kafka import topics as module
from sidecar.delay.changelog.kafka.topics import Topics, number_of
from sidecar.errors import ConfigError, SidecarError, UnavailableError
from tests.support.spark.tasks import make_settings

TP, NAME = TopicPartition("orders", 1), "held"
ALL = [AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE]
SOUND = {"cleanup.policy": "compact", "max.message.bytes": "5000000", "delete.retention.ms": "3600000"}
FORBIDDEN = KafkaError.TOPIC_AUTHORIZATION_FAILED


class Topic:
    """A topic of the broker."""

    def __init__(
        self, partitions: int = 2, replicas: int = 1, *, rights: Iterable[AclOperation] | None = ALL,
        config: dict[str, str] | None = None, error: int | None = None,
    ) -> None:  # fmt: skip
        self.partitions, self.replicas, self.rights = partitions, replicas, rights
        self.config, self.error = SOUND if config is None else config, error
        self.id = "id"


class Broker:
    """A cluster of three brokers with some topics; exceptions are its answers to requests of a kind."""

    def __init__(self, **topics: Topic) -> None:
        self.topics, self.fails = topics, dict[str, int]()
        self.lag = 0
        self.calls: list[Any] = []

    def _fail(self, kind: str) -> None:
        if kind in self.fails:
            raise KafkaException(KafkaError(self.fails[kind], f"{kind} fails"))

    def list_topics(self, name: str, timeout: float) -> Any:
        """A topic, which may not be known yet."""
        self._fail("list")
        topic = self.topics.get(name)
        if topic is not None and self.lag and name == NAME:
            self.lag -= 1
            topic = None
        code = KafkaError.UNKNOWN_TOPIC_OR_PART if topic is None else topic.error
        partitions = topic.partitions if topic else 0
        listed = {
            number: SimpleNamespace(replicas=range(topic.replicas if topic else 0)) for number in range(partitions)
        }
        error = None if code is None else KafkaError(code, "it says so")
        found = SimpleNamespace(error=error, partitions=listed)
        return SimpleNamespace(topics={name: found}, cluster_id="c", brokers=range(3))

    def describe_topics(self, asked: Any, **_: Any) -> dict[str, Future[Any]]:
        """Ids and rights."""
        return {name: self._later("describe", self._described(name)) for name in asked.topic_names}

    def _described(self, name: str) -> Any:
        return SimpleNamespace(topic_id=self.topics[name].id, authorized_operations=self.topics[name].rights)

    def describe_configs(self, asked: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        """Settings."""
        (one,) = asked
        self.calls.append(("config", one.name))
        config = {key: SimpleNamespace(value=value) for key, value in self.topics[one.name].config.items()}
        return {one: self._later(f"config {one.name}", {**config, "none": SimpleNamespace(value=None)})}

    def create_topics(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        """Create."""
        (one,) = asked
        self.calls.append(("create", one.num_partitions, one.replication_factor, one.config["cleanup.policy"]))
        future = self._later("create", None)
        if future.exception() is None:
            self.topics[one.topic] = Topic(one.num_partitions, one.replication_factor)
        return {one.topic: future}

    def create_partitions(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        """Grow."""
        (one,) = asked
        self.calls.append(("grow", one.new_total_count))
        future = self._later("grow", None)
        if future.exception() is None:
            self.topics[one.topic].partitions = one.new_total_count
        return {one.topic: future}

    def _later(self, kind: str, answer: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            self._fail(kind)
            future.set_result(answer)
        except KafkaException as error:
            future.set_exception(error)
        return future

    @property
    def changes(self) -> list[Any]:
        """What was created or grown."""
        return [call for call in self.calls if call[0] != "config"]


class Scene:
    """Topics at a broker, on a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = Broker(orders=Topic(2, 2, config={"max.message.bytes": "1000"}))
        self.now_s = 100.0
        self.told: list[Any] = []
        self.passing: Callable[[], None] = lambda: None
        monkeypatch.setattr(module, "AdminClient", lambda _: self.broker)
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        monkeypatch.setattr(module, "time", clock)
        self.topics = self.made()

    def made(self, group: str = "g", **changelog: Any) -> Topics:
        """The topics with these settings."""
        given = {"bootstrap_servers": "localhost:1", "group_id": group, "topics": ["orders"]}
        kafka = make_settings("http://localhost:1/", source={"kafka": given}).source.kafka
        settings = ChangelogSettings.model_validate({"topic": NAME, **changelog})
        return Topics(kafka, settings, lambda event, level, fields: self.told.append((event, level, fields)))

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now_s += seconds
        self.passing()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A broker with the source's topic alone."""
    return Scene(monkeypatch)


def test_a_topic_that_is_missing_is_created(scene: Scene) -> None:
    """Compacted, with the partitions of the source's and no fewer replicas."""
    assert scene.topics.open(TP) == number_of("id")
    assert scene.broker.changes == [("create", 2, 3, "compact")]
    assert scene.topics.id_of(NAME) == "id"


def test_a_topic_that_is_there_is_used(scene: Scene) -> None:
    """It is asked about once in a while, and its settings once for each id."""
    scene.broker.topics[NAME] = Topic()
    scene.topics.open(TP)
    assert scene.broker.changes == []
    asked = scene.broker.calls.count(("config", NAME))
    scene.broker.topics[NAME].id = "id2"
    scene.sleep(module.FRESH_S)
    assert scene.topics.open(TP) == number_of("id")
    scene.sleep(0.1)
    assert scene.topics.open(TP) == number_of("id2")
    assert (asked, scene.broker.calls.count(("config", NAME))) == (1, 2)
    scene.sleep(module.FRESH_S + 1)
    scene.topics.open(TP)
    assert scene.broker.calls.count(("config", NAME)) == 2


def test_a_topic_that_is_forgotten_is_asked_about_at_once(scene: Scene) -> None:
    """Another one may have its name by then."""
    scene.topics.open(TP)
    scene.broker.topics[NAME].id = "id2"
    scene.topics.forget_topic(NAME)
    assert scene.topics.id_of(NAME) == ""
    assert scene.topics.open(TP) == number_of("id2")


def test_a_topic_grows_with_the_source(scene: Scene) -> None:
    """At once if a partition is opened that it has not."""
    scene.topics.open(TP)
    scene.broker.topics["orders"].partitions = 4
    scene.topics.open(TP)
    assert len(scene.broker.changes) == 1
    scene.topics.open(TP._replace(partition=2))
    scene.topics.open(TP._replace(partition=3))
    assert scene.broker.changes[1:] == [("grow", 4)]


def test_a_broker_that_lags_behind_is_asked_again(scene: Scene) -> None:
    """It did not make the topic itself; at last it is told."""
    scene.broker.lag = 3
    scene.topics.open(TP)
    scene.topics.forget_topic(NAME)
    scene.broker.lag = 1 << 30
    with pytest.raises(UnavailableError, match="does not know the partition 0 of held, 10 s after it was created"):
        scene.topics.open(TP)


@pytest.mark.parametrize("kind", ["create", "grow"])
def test_what_another_member_has_done_is_done(scene: Scene, kind: str) -> None:
    """All members begin at once."""
    code = KafkaError.TOPIC_ALREADY_EXISTS if kind == "create" else KafkaError.INVALID_PARTITIONS
    scene.broker.fails[kind] = code
    if kind == "create":
        scene.broker.topics[NAME], scene.broker.lag = Topic(), 1
    else:
        scene.broker.topics[NAME] = Topic(1)
        scene.passing = lambda: setattr(scene.broker.topics[NAME], "partitions", 2)
    assert scene.topics.open(TP) == number_of("id")


Failure = tuple[dict[str, int], type[SidecarError], str, str]


@pytest.mark.parametrize(
    ("fails", "kind", "text", "hint"),
    [
        ({"create": FORBIDDEN}, ConfigError, "it is missing, and may not be created: ", "run kafka-topics.sh"),
        ({"create": KafkaError.POLICY_VIOLATION}, ConfigError, "it is missing, and may not be", "--partitions 2"),
        ({"create": KafkaError.INVALID_REPLICATION_FACTOR}, UnavailableError, "cannot be created", "to at most 3"),
        ({"create": KafkaError.NOT_CONTROLLER}, UnavailableError, "does not answer about the topic held", ""),
        ({"list": KafkaError._TRANSPORT}, UnavailableError, "does not answer about the topic orders", ""),
        ({"describe": KafkaError._TIMED_OUT}, UnavailableError, "does not answer about the topic orders", ""),
        ({"config orders": KafkaError._TIMED_OUT}, UnavailableError, "does not answer about the topic orders", ""),
        ({"config held": FORBIDDEN}, ConfigError, "its settings may not be read", "allow our user the operations"),
    ],
)
def test_a_broker_that_refuses_is_told_with_a_cure(
    scene: Scene, fails: dict[str, int], kind: type[SidecarError], text: str, hint: str
) -> None:
    """What only an operator can do is a wrong configuration; the rest is tried again."""
    scene.broker.fails = fails
    with pytest.raises(kind) as caught:
        scene.topics.open(TP)
    assert text in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("topic", "fails", "text", "hint"),
    [
        (Topic(1), {"grow": FORBIDDEN}, "it needs 2 partitions, as the source's topic has", "--alter --topic held"),
        (Topic(rights=[AclOperation.READ]), {}, "it may not be used: Write is not allowed", "allow our user"),
        (Topic(rights=[]), {}, "it may not be used: Read and Write is not allowed", "allow our user"),
        (Topic(error=FORBIDDEN), {}, "it may not be described: ", "; if the topic is missing, run kafka-topics.sh"),
        (Topic(config={**SOUND, "cleanup.policy": "delete"}), {}, "which deletes messages before they are due", "run "),
    ],
)
def test_a_topic_that_cannot_be_used_is_refused(
    scene: Scene, topic: Topic, fails: dict[str, int], text: str, hint: str
) -> None:
    """With the command, or another store."""
    scene.broker.topics[NAME], scene.broker.fails = topic, fails
    with pytest.raises(ConfigError) as caught:
        scene.topics.open(TP)
    assert text in str(caught.value)
    assert hint in caught.value.hint
    assert "or set delay.store: local" in caught.value.hint


def test_growth_that_fails_for_now_is_tried_again(scene: Scene) -> None:
    """It is no matter of rights."""
    scene.broker.topics[NAME], scene.broker.fails = Topic(1), {"grow": KafkaError.NOT_CONTROLLER}
    with pytest.raises(UnavailableError):
        scene.topics.open(TP)


def test_a_source_that_is_not_there_is_told(scene: Scene) -> None:
    """Its changelog would have no shape."""
    del scene.broker.topics["orders"]
    with pytest.raises(UnavailableError, match="does not know the topic orders"):
        scene.topics.open(TP)
    scene.broker.topics["orders"] = Topic(error=FORBIDDEN)
    with pytest.raises(UnavailableError, match="does not answer about the topic orders"):
        scene.topics.open(TP)


def test_a_topic_that_is_less_durable_than_the_source_is_told(scene: Scene) -> None:
    """Once; it is used all the same."""
    scene.broker.topics[NAME] = Topic(2, 1)
    scene.topics.open(TP)
    scene.sleep(module.FRESH_S + 1)
    scene.topics.open(TP)
    (event,) = scene.told
    assert event[:2] == ("delay.changelog_warning", "warning")
    assert (
        event[2]["topic"] == NAME and "the replication factor is 1, and 2 of the source's topic" in event[2]["reason"]
    )


def test_a_broker_without_topic_ids_is_used(scene: Scene) -> None:
    """The name is the identity then, and is checked once."""
    scene.broker.topics[NAME], scene.broker.fails = Topic(), {"describe": KafkaError._UNSUPPORTED_FEATURE}
    assert scene.topics.open(TP) == number_of(NAME)
    assert list(scene.topics.watch()) == []
