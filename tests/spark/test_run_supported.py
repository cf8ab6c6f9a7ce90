"""Which settings hold on Spark: refused by line, told in the docs, mapped to the connector's names. No Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.config.model import Settings
from sidecar.config.schema import options
from sidecar.config.source.kafka import KafkaSettings
from sidecar.config.source.section import SourceSection
from sidecar.spark.run.job import SparkRun
from sidecar.spark.run.kafka_options import client_options, start_options, topic_options, trigger_options
from sidecar.spark.run.pinned import rules_of
from sidecar.spark.run.supported import refusals
from tests.support.spark.tasks import make_settings

FILE = """\
source:
  kafka:
    bootstrap_servers: localhost:9092
    group_id: g
    topics: [orders]
    properties: {fetch.min.bytes: 10}
sink:
  http: {url: "http://localhost:1/"}
state: {dir: /tmp/state}
spark: {checkpoint: /tmp/checkpoint}
"""
SHARED = "dedup: {by: key, ledger: {postgresql: {url: 'postgresql://u@h/d'}}}\n"


def kafka(**change: Any) -> KafkaSettings:
    """A source with these changes."""
    return KafkaSettings.model_validate({"bootstrap_servers": "h:1", "group_id": "g", "topics": ["orders"], **change})


def check(tmp_path: Path, text: str) -> tuple[int, str]:
    """Exit code and output of `sidecar validate --engine spark`."""
    file = tmp_path / "one.yaml"
    file.write_text(text)
    done = CliRunner().invoke(main, ["validate", "--engine", "spark", "-c", str(file)])
    return (done.return_value if isinstance(done.return_value, int) else done.exit_code), done.output


def test_what_holds_is_accepted(tmp_path: Path) -> None:
    """A file that can run on Spark is said to be good."""
    code, output = check(tmp_path, FILE)
    assert (code, "OK" in output) == (0, True), output


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("spark: {checkpoint: /tmp/checkpoint}\n", "", ":1:1: spark: is missing"),
        ("/tmp/checkpoint", "s3a://bucket/c", ":10:9: spark.checkpoint: must be a path"),
        ("/tmp/checkpoint", "hdfs:/c", ":10:9: spark.checkpoint: must be a path"),
        ("spark:", "batch: {by: group}\nspark:", ":10:9: batch.by: cannot be group"),
        (
            "spark:",
            "dedup: {by: key, ledger: {sqlite: {}}}\nspark:",
            ":10:27: dedup.ledger.sqlite: is not supported on Spark: its file is on one host",
        ),
        (
            'http: {url: "http://localhost:1/"}\n',
            'http: {url: "http://localhost:1/", ordering: partition}\n' + SHARED,
            ": sink.http.ordering: cannot be partition on Spark with dedup.ledger",
        ),
        (
            'http: {url: "http://localhost:1/"}\n',
            "console: {}\n" + SHARED,
            ": dedup.ledger: cannot be used on Spark with sink.console",
        ),
        ("spark:", "delay: {store: local}\nspark:", ":10:1: delay: is not supported on Spark: a task cannot hold"),
        ('http: {url: "http://localhost:1/"}', "console: {}", ":8:3: sink.console: is not supported on Spark: "),
        ('http: {url: "http://localhost:1/"}', "file: {path: x}", ":8:3: sink.file: is not supported on Spark: "),
        ('http: {url: "http://localhost:1/"}', "spark: {landing: x}", ":8:3: sink.spark: is not supported on Spark: "),
        (
            "fetch.min.bytes: 10",
            "queue.buffering.max.ms: 5",
            "properties.queue.buffering.max.ms: is not supported on Spark",
        ),
        ("topics: [orders]", "topics: [orders]\n    lane: on", ":6:5: source.kafka.lane: cannot be on with"),
        ("fetch.min.bytes: 10", "sasl.mechanism: GSSAPI", "on Spark the mechanisms are"),
        ("fetch.min.bytes: 10", "enable.ssl.certificate.verification: false", "no way to trust every certificate"),
    ],
)
def test_what_cannot_hold_is_refused_by_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    """Each setting that cannot hold on Spark is refused with its place, and the daemon still takes the file."""
    assert old in FILE
    code, output = check(tmp_path, FILE.replace(old, new))
    assert code == 78
    assert told in output
    daemon = CliRunner().invoke(main, ["validate", "-c", str(tmp_path / "one.yaml")])
    assert "OK" in daemon.output


def test_what_is_told_to_be_pinned_is_pinned() -> None:
    """The keys that the table of docs/spark.md calls pinned are those whose change is refused, and no others."""
    told = {option.name for option in options() if re.search(r"\bpinned\b", option.on_spark)}
    settings = make_settings("http://localhost:1/", dedup={"by": "key", "ledger": {"sqlite": {}}})
    rocketmq = {"name_servers": "localhost:1", "group": "g", "topics": ["t"], "sql": "a = 1"}
    source = SourceSection.model_validate({"rocketmq": rocketmq})
    from_rocketmq = settings.model_copy(update={"source": source})
    rules = (rules_of(settings).keys() | rules_of(from_rocketmq).keys()) - {"version"}
    assert {rule for rule in rules if not any(f"{rule}.".startswith(f"{key}.") for key in told)} == set()
    unused = {key for key in told if not any(f"{rule}.".startswith(f"{key}.") for rule in rules)}
    assert unused == {"spark.reader"}, "this one is pinned beside the others, see `pin_reader`"


def test_each_refusal_has_its_reason() -> None:
    """A key that Spark cannot do is refused wherever it is, with the reason in the table of docs/spark.md."""
    refused = [option for option in options() if option.not_on_spark]
    assert {option.name for option in refused} >= {"delay", "dedup.keep", "retry.park_after", "sink.console"}
    for option in refused:
        document: Any = {}
        for step in reversed(option.path):
            document = {step: document}
        settings = make_settings("http://localhost:1/", spark={"checkpoint": "c"})
        with patch.object(Settings, "public", lambda _, shown=document: shown):
            assert list(refusals(settings)) == [(option.path, f"is not supported on Spark: {option.not_on_spark}")]


HTTP = 'http: {url: "http://localhost:1/"}'
PARQUET = FILE.replace(HTTP, "parquet: {path: /tmp/table}")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("checkpoint: /tmp", "reader: connector, checkpoint: /tmp", ":10:9: spark.reader: cannot be connector with"),
        ("spark: {", "spark: {table: {path: x}, ", ":10:17: spark.table.path: is for `sidecar spark ingest`; here"),
        ("spark: {", "spark: {table: {format: delta}, ", ":10:17: spark.table.format: is for `sidecar spark ingest`"),
        ("spark: {", "spark: {table: {format: iceberg}, ", "Iceberg has no runtime for Spark 4.2 yet"),
        ("spark: {", "spark: {table: {merge: {key: key}}, ", ":10:17: spark.table.merge: needs a Delta table: rows"),
        ("parquet:", "iceberg:", "Iceberg has no runtime for Spark 4.2 yet; use delta or parquet"),
        (
            "topics: [orders]\n    properties: {fetch.min.bytes: 10}",
            "topics: [orders]\n    lane: on\ndedup: {by: {json: $.id}}",
            "source.kafka.lane: cannot be `on`, as the fast lane does not do this: message ids in JSON",
        ),
        ("spark: {", "spark: {table: {cluster_by: [tag]}, ", ":10:17: spark.table.cluster_by: needs a Delta table"),
        (
            "parquet: {path: /tmp/table}\nstate: {dir: /tmp/state}\nspark: {",
            "delta: {path: /tmp/table, columns: [tag]}\nstate: {dir: s}\nspark: {table: {columns: [key]}, ",
            ":10:17: spark.table.columns: conflicts with sink.delta.columns",
        ),
        (
            "parquet: {path: /tmp/table}",
            "delta: {path: /tmp, maintenance: {vacuum: 1d}}",
            ":8:37: sink.delta.maintenance.vacuum: would delete files of spark.checkpoint, which lies in",
        ),
    ],
)
def test_what_a_table_cannot_hold_is_refused_by_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    """With a table as the sink, what belongs to another job or to another way is refused with its place."""
    assert old in PARQUET
    code, output = check(tmp_path, PARQUET.replace(old, new, 1))
    assert (code, told in output) == (78, True), output


def test_a_table_may_demand_the_fast_lane(tmp_path: Path) -> None:
    """It makes the columns of a table, while the daemon's `sink.delta` has no use for it."""
    code, output = check(tmp_path, PARQUET.replace("topics: [orders]", "topics: [orders]\n    lane: on", 1))
    assert (code, "OK" in output) == (0, True), output


