"""`sidecar spark run` from RocketMQ, on a real node: plans and ranges without Spark, then jobs in one session."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from structlog.testing import capture_logs

from sidecar.config.model import Settings
from sidecar.core.records import DeadLetter, TopicPartition
from sidecar.errors import ConfigError, PositionError, UnavailableError
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.wire.requests import MemberAsks, Subscription
from sidecar.spark.ranges.walk import Span
from sidecar.spark.run.deliver import Task
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import LetterFiles, Outcome
from sidecar.spark.run.pinned import open_checkpoint
from sidecar.spark.run.progress import RunProgress
from sidecar.spark.run.range_source import RangePlan, RangePlanner, job_walk
from sidecar.spark.run.table_job import job_of
from sidecar.spark.run.writer import RangeWriter, TaskReport
from sidecar.state.store import Store
from tests.scenarios.ledger import ledger, value
from tests.support.kafka import unique
from tests.support.postgresql import Database
from tests.support.process import wait_until
from tests.support.produce import Outgoing
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import BROKER, Message, Node
from tests.support.spark.deliveries import alive, assert_dead, dead_letters
from tests.support.spark.rocketmq import (
    QUEUES,
    QueueReceiver,
    http_config,
    rocketmq_config,
    send,
    source,
    tally_bodies,
    waiting,
)
from tests.support.spark.tables import SCHEMA, forget_commits, rows
from tests.support.spark.tasks import begin, deliver, job_broker, plan_of, progress_of
from tests.support.workload import POISON, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = ReadMaxRows(1_000_000)


class Reader:
    """Plans and reads as driver and tasks do.

    Args:
        document: The configuration.
        folder: The run's.
    """

    def __init__(self, document: dict[str, Any], folder: Path) -> None:
        self.settings = Settings.model_validate(document)
        self.folder = RunFolder(folder)
        self.source = job_broker(self.settings)
        stood = self.source.group_offsets()
        self.planner = RangePlanner(RangePlan(job_walk(self.source, 1_000_000), folder, stood))
        self.at = self.planner.initialOffset()

    def plan(self) -> list[Span]:
        """The ranges of the next micro-batch."""
        end = json.loads(json.dumps(self.planner.latestOffset(self.at, LIMIT)))
        ranges, self.at = [replace(found.value, is_first=False) for found in self.planner.partitions(self.at, end)], end
        return ranges

    def bodies(self, span: Span) -> Iterator[bytes]:
        """The bodies of a range."""
        found = self.source.read(self.folder.path, span.tp, span.start, span.end)
        for run in found.runs:
            yield from (body or b"" for body in found.columns.values(run.messages))


@pytest.fixture
def orders(rocketmq: Node) -> str:
    """A topic of two queues."""
    return rocketmq.create_topic(unique("orders"), 2)


def file_of(node: Node, topic: str, **sections: Any) -> dict[str, Any]:
    """A configuration for a new group that wants two tags of three."""
    base = {"source": source(node, topic), "tags": {"subscribe": "a || b"}, "sink": {"http": {"url": "http://h:1/"}}}
    return base | {"state": {"dir": "."}} | sections


def some(numbers: range) -> list[Message]:
    """A message of each number in each queue, with one of three tags."""
    return [Message(b"%d" % i, "abc"[i % 3], queue=queue) for i in numbers for queue in range(2)]


def test_it_begins_where_the_daemon_stands_and_reads_what_was_handed_back(
    rocketmq: Node, orders: str, tmp_path: Path
) -> None:
    """Brokers leave out unwanted tags; a queue without a commit is read from its start, and so is the retry topic."""
    sent = some(range(9))
    there = dict(zip(rocketmq.send(orders, sent, queues=2), sent, strict=True))
    document = file_of(rocketmq, orders, dead_letters={"rocketmq": {"delay_level": 1}})
    group = document["source"]["rocketmq"]["group"]
    rocketmq.create_group(group)
    rocketmq.commit(group, orders, 0, 4)
    reader = Reader(document, tmp_path)
    assert reader.source.await_cluster() == "DefaultCluster"
    ranges = reader.plan()
    assert ranges == [
        Span(TopicPartition(orders, 0, BROKER), "", 4, 9),
        Span(TopicPartition(orders, 1, BROKER), "", 0, 9),
    ]
    for span in ranges:
        places = [(span.tp.partition, offset) for offset in range(span.start, span.end)]
        assert list(reader.bodies(span)) == [there[place].body for place in places if there[place].tag != "c"]
    with ExitStack() as stack:
        letters = reader.source.open_letters(LetterFiles(tmp_path / "letters", "0"), stack)
        letters.store([DeadLetter(TopicPartition(orders, 1, BROKER), 3, "s", "a", "r", None)])
    (retry,) = wait_until(reader.plan, 30, "it is back")
    assert retry == Span(TopicPartition(f"%RETRY%{group}", 0, BROKER), "", 0, 1)
    assert list(reader.bodies(retry)) == [there[1, 3].body]
    reader.planner.stop()


def test_a_start_is_for_a_group_that_never_committed_and_not_for_what_was_handed_back(
    rocketmq: Node, orders: str, tmp_path: Path
) -> None:
    """A new group begins at the end of the log, but reads its retry topic whole; brokers filter by SQL."""
    rocketmq.send(orders, [Message(b"%d" % i, queue=0, properties={"n": str(i)}) for i in range(8)], queues=2)
    document = file_of(rocketmq, orders, tags={})
    document["source"]["rocketmq"] |= {"start": "latest", "sql": "n > 9"}
    group = document["source"]["rocketmq"]["group"]
    rocketmq.create_topic(f"%RETRY%{group}", 1)
    rocketmq.send(f"%RETRY%{group}", [b"back"], queues=1)
    reader = Reader(document, tmp_path)
    assert reader.source.await_cluster()
    sent = [Message(b"%d" % i, queue=0, properties={"n": str(i)}) for i in range(8, 12)]
    there = dict(zip(rocketmq.send(orders, sent, queues=2), sent, strict=True))
    ranges = reader.plan()
    assert ranges == [
        Span(TopicPartition(f"%RETRY%{group}", 0, BROKER), "", 0, 1),
        Span(TopicPartition(orders, 0, BROKER), "", 8, 12),
    ]
    above_9 = [body for offset in range(8, 12) if int(body := there[0, offset].body) > 9]
    assert [list(reader.bodies(span)) for span in ranges] == [[b"back"], above_9]
    reader.planner.stop()
    document["source"]["rocketmq"]["sql"] = "n >"
    with pytest.raises(ConfigError, match=r"cannot filter by source\.rocketmq\.sql"):
        job_broker(Settings.model_validate(document)).await_cluster()


def test_a_member_of_the_group_is_refused(rocketmq: Node, orders: str, tmp_path: Path) -> None:
    """While a daemon reads with the group, nothing starts."""
    settings = Settings.model_validate(file_of(rocketmq, orders))
    assert settings.source.rocketmq is not None
    job_broker(settings).refuse_members()
    with Inquiry(settings.source.rocketmq) as member:
        member.answers([(BROKER, MemberAsks(member.asks).heartbeat([Subscription(orders)]))])
        with pytest.raises(UnavailableError, match="has 1 members: a daemon reads with it"):
            job_broker(settings).refuse_members()


@pytest.mark.parametrize("when", [pytest.param("between ranges", marks=pytest.mark.proof), "in a range"])
def test_a_topic_that_was_created_again_and_filled_further_is_noticed(
    rocketmq: Node, orders: str, tmp_path: Path, when: str
) -> None:
    """The last message of the last range is not there any more, or the first one of this range is not."""

    def create_again() -> None:
        rocketmq.delete_topic(orders)
        rocketmq.create_topic(orders, 2)
        rocketmq.send(orders, some(range(900)), queues=2)

    rocketmq.send(orders, some(range(600)), queues=2)
    reader = Reader(file_of(rocketmq, orders, tags={}), tmp_path)
    first, second = reader.plan()
    assert len(list(reader.bodies(first))) == 600
    if when == "between ranges":
        create_again()
        (again, _) = reader.plan()
        assert again == Span(TopicPartition(orders, 0, BROKER), "", 600, 900)
        with pytest.raises(PositionError, match="was deleted and created again"):
            next(reader.bodies(again))
    else:
        read = reader.bodies(second)
        next(read)
        create_again()
        with pytest.raises(PositionError, match="was deleted and created again"):
            list(read)
    reader.planner.stop()


def run_once(document: dict[str, Any]) -> list[Any]:
    """Take what is there; the log events."""
    settings = Settings.model_validate(document)
    with capture_logs() as events:
        job_of(settings)(settings, lambda: False, once=True).run()
    assert not [event for event in events if event["event"] == "micro_batch.unbalanced"]
    return list(events)


def test_each_wanted_message_is_delivered_once(spark: SparkSession, rocketmq: Node, tmp_path: Path) -> None:
    """Ids repeated over micro-batches and runs, compressed bodies, poison: the daemon's names, books and letters."""
    topic, expected = waiting(rocketmq, 1_500, poison_every=500)
    with QueueReceiver(expected) as receiver:
        document = http_config(source(rocketmq, topic), receiver.url) | {
            "spark": {"checkpoint": str(tmp_path / "checkpoint")},
            "state": {"dir": str(tmp_path / "state")},
            "admin": {"listen": "off"},
        }
        document["batch"]["span_max"] = 1_000
        events = run_once(document)
        known = [(place[1], id_) for place, id_ in expected.ids.items()][:100]
        twins = [Outgoing(queue, b"again", None, [("tag", b"paid"), ("id", id_)]) for queue, id_ in known]
        send(rocketmq, topic, twins, expected)
        events += run_once(document)
        assert receiver.tally().exact
        names = {part["part"] for part in receiver.parts()}
        assert all(re.fullmatch(rf"{topic}@\w{{8}}:{BROKER}:\d:\d+-\d+", name) for name in names)
    assert_dead(tmp_path / "state", expected)
    done = [event for event in events if event["event"] == "micro_batch.delivered"]
    assert sum(event["delivered"] for event in done) == len(alive(expected))
    assert len(done) >= 3


