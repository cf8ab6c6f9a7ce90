"""`spark.table.merge`: a Delta table has the last change of each key, whatever order and micro-batches they come in."""

from __future__ import annotations

import tempfile
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sidecar.config.model import Settings
from sidecar.config.spark import Merge
from sidecar.config.table_layout import UNSET
from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError
from sidecar.spark.ingest.job import SparkIngest
from sidecar.spark.run.pinned import latest_batch
from sidecar.spark.run.table_job import job_of
from sidecar.spark.table.merging import refuse_other_rule
from sidecar.spark.table.plan import Plan
from sidecar.spark.table.writers import by_deltalake
from tests.scenarios.exactly_once import new_topics
from tests.support.delta import rows_of
from tests.support.kafka import Broker, produce
from tests.support.landing import Sent, part, writer
from tests.support.produce import Outgoing
from tests.support.spark.examples import example
from tests.support.spark.ingesting import config as zone_config
from tests.support.spark.merging import BEGIN_MS, Change, compare, last_of_each
from tests.support.spark.tables import config, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "merge_key bigint, merge_order bigint, topic string, partition int, offset bigint, deleted boolean, batch_id string"
)
CHANGES = st.builds(
    lambda key, order, topic, partition, offset: Change(
        key, order, topic, partition, offset, (order + offset) % 3 == 0
    ),
    st.integers(0, 19),
    st.integers(0, 1),
    st.sampled_from("ab"),
    st.integers(0, 1),
    st.integers(0, 5),
)
"""Few values of each, so that most changes tie with others; two that are equal are one that is repeated."""


@settings(max_examples=3, phases=[Phase.generate])  # an example takes a second
@given(batches=st.lists(st.lists(CHANGES, min_size=60, max_size=80), min_size=3, max_size=3))
def test_a_table_has_the_last_change_of_each_key(spark: SparkSession, batches: list[list[Change]]) -> None:
    """Any changes in any micro-batches give what a plain model gives, and one that is repeated changes nothing."""
    query = Future[str]()
    query.set_result("query")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/table"
        write = by_deltalake(path, query, Plan((), (), UNSET), merged=True)
        for number, some in enumerate(batches):
            frame = spark.createDataFrame([(*change, "b") for change in some], COLUMNS)
            write(frame, number)
        before = DeltaTable(path).version()
        write(frame, number)
        assert DeltaTable(path).version() == before
        assert compare(rows_of(Path(path)), last_of_each(chain(*batches)).values()).exact


SCHEMA = "id bigint, op string, at bigint"
RULE = {"key": "$.id", "order_by": "$.at", "delete_when": "data.op = 'd'"}
FIRST = {
    0: b'{"id": 1, "op": "u", "at": 10}',
    1: b'{"id": 1, "op": "u", "at": 12}',
    2: b'{"id": 2, "op": "u", "at": 5}',
    3: b'{"id": 2, "op": "d", "at": 9}',
    4: b'{"id": 3, "op": "u", "at": 7}',
}
REJECTED = {
    5: (b'{"op": "u", "at": 1}', "the value has no $.id"),
    6: (b'{"id": 4, "at": null}', "the value has no $.at"),
    7: (None, "the value has no $.id"),
    8: (b'{"id": 4, "at": "late"}', "the value does not fit the schema"),
    9: (b"\xff", "the value is not UTF-8"),
}
SECOND = {
    20: b'{"id": 1, "op": "u", "at": 11, "extra": 1}',  # older
    21: b'{"id": 2, "op": "u", "at": 8}',  # older than the delete
    22: b'{"id": 3, "op": "d", "at": 7}',  # a tie, and a higher offset
    23: b'{"id": 5, "op": "d", "at": 1, "extra": 2}',  # a key that has no row
}
OTHER_PARTITION = {0: b'{"id": 3, "op": "u", "at": 7}'}  # a tie, and a higher partition
THIRD = {30: b'{"id": 2, "op": "u", "at": 9, "extra": 6}'}


def landed(values: dict[int, Any], partition: int = 0) -> Batch:
    """A batch of these values by offset."""
    messages = [Sent(offset, None, value) for offset, value in values.items()]
    return Batch(1, "paid", [part(messages, tp=TopicPartition("orders", partition))])


def ingest(folder: Path, schema: str = SCHEMA, rule: dict[str, str] | None = None, **table: Any) -> None:
    """Take what is there."""
    document = zone_config(folder, format="delta", schema=schema, merge=rule or RULE, **table)
    SparkIngest(Settings.model_validate(document), lambda: False, once=True).run()


def forget_last(checkpoint: Path) -> None:
    """Let Spark think that the last micro-batch was cut short, though the table has it."""
    last = latest_batch(checkpoint, "commits")
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()


