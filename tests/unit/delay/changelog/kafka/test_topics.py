"""Names and numbers of the topics of changelogs, without a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from sidecar.config.delay import ChangelogSettings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.kafka.producer import WAITING_S, KafkaChangelog
from sidecar.delay.changelog.kafka.restorer import KafkaRestorer, _Appending
from sidecar.delay.changelog.kafka.topics import Topics
from sidecar.errors import ConfigError, UnavailableError


def topics_of(servers: str, *read: str) -> Topics:
    """The changelogs of a source that reads these topics."""
    given = {"bootstrap_servers": servers, "group_id": "g", "topics": list(read)}
    return Topics(KafkaSettings.model_validate(given), ChangelogSettings(), lambda *event: None)


@pytest.fixture
def mock() -> Iterator[str]:
    """The address of librdkafka's own cluster, which has topics `t` and `sidecar-delay-g-t` and no topic ids."""
    owner = ck.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    for topic in ("t", "sidecar-delay-g-t"):
        (only,) = owner.list_topics(topic, timeout=10).brokers.values()
    yield f"{only.host}:{only.port}"


@pytest.mark.parametrize(
    ("read", "topic", "says"),
    [
        ("^[ot]", "t" * 240, "which no topic can have (at most 249 characters)"),
        ("^.*t$", "t", "which source.kafka.topics (^.*t$) reads"),
    ],
)
def test_a_topic_of_a_pattern_may_have_no_changelog(read: str, topic: str, says: str) -> None:
    """Names that only the topic found gives are refused then, with the key to set."""
    with pytest.raises(ConfigError) as refused:
        topics_of("localhost:1", read).name(topic)
    assert says in str(refused.value)
    assert "delay.changelog.topic" in refused.value.hint


def test_a_topic_without_an_id_has_the_number_of_its_name(mock: str) -> None:
    """Brokers without topic ids are used; the number is always the same."""
    numbers = {KafkaRestorer(topics_of(mock, "t")).open(TopicPartition("t", 0)) for _ in range(2)}
    assert numbers == {247_829_006_214_688}


def test_what_was_appended_after_the_end_is_not_read(mock: str) -> None:
    """An owner that appends meanwhile adds nothing to a takeover."""
    restorer, tp = KafkaRestorer(topics_of(mock, "t")), TopicPartition("t", 0)
    assert restorer.append(tp, [ChangelogEntry(b"%d" % number, b"v") for number in range(5)]) == 4
    assert [record.offset for batch in restorer.read(tp, 3, 1) for record in batch] == [1, 2]
    restorer.close()


@pytest.mark.parametrize(
    ("waiting", "says"),
    [("localhost:1 does not acknowledge", "localhost:1 does not acknowledge"), ("", "were not acknowledged in time")],
)
def test_a_takeover_tells_why_its_entries_were_not_acknowledged(waiting: str, says: str) -> None:
    """As far as the client knows."""
    silent: Any = SimpleNamespace(broken="", waiting=waiting, append=lambda *_: None, serve=lambda _: None)
    with pytest.raises(UnavailableError, match=says):
        _Appending(silent, TopicPartition("t", 0), 0.0).run([ChangelogEntry(b"k", b"v")])


def test_waiting_is_told_after_5_seconds_without_an_acknowledgement() -> None:
    """The time counts from the first entry that waits."""
    now = [100.0]
    changelog = KafkaChangelog(topics_of("localhost:1", "t"), lambda: now[0])
    now[0] += 100
    assert changelog.waiting == ""
    changelog.append(TopicPartition("t", 0), [ChangelogEntry(b"k", b"v")])
    changelog.serve()
    now[0] += WAITING_S - 0.1
    assert changelog.waiting == ""
    now[0] += 0.2
    assert "localhost:1 does not acknowledge delayed messages" in changelog.waiting
    changelog.close()