ROCKETMQ = """\
source:
  rocketmq: {name_servers: "localhost:9876", group: g, topics: [orders]}
sink:
  http: {url: "http://localhost:1/"}
state: {dir: /tmp/state}
spark: {checkpoint: /tmp/checkpoint}
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'name_servers: "localhost:9876"',
            'client: grpc, endpoints: "h:1"',
            ":2:14: source.rocketmq.client: cannot be",
        ),
        (
            "spark: {",
            "dedup: {by: offset_msg_id}\nspark: {",
            ":6:9: dedup.by: cannot be offset_msg_id on Spark without",
        ),
        ("spark: {", "spark: {reader: connector, ", ":6:9: spark.reader: cannot be connector with source.rocketmq"),
    ],
)
def test_what_rocketmq_cannot_hold_is_refused_by_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    """Queues with lasting offsets are read, by the client, each by its own task."""
    assert old in ROCKETMQ
    code, output = check(tmp_path, ROCKETMQ.replace(old, new))
    assert (code, told in output) == (78, True), output


def test_rocketmq_is_read_on_spark(tmp_path: Path) -> None:
    """What will be is said; a ledger brings the origins of messages that were handed back."""
    shared = "dedup: {by: offset_msg_id, ledger: {postgresql: {url: 'postgresql://u@h/d'}}}\nspark:"
    for text in (ROCKETMQ, ROCKETMQ.replace("spark:", shared), ROCKETMQ.replace(HTTP, "delta: {path: /tmp/table}")):
        code, output = check(tmp_path, text)
        assert (code, "reads   orders from localhost:9876 as group g" in output) == (0, True), output


def test_a_table_is_filled_on_spark(tmp_path: Path) -> None:
    """Spark takes both tables, with the client whose properties need no counterpart; the daemon takes only Delta's."""
    own = "fetch.min.bytes: 10", "queue.buffering.max.ms: 5"
    for text in (PARQUET, PARQUET.replace("parquet:", "delta:"), PARQUET.replace(*own)):
        code, output = check(tmp_path, text.replace("spark: {", "spark: {table: {schema: id int, every: 1m}, "))
        assert (code, "/tmp/table" in output) == (0, True), output
    for name, told in (
        ("delta", "OK"),
        ("parquet", ":8:3: sink.parquet: is not for the daemon: only `sidecar spark run`"),
    ):
        file = tmp_path / f"{name}.yaml"
        file.write_text(PARQUET.replace("parquet:", f"{name}:"))
        done = CliRunner().invoke(main, ["validate", "-c", str(file)])
        assert told in done.output
        assert done.exit_code == (0 if told == "OK" else 78)


