"""The options of the sources for a query of one's own. No Spark, no broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sidecar.core.messages.fields import Field
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError
from sidecar.spark import read_kafka, read_kafka_stream, read_rocketmq, read_rocketmq_stream
from sidecar.spark.query.options import COLUMNS, Query, parse_options
from sidecar.spark.ranges.kafka import KafkaRanges

KAFKA = {"bootstrap_servers": "localhost:9092", "topics": "orders, ^new"}
FILE = """\
source: {kafka: {bootstrap_servers: "localhost:9092", group_id: g, topics: [orders]}}
tags: {from: key, subscribe: a || b}
dedup: {by: {header: id}}
sink: {http: {url: "http://localhost:1/"}}
"""


def topics_of(query: Query) -> list[str]:
    """The topics that it reads."""
    assert isinstance(query.broker, KafkaRanges)
    return query.broker.source.topics


def parsed(more: Mapping[str, str] = {}, *, stream: bool = True) -> Query:
    """Options for Kafka."""
    return parse_options("kafka", KAFKA | dict(more), stream=stream)


def test_options_are_keys_of_the_file() -> None:
    """With dots for sections, or as JSON; in any case of the letters that Spark leaves."""
    query = parse_options(
        "kafka",
        {
            "BOOTSTRAP_SERVERS": "h:1", "topics": '["a", "b"]', "start": "latest",
            "properties.security.protocol": "ssl", "tags.from.header": "Tag", "tags.subscribe": "a || b",
            "tags.groups": '{"Money": "a"}', "dedup.by": '{"json": "$.order.id"}', "dedup.capacity": "5000",
            "state": "ids", "maxoffsetspertrigger": "7", "columns": "offset,value",
        },
        stream=True,
    )  # fmt: skip
    broker = query.broker
    assert isinstance(broker, KafkaRanges)
    assert (broker.source.topics, query.start) == (["a", "b"], "latest")
    assert broker.source.properties == {"security.protocol": "ssl"}
    assert query.tags.field == Field("header", "Tag")
    assert query.tags.filter().group(b"a") == "Money"
    assert query.dedup.field == Field("json", path=("order", "id"))
    assert (query.dedup.capacity, query.offsets_max, query.columns) == (5_000, 7, ("offset", "value"))
    assert query.state == Path.cwd() / "ids"
    assert query.ddl == "offset bigint, value binary"


def test_what_is_not_given_has_the_daemons_default() -> None:
    """All columns, everything that is there, a million offsets."""
    query = parsed()
    assert (query.columns, query.offsets_max, query.start) == (COLUMNS, 1_000_000, "earliest")
    assert topics_of(query) == ["orders", "^new"]


def test_a_file_has_the_settings(tmp_path: Path) -> None:
    """Source, tags and ids are those of the file, and a wrong one is told with its line."""
    path = tmp_path / "sidecar.yaml"
    path.write_text(FILE)
    query = parse_options("kafka", {"config": str(path), "state": str(tmp_path)}, stream=True)
    assert isinstance(query.broker, KafkaRanges)
    assert (query.broker.source.group_id, query.dedup.field) == ("g", Field("header", "id"))
    path.write_text(FILE + "delay: {}\n")
    with pytest.raises(ConfigError, match=r"sidecar\.yaml:5:1: delay: is not possible"):
        parse_options("kafka", {"config": str(path), "state": str(tmp_path)}, stream=True)
    with pytest.raises(ConfigError, match="sidecar-kafka source: option topics belongs into the file"):
        parse_options("kafka", {"config": str(path), "topics": "a"}, stream=True)
    with pytest.raises(ConfigError, match="source: is kafka: use sidecar-kafka"):
        parse_options("rocketmq", {"config": str(path)}, stream=True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topcs": "a"}, r"unknown option topcs\. Did you mean topics\?"),
        (
            {"xyz": "a"},
            r"unknown option xyz\. There are config, columns, start, end, state, maxOffsetsPerTrigger, on_gap",
        ),
        ({"subscribe": "a"}, r"unknown option subscribe\. Use topics$"),
        ({"startingOffsets": "earliest"}, r"unknown option startingoffsets\. Use start: earliest, latest, a time, or"),
        ({"failOnDataLoss": "false"}, r"unknown option failondataloss\. Use on_gap: stop, or log_start"),
        (
            {"kafka.fetch.max.bytes": "1"},
            r"unknown option kafka\.fetch\.max\.bytes\. Use properties\.fetch\.max\.bytes$",
        ),
        ({"tags.form": "key"}, r"option tags\.form unknown key; did you mean 'from'\?|option tags\.form unknown key"),
        ({"tags.subscribe": "a"}, r"option tags\.subscribe needs tags\.from"),
        ({"dedup.capacity": "many"}, r"option dedup\.capacity is 'many' and must be a number"),
        ({"dedup.by": "{"}, r"option dedup\.by is '\{' and must be JSON"),
        ({"dedup.by": "key", "dedup.by.header": "x"}, r"option dedup\.by\.header contradicts another option"),
        ({"dedup.by": "key"}, "option state is missing"),
        ({"dedup.by": "key", "dedup.keep": "1h", "state": "s"}, r"option dedup\.keep is not possible"),
        ({"start": "yesterday"}, "option start needs earliest, latest or a timestamp"),
        ({"start": "1769860800"}, "option start needs milliseconds since 1970, such as .*: 1769860800 is before 1973"),
        (
            {"start": '{"a": 5}'},
            r'option start is \{"a": 5\} and needs an offset, earliest or latest',
        ),
        ({"start": '{"a": {"0": "x"}}'}, "needs an offset, earliest or latest for each partition"),
        ({"start": '{"a": {"0": true}}'}, "needs an offset, earliest or latest for each partition"),
        ({"start": '{"a": {"0": -3}}'}, "needs an offset, earliest or latest for each partition"),
        ({"start": '{"a": {"x": 3}}'}, "needs an offset, earliest or latest for each partition"),
        ({"start": "{"}, "needs an offset, earliest or latest for each partition"),
        ({"end": "latest"}, "option end is for spark.read; a stream with trigger"),
        ({"columns": "offset,what"}, "option columns is 'offset,what' and must be some of topic, partition"),
        ({"columns": "offset,offset"}, "each once"),
        ({"on_gap": "skip"}, "option on_gap is 'skip' and must be stop or log_start"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is '0' and must be a number from 1 on"),
        ({"properties.enable.auto.commit": "true"}, r"option properties\.enable\.auto\.commit cannot be set"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], told: str) -> None:
    """The text of the error says which option, and what it may be."""
    with pytest.raises(ConfigError, match=f"^sidecar-kafka source: .*(?:{told})"):
        parsed(given)


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (read_kafka, "unknown option topic"),
        (read_kafka_stream, "unknown option topic"),
        (read_rocketmq, "unknown option topic"),
        (read_rocketmq_stream, "unknown option topic"),
    ],
)
def test_a_wrong_option_is_told_before_spark_is_asked(read: Callable[..., object], told: str) -> None:
    """Its own error would stand behind a traceback, in one of Spark's."""
    with pytest.raises(ConfigError, match=told):
        read(None, topic=["orders"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("latest", "latest"),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("1769860800000", 1_769_860_800_000),
        (
            '{"a": {"0": 7, "1": "latest", "2": -1}}',
            {TopicPartition("a", 0): 7, TopicPartition("a", 1): "latest", TopicPartition("a", 2): "latest"},
        ),
        ('{"a": {"b:3": 7}}', {TopicPartition("a", 3, "b"): 7}),
    ],
)
def test_a_read_begins_and_ends_at_places(text: str, place: object) -> None:
    """A word, a time, or an offset for each partition, in the form of Spark's connector."""
    query = parsed({"start": text, "end": text}, stream=False)
    assert (query.start, query.end) == (place, place)


