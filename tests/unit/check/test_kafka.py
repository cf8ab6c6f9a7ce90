"""The check of Kafka: what it makes of the broker's answers. A fake client has them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from sidecar.check import kafka as checked
from sidecar.check.findings import Finding
from sidecar.check.kafka import check_kafka
from sidecar.errors import CredentialsError, UnavailableError
from tests.support.futures import ended
from tests.support.spark.tasks import make_settings

FORBIDDEN = KafkaError.TOPIC_AUTHORIZATION_FAILED
RIGHTS = [AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE]


def error(code: int) -> KafkaException:
    """An error of the broker."""
    return KafkaException(KafkaError(code, "refused here"))


def topic(partitions: int = 3, rights: Iterable[AclOperation] | None = RIGHTS) -> Any:
    """A topic as it is described."""
    return SimpleNamespace(partitions=[None] * partitions, authorized_operations=rights)


def group(hosts: Iterable[str] = (), rights: Iterable[AclOperation] | None = RIGHTS, assignor: str = "") -> Any:
    """A group as it is described."""
    members = [SimpleNamespace(host=f"/{host}") for host in hosts]
    return SimpleNamespace(authorized_operations=rights, members=members, partition_assignor=assignor)


class Admin:
    """A client of a cluster with these topics and this group; exceptions are what the broker answers with."""

    def __init__(self, topics: dict[str, Any], group: Any, cluster: str = "c1", brokers: int = 2) -> None:
        self.topics, self.group, self.cluster, self.brokers = topics, group, cluster, brokers
        self.failures: list[KafkaException] = []
        self.said: list[KafkaError] = []
        self.on_error: Any = None
        self.created: Any = None
        self.new: list[Any] = []

    def list_topics(self, timeout: float) -> Any:
        """The topics."""
        if self.failures:
            raise self.failures[0]
        listed = {
            name: SimpleNamespace(partitions=[None] * 3, error=None)
            for name, found in self.topics.items()
            if not isinstance(found, Exception)
        }
        return SimpleNamespace(topics=listed, cluster_id=self.cluster, brokers=range(self.brokers))

    def poll(self, timeout_s: float) -> None:
        """Tell errors."""
        for each in self.said:
            self.on_error(each)

    def describe_topics(self, topics: Any, **options: Any) -> dict[str, Future[Any]]:
        """Futures of the topics."""
        assert options["include_authorized_operations"]
        unknown = error(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return {name: ended(self.topics.get(name, unknown)) for name in topics.topic_names}

    def describe_consumer_groups(self, names: list[str], **options: Any) -> dict[str, Future[Any]]:
        """A future of the group."""
        assert options["include_authorized_operations"]
        return {name: ended(self.group) for name in names}

    def create_topics(self, asked: list[Any], **options: Any) -> dict[str, Future[Any]]:
        """What would come of that."""
        assert options["validate_only"]
        self.new += asked
        return {each.topic: ended(self.created) for each in asked}


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks a configuration at a client's cluster."""
    monkeypatch.setattr(checked, "metadata_characters", lambda *_: None)
    monkeypatch.setattr(checked, "REACH_S", 0.0)

    def look(admin: Admin, topics: list[str] | None = None, **sections: Any) -> list[Finding]:
        def client(config: Any) -> Admin:
            admin.on_error = config["error_cb"]
            return admin

        monkeypatch.setattr(checked, "AdminClient", client)
        kafka = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": topics or ["orders"]}
        return list(check_kafka(make_settings("http://localhost:1/", source={"kafka": kafka}, **sections)))

    return look


def test_what_is_there_is_told(look: Any) -> None:
    """The cluster, the topic and the group, with the rights; nothing is to be done."""
    found = look(Admin({"orders": topic()}, group()))
    assert found == [
        Finding("Kafka at localhost:1", "2 brokers, cluster c1"),
        Finding("topic orders", "3 partitions; Read allowed"),
        Finding("group g", "no members now; Read allowed"),
    ]