def test_only_spark_merges(tmp_path: Path) -> None:
    """A file whose table is merged runs on Spark; the daemon, which would append, refuses it."""
    file = PARQUET.replace("parquet:", "delta:").replace("spark: {", "spark: {table: {merge: {key: key}}, ")
    assert check(tmp_path, file)[0] == 0
    done = CliRunner().invoke(main, ["validate", "-c", str(tmp_path / "one.yaml")])
    assert (done.return_value or done.exit_code) == 78
    assert ":10:17: spark.table.merge: is not for the daemon, whose sink.delta only appends" in done.output


@pytest.mark.parametrize("written", ["DIR/c", "file:DIR/c", "file://DIR/c", "c", "./c", "DIR/x/../c", "../one/c"])
def test_a_checkpoint_is_one_folder_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """Spark, the driver and executors, which have other working directories, mean the same folder."""
    home = tmp_path / "one"
    home.mkdir()
    monkeypatch.chdir(home)
    settings = make_settings("http://localhost:1/", spark={"checkpoint": written.replace("DIR", str(home))})
    assert not list(refusals(settings))
    run = SparkRun(settings, lambda: False)
    assert run._folder.path == home / "c" / "sidecar"
    assert run._query_path == home / "c" / "query"
    frame = MagicMock()
    run._writer(frame)
    told = frame.writeStream.format.return_value.option.call_args.args
    assert told == ("checkpointLocation", f"file://{home}/c/query")


