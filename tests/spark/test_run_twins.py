"""Messages whose keys twins held in their task: what the driver makes of them after the commit. No Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.spark.ranges.kafka import fetch
from sidecar.spark.run.deliver import Task
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import TwinFiles
from sidecar.spark.run.pinned import open_checkpoint
from sidecar.spark.run.progress import RunProgress
from sidecar.spark.run.writer import RangeWriter, TaskReport
from sidecar.state.store import Store
from tests.scenarios.ledger import ledger, value
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce
from tests.support.postgresql import Database
from tests.support.process import wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.spark.deliveries import dead_letters
from tests.support.spark.tasks import begin, deliver, make_settings, plan_of, progress_of

POISON, TWIN, THIRD, OTHER = value(1, 0, note="poison"), value(1, 1), value(1, 2), value(2, 0)


@contextmanager
def committed(broker: Broker, topic: str, database: Database, root: Path) -> Iterator[tuple[Settings, Receiver]]:
    """A micro-batch of three partitions whose tasks ran one after the other: the first message is a dead letter."""
    messages = (0, POISON), (1, TWIN), (1, OTHER), (2, THIRD)
    produce(broker.bootstrap, topic, [Outgoing(partition, body, None, []) for partition, body in messages])
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        kafka = {"bootstrap_servers": broker.bootstrap, "group_id": topic, "topics": [topic]}
        settings = make_settings(
            receiver.url, source={"kafka": kafka},
            tags={"from": "topic"}, dedup=ledger(database, database.schema()), state={"dir": str(root / "state")},
        )  # fmt: skip
        query, folder = root / "query", RunFolder(root / "sidecar")
        checkpoint = open_checkpoint([query], folder.path, settings, "cluster")
        outcomes, plan = [], plan_of(settings, folder.path, checkpoint)
        for partition, end in enumerate((1, 2, 1)):
            tp = TopicPartition(topic, partition)
            task = Task(tp, checkpoint.scope("id"), "", 0, "0", again=False)
            runs = fetch(settings.source.kafka, tp, 0, end)
            outcomes.append(deliver(plan, task, KafkaColumns(), runs))
        assert [one.books.in_flight for one in outcomes] == [0, 1, 1], "nothing waited, and the others were carried on"
        RangeWriter(plan).commit([TaskReport(one) for one in outcomes], 0)
        begin(query, 0, "offsets", "commits")
        yield settings, receiver


def resolve(settings: Settings, root: Path) -> RunProgress:
    """A driver that finds the micro-batch committed."""
    with closing(Store(root / "state")) as state:
        progress = progress_of(settings, RunFolder(root / "sidecar"), root / "query", state)
        progress.open()
        try:

            def is_done() -> bool:
                progress.settle()
                return progress.at_rest

            wait_until(is_done, 60, "all is settled", detail=progress.latest)
            progress.settle(last=True)
        finally:
            progress.close()
    return progress


def test_the_next_in_line_is_delivered_when_the_winner_is_a_dead_letter(
    kafka: Broker, postgresql: Database, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """One of the two that lost is delivered, the other is its duplicate; a new driver has their books."""
    with committed(kafka, make_topic(3), postgresql, tmp_path) as (settings, receiver):
        progress = resolve(settings, tmp_path)
        assert Counter(row[3] for row in receiver.rows()) == Counter([value_hash(TWIN), value_hash(OTHER)])
        totals = progress.latest().totals
        assert (totals.consumed, totals.delivered, totals.duplicate, totals.in_flight) == (2, 1, 1, 0)
        assert totals.balanced and not progress.latest().problems
    assert dead_letters(tmp_path / "state").total() == 1
    assert not TwinFiles(tmp_path / "sidecar").batches()


def test_what_is_gone_from_the_broker_is_a_dead_letter_and_its_twin_goes_on(
    kafka: Broker, postgresql: Database, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A message that expired while it waited is told of, and does not hold up the next one with its key."""
    topic = make_topic(3)
    with committed(kafka, topic, postgresql, tmp_path) as (settings, receiver):
        kafka.delete_records(topic, {1: 1})
        resolve(settings, tmp_path)
        assert Counter(row[3] for row in receiver.rows()) == Counter([value_hash(THIRD), value_hash(OTHER)])
    assert sorted(reason for *_, reason in dead_letters(tmp_path / "state"))[0] == "HTTP 400"
    assert dead_letters(tmp_path / "state").total() == 2


def test_a_ledger_is_not_removed_while_messages_wait_in_it(
    kafka: Broker, postgresql: Database, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The file without the ledger is refused until they are settled."""
    with committed(kafka, make_topic(3), postgresql, tmp_path) as (settings, _):
        without = settings.model_copy(update={"dedup": settings.dedup.model_copy(update={"ledger": None})})
        with pytest.raises(ConfigError, match="wait for their twins"):
            open_checkpoint([tmp_path / "query"], tmp_path / "sidecar", without, "cluster")