@pytest.mark.parametrize(
    ("answer", "text", "cure", "code"),
    [
        (topic(1, None), "1 partition; the broker does not report the rights", "", 0),
        (topic(2, [AclOperation.DESCRIBE]), "Read is not allowed", "the operations Describe and Read on the topic", 77),
        (error(KafkaError.UNKNOWN_TOPIC_OR_PART), "it does not exist, or may not be described", "create the topic", 69),
        (error(FORBIDDEN), "refused here", "allow this user the operations Describe and Read on the topic orders", 77),
        (error(KafkaError.LEADER_NOT_AVAILABLE), "refused here", "check the broker's log", 69),
        (error(KafkaError._UNSUPPORTED_FEATURE), "3 partitions; the broker does not report the rights", "", 0),
    ],
)
def test_a_topic_is_judged_by_its_description(look: Any, answer: Any, text: str, cure: str, code: int) -> None:
    """An old broker does not describe it: then the list of topics has it."""
    admin = Admin({"orders": answer}, group())
    if code == 0:
        admin.list_topics = lambda timeout: SimpleNamespace(  # type: ignore[method-assign]
            topics={"orders": SimpleNamespace(partitions=[None] * 3, error=None)}, cluster_id="c1", brokers=[1]
        )
    finding = look(admin)[1]
    assert (finding.exit_code, text in finding.text, cure in finding.cure) == (code, True, True), finding


@pytest.mark.parametrize(
    ("answer", "text", "cure", "code"),
    [
        (group(["h2", "h1", "h1"], None, "cooperative-sticky"), "3 members on h1, h2", "", 0),
        (group(["h1"], RIGHTS, "cooperative-sticky"), "1 member on h1; Read allowed", "", 0),
        (group([], [AclOperation.DESCRIBE]), "Read is not allowed", "Describe and Read on the group g", 77),
        (group(["h1"], RIGHTS, "range"), "their assignor is range, not cooperative-sticky", "stop them", 78),
        (group([], RIGHTS, "range"), "no members now; Read allowed", "", 0),
        (error(KafkaError.GROUP_AUTHORIZATION_FAILED), "Read is not allowed", "Describe and Read on the group g", 77),
        (error(KafkaError.COORDINATOR_NOT_AVAILABLE), "refused here", "check the broker's log", 69),
    ],
)
def test_a_group_is_judged_by_its_description(look: Any, answer: Any, text: str, cure: str, code: int) -> None:
    """Members of another program would fight for the partitions."""
    finding = look(Admin({"orders": topic()}, answer))[2]
    assert (finding.exit_code, text in finding.text, cure in finding.cure) == (code, True, True), finding


def test_a_pattern_is_judged_by_all_its_topics(look: Any) -> None:
    """One that cannot be read is told with its number; those of other names do not matter."""
    admin = Admin({"orders-a": topic(), "orders-b": topic(), "bills": topic(3, [])}, group())
    assert look(admin, ["^orders-.*"])[1] == Finding(
        "topics ^orders-.*", "2 topics; topics that are created later are read too"
    )
    admin.topics["orders-b"] = topic(3, [AclOperation.DESCRIBE])
    finding = look(admin, ["^orders-.*"])[1]
    assert (finding.exit_code, finding.text) == (77, "1 of 2 topics cannot be read: Read is not allowed")


def test_a_topic_of_dead_letters_is_written(look: Any) -> None:
    """So another right is needed."""
    letters = {"dead_letters": {"kafka": {"topic": "dead"}}}
    admin = Admin({"orders": topic(), "dead": topic(1, [AclOperation.READ])}, group())
    finding = look(admin, **letters)[3]
    assert (finding.subject, finding.text, finding.exit_code) == (
        "topic of dead letters dead",
        "Write is not allowed",
        77,
    )
    del admin.topics["dead"]
    assert look(admin, **letters)[3].cure == "create the topic: most brokers do not do so themselves"