@pytest.mark.parametrize("text", ["earliest", '{"a": {"0": "earliest"}}', '{"a": {"0": -2}}'])
def test_no_read_ends_where_its_logs_begin(text: str) -> None:
    """It would have no rows."""
    with pytest.raises(ConfigError, match="option end needs latest, a timestamp, or an offset or latest for each"):
        parsed({"end": text}, stream=False)


def test_start_and_end_may_be_given_beside_a_file(tmp_path: Path) -> None:
    """The start of the file is that of a group of daemons."""
    path = tmp_path / "sidecar.yaml"
    path.write_text(FILE)
    more = {"start": "latest", "end": "1769860800000"}
    query = parse_options("kafka", {"config": str(path), **more}, stream=False)
    assert (query.start, query.end) == ("latest", 1_769_860_800_000)
    assert parse_options("kafka", {"config": str(path)}, stream=False).start == "earliest"


def test_options_of_streams_are_refused_for_batches() -> None:
    """A batch read has no micro-batches, and keeps no ids."""
    for name, text in (("state", "s"), ("maxOffsetsPerTrigger", "5")):
        with pytest.raises(ConfigError, match=f"option {name} is for readStream"):
            parsed({name: text}, stream=False)
    assert parsed({"dedup.by": "key"}, stream=False).state is None


def test_a_missing_option_is_named() -> None:
    """As it is written in the option."""
    with pytest.raises(ConfigError, match="option topics is missing"):
        parse_options("kafka", {"bootstrap_servers": "h:1"}, stream=True)
    with pytest.raises(ConfigError, match="sidecar-rocketmq source: needs name_servers with client: remoting"):
        parse_options("rocketmq", {"topics": "orders"}, stream=True)