@pytest.mark.parametrize("form", ["delta", "deltalake"])
def test_a_zone_is_merged(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Late changes, ties and deletes of JSON values; what has no key or order goes to the rejects, with its reason."""
    if form == "deltalake":
        monkeypatch.setattr("sidecar.spark.table.writers.has_delta", lambda session: False)
    zone, table, wider = writer(tmp_path / "zone"), tmp_path / "table", f"{SCHEMA}, extra int"
    zone.land(landed(FIRST | {offset: value for offset, (value, _) in REJECTED.items()}))
    ingest(tmp_path)
    zone.land(landed(SECOND))
    zone.land(landed(OTHER_PARTITION, partition=1))
    ingest(tmp_path, wider)
    before = DeltaTable(table).version()
    forget_last(tmp_path / "checkpoint" / "table")
    zone.land(landed(THIRD))
    ingest(tmp_path, wider)
    zone.close()
    assert DeltaTable(table).version() == before + 1
    found = {row["data"]["id"]: (row["partition"], row["offset"], row["deleted"]) for row in rows(table)}
    assert found == {1: (0, 1, False), 2: (0, 30, False), 3: (1, 0, False), 5: (0, 23, True)}
    assert len(rows(table)) == len(found)
    assert {row["data"]["id"]: row["data"]["extra"] for row in rows(table)} == {1: None, 2: 6, 3: None, 5: 2}
    if form == "delta":  # the session need not know it otherwise
        names = dict[str, Any]()
        example("## One row for each key")({"/var/lib/sidecar/customers": str(table)}, names)
        assert {row["merge_key"] for row in names["customers"].collect()} == {1, 2, 3}
    aside = {row["offset"]: (row["value"], row["reason"]) for row in rows(tmp_path / "table-rejects")}
    assert aside == REJECTED
    assert "deleted" not in DeltaTable(tmp_path / "table-rejects").schema().to_arrow().names
    for other, told in (
        (RULE | {"key": "$.at"}, r"was filled by merge with key \$.id and order_by \$.at, and .* has key \$.at"),
        (RULE | {"key": "$.ids"}, r"merge.key: there is no \$.ids in spark.table.schema"),
        (RULE | {"order_by": "$.op.x"}, r"merge.order_by: there is no \$.op.x in spark.table.schema"),
        (RULE | {"delete_when": "max(data.at) > 1"}, "delete_when is not a condition on the columns"),
        (RULE | {"delete_when": "data.op ="}, "delete_when is not a condition on the columns"),
    ):
        with pytest.raises(ConfigError, match=told):
            ingest(tmp_path, wider, other)


def test_messages_of_kafka_are_merged_by_their_key(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """Without a schema: keys of messages, their timestamps, and null values that delete; without a key, a reject."""
    (topic,) = new_topics(kafka, 1, 2)
    sent = [
        Outgoing(0, b"old", b"a", timestamp_ms=BEGIN_MS + 2),
        Outgoing(1, b"new", b"a", timestamp_ms=BEGIN_MS + 3),
        Outgoing(0, None, b"b", timestamp_ms=BEGIN_MS + 5),
        Outgoing(1, b"late", b"b", timestamp_ms=BEGIN_MS + 4),
        Outgoing(0, b"\xff", b"\x00\xff", timestamp_ms=BEGIN_MS + 1),
        Outgoing(1, b"none", None, timestamp_ms=BEGIN_MS + 1),
    ]
    rule = {"key": "key", "delete_when": "value IS NULL"}
    document = config(kafka, [topic], tmp_path, "delta", merge=rule) | {"tags": {}, "dedup": {}}
    produce(kafka.bootstrap, topic, sent)
    job = Settings.model_validate(document)
    job_of(job)(job, lambda: False, once=True).run()
    found = {row["merge_key"]: (row["value"], row["deleted"]) for row in rows(tmp_path / "table")}
    assert found == {b"a": (b"new", False), b"b": (None, True), b"\x00\xff": (b"\xff", False)}
    aside = [(row["value"], row["reason"]) for row in rows(tmp_path / "table-rejects")]
    assert aside == [(b"none", "the message has no key")]


def test_rows_of_two_rules_are_never_in_one_table() -> None:
    """A table says by which rule it was filled: it goes on by that one alone, and appending is another rule."""
    rule, other = Merge(key="$.id"), Merge(key="$.id", order_by="$.at")
    filled = {"topic": "", "merge_key": "$.id", "merge_order": "timestamp", "deleted": ""}
    for comments, wanted in ((None, rule), (None, None), ({"topic": ""}, None), (filled, rule)):
        refuse_other_rule("t", comments, wanted)
    for comments, wanted in (({"topic": ""}, rule), (filled, None), (filled, other)):
        with pytest.raises(ConfigError, match="was filled by"):
            refuse_other_rule("t", comments, wanted)