class Restorer:
    """Finds no mark of another group."""

    foreign = False

    def __init__(self, *_: Any) -> None:
        self.looked: list[str] = []

    def refuse_foreign(self, name: str) -> None:
        if Restorer.foreign:
            raise UnavailableError("it is another group's", hint="set another topic")

    def close(self) -> None:
        """Nothing is open."""


CHANGELOG = {"delay": {"store": "changelog", "changelog": {"topic": "held"}}}


@pytest.mark.parametrize(
    ("answer", "created", "text", "code"),
    [
        (topic(), None, "3 partitions; Read and Write allowed", 0),
        (topic(3, [AclOperation.WRITE]), None, "Read is not allowed", 77),
        (topic(3, [AclOperation.DESCRIBE]), None, "Read and Write is not allowed", 77),
        (None, None, "it is missing, and will be created at the start", 0),
        (None, error(FORBIDDEN), "it is missing, and may not be created", 77),
        (None, error(KafkaError.INVALID_REPLICATION_FACTOR), "it is missing, and cannot be created: refused here", 69),
    ],
)
def test_a_changelog_is_judged_by_its_topic(
    look: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, created: Any, text: str, code: int
) -> None:
    """One that is missing is created at the start, with as many partitions as the source, if that is allowed."""
    monkeypatch.setattr(checked, "KafkaRestorer", Restorer)
    admin = Admin({"orders": topic(5)} | ({"held": answer} if answer else {}), group())
    admin.created = created
    finding = look(admin, **CHANGELOG)[3]
    assert (finding.subject, finding.exit_code) == ("topic of delayed messages held", code)
    assert finding.text == text
    assert [each.num_partitions for each in admin.new] == ([] if answer else [5])


@pytest.mark.parametrize(("is_there", "is_refused"), [(True, True), (False, False)])
def test_a_changelog_of_another_group_is_refused(
    look: Any, monkeypatch: pytest.MonkeyPatch, is_there: bool, is_refused: bool
) -> None:
    """One that is missing has no mark to look for."""
    monkeypatch.setattr(checked, "KafkaRestorer", Restorer)
    monkeypatch.setattr(Restorer, "foreign", True)
    admin = Admin({"orders": topic()} | ({"held": topic()} if is_there else {}), group())
    finding = look(admin, **CHANGELOG)[3]
    assert finding.ok != is_refused
    assert ("it is another group's" in finding.text) == is_refused


def test_a_broker_that_is_not_reached_is_told_with_the_reason(look: Any) -> None:
    """The client's own words go before; those of all brokers together say nothing."""
    admin = Admin({}, group())
    admin.failures = [error(KafkaError._TRANSPORT)]
    with pytest.raises(UnavailableError, match=r"not reached within 0 s: .*refused here"):
        look(admin)
    admin.said = [KafkaError(KafkaError._RESOLVE, "no such host"), KafkaError(KafkaError._ALL_BROKERS_DOWN, "all")]
    with pytest.raises(UnavailableError, match=r"not reached within 0 s: .*no such host"):
        look(admin)


def test_credentials_that_are_refused_are_told_at_once(look: Any) -> None:
    """The wait for a broker would not mend them."""
    admin = Admin({}, group())
    admin.failures = [error(KafkaError._TRANSPORT)]
    admin.said = [KafkaError(KafkaError._AUTHENTICATION, "wrong password")]
    with pytest.raises(CredentialsError, match="wrong password"):
        look(admin)


def test_too_little_room_for_metadata_is_told(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits would not fit."""

    def small(*_: Any) -> None:
        raise UnavailableError("1,000 characters", hint="raise it")

    monkeypatch.setattr(checked, "metadata_characters", small)
    finding = look(Admin({"orders": topic()}, group()))[-1]
    assert finding == Finding("offset.metadata.max.bytes", "1,000 characters", "raise it", 69)


def test_a_mock_cluster_does_not_tell(look: Any) -> None:
    """It is for trying things out."""
    found = look(Admin({"orders": topic()}, group(), cluster="mockCluster1"))
    assert [each.text for each in found[1:]] == [
        "3 partitions; the broker does not report the rights", "the mock cluster does not report it"
    ]  # fmt: skip