def test_each_wanted_message_is_a_row_once(spark: SparkSession, rocketmq: Node, tmp_path: Path) -> None:
    """In one of two tables, also where Spark repeats the last micro-batch."""
    topic, expected = waiting(rocketmq, 1_500, poison_every=50)
    document = rocketmq_config(source(rocketmq, topic), tmp_path, "parquet", schema=SCHEMA) | {
        "batch": {"span_max": 1_000}
    }
    run_once(document)
    forget_commits(tmp_path / "checkpoint")
    work = Workload([topic], QUEUES, 500, seed=2, odd=False)
    send(rocketmq, topic, (one for _, one in work.some(500)), expected)
    run_once(document)
    table, aside = rows(tmp_path / "table"), rows(tmp_path / "table-rejects")
    assert tally_bodies(table + aside, expected).exact
    assert aside and all(row["value"].startswith(POISON) for row in aside)
    assert {row["batch_id"].split(":")[1] for row in table} == {BROKER}


def test_a_twin_that_waits_is_delivered_when_the_first_is_a_dead_letter(
    rocketmq: Node, orders: str, postgresql: Database, tmp_path: Path
) -> None:
    """With a ledger, the driver reads a message of another queue again, and delivers it under its place."""
    first, twin = value(1, 0, note="poison"), value(1, 1)
    rocketmq.send(orders, [Message(first, queue=0), Message(twin, queue=1)], queues=2)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        reader = Reader(
            file_of(
                rocketmq, orders, sink={"http": {"url": receiver.url, "timeout": "10s"}}, tags={},
                state={"dir": str(tmp_path / "state")}, dedup=ledger(postgresql, postgresql.schema(), "3m"),
                retry={"backoff": "1ms", "backoff_max": "20ms"},
            ),
            tmp_path / "sidecar",
        )  # fmt: skip
        settings, folder, query = reader.settings, reader.folder, tmp_path / "query"
        checkpoint = open_checkpoint([query], folder.path, settings, "cluster")
        outcomes, plan = list[Outcome](), plan_of(settings, folder.path, checkpoint)
        for span in reader.plan():
            tp = span.tp
            found = reader.source.read(folder.path, tp, span.start, span.end)
            task = Task(tp, checkpoint.scope(tp.topic), "", 0, "0", again=False)
            outcomes.append(deliver(plan, task, found.columns, found.runs))
        assert [one.books.in_flight for one in outcomes] == [0, 1]
        RangeWriter(plan).commit([TaskReport(one) for one in outcomes], 0)
        begin(query, 0, "offsets", "commits")
        with closing(Store(tmp_path / "state")) as state:
            progress = progress_of(settings, folder, query, state)
            progress.open()
            try:
                wait_until(lambda: _is_settled(progress), 60, "all is settled", detail=progress.latest)
                progress.settle(last=True)
            finally:
                progress.close()
        assert [row[:4] for row in receiver.rows()] == [(orders, 1, 0, value_hash(twin))]
    assert next(iter(dead_letters(tmp_path / "state")))[:3] == (orders, 0, 0)
    reader.planner.stop()


def _is_settled(progress: RunProgress) -> bool:
    progress.settle()
    return progress.at_rest