def test_the_daemons_client_takes_all_of_its_own_properties(tmp_path: Path) -> None:
    """With `spark.reader: client` no property needs a counterpart in Java."""
    own = FILE.replace("fetch.min.bytes: 10", "queue.buffering.max.ms: 5")
    assert check(tmp_path, own)[0] == 78
    code, output = check(tmp_path, own.replace("/tmp/checkpoint", "/tmp/checkpoint, reader: client"))
    assert code == 0, output


def test_credentials_and_certificates_become_those_of_the_java_client(tmp_path: Path) -> None:
    """PEM files travel as text, passwords are quoted, and the mechanism's module is named."""
    pem = tmp_path / "both.pem"
    certificate = "-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----"
    key = "-----BEGIN PRIVATE KEY-----\nBBB\n-----END PRIVATE KEY-----"
    pem.write_text(f"{certificate}\n{key}\n")
    found = client_options(
        kafka(
            properties={
                "security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "al\"ice",
                "sasl.password": "pass\\word", "ssl.ca.location": str(pem), "ssl.certificate.location": str(pem),
                "ssl.endpoint.identification.algorithm": "none", "fetch.wait.max.ms": 50,
            }
        )
    )  # fmt: skip
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert found == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.client.id": "sidecar",
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="al\\"ice" password="pass\\\\word";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": pem.read_text(),
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": certificate,
        "kafka.ssl.keystore.key": key,
        "kafka.fetch.max.wait.ms": "50",
    }


def test_a_pattern_finds_what_the_daemon_finds() -> None:
    """Java's pattern must match a whole name where the daemon's looks for a part; names beside it stay names."""
    assert topic_options(kafka(topics=["a.b", "c"])) == {"subscribe": "a.b,c"}
    pattern = topic_options(kafka(topics=["a.b", "^or", "^x$|y$"]))["subscribePattern"]
    found = [name for name in ("a.b", "aXb", "orders", "xor", "x", "xx", "my", "a.bc") if re.fullmatch(pattern, name)]
    assert found == ["a.b", "orders", "x", "my"]


def test_a_new_checkpoint_starts_where_it_is_told() -> None:
    """Earliest, latest, a timestamp, or where the daemon's group stands."""
    assert start_options(kafka(start="latest"), None) == {"startingOffsets": "latest"}
    by_time = start_options(kafka(start="1970-01-01T00:00:01Z"), None)
    assert by_time == {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}
    assert start_options(kafka(start="latest"), {"orders": {"0": 7}}) == {"startingOffsets": '{"orders": {"0": 7}}'}


def test_linger_and_span_bound_a_micro_batch() -> None:
    """The linger is how long a micro-batch waits for a batch's worth of messages; the span is the most it takes."""
    url = "http://localhost:1/"
    limits = make_settings(url, batch={"linger": "3s", "max_messages": 10, "span_max": 5_000})
    assert trigger_options(limits, once=False) == {
        "maxOffsetsPerTrigger": "5000", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "3000ms",
    }  # fmt: skip
    assert trigger_options(limits, once=True) == {"maxOffsetsPerTrigger": "5000"}
    assert trigger_options(make_settings(url, batch={"linger": "0ms"}), once=False) == {
        "maxOffsetsPerTrigger": "1000000"
    }
