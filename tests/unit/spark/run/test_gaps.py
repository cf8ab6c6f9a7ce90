"""What a driver does about a position that the broker's log does not have any more. No Spark, and no broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.core.records import TopicPartition
from sidecar.errors import EXIT_CONFIG, PositionError, UnknownTopicError
from sidecar.spark.driver import QueryError
from sidecar.spark.ranges import kafka
from sidecar.spark.ranges.broker import LogExtent
from sidecar.spark.ranges.shared import write as write_file
from sidecar.spark.run.job import RunReader, SparkRun
from tests.support.spark.tasks import job_broker, make_settings

LOW = 16
DATA_LOSS = "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost"
TOLD = r"orders\[0\] was read to 10, and its log begins at 16: 6 offsets expired"


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that begin at `LOW`."""
    bounds = {TopicPartition("orders", 0): LogExtent(LOW, 30), TopicPartition("orders", 1): LogExtent(0, 30)}
    found = SimpleNamespace(bounds=lambda: bounds, close=lambda: None)
    monkeypatch.setattr(kafka.KafkaRanges, "logs", lambda _: found)


def write(folder: Path, *, offsets: dict[int, int], committed: int, first: int | None = None) -> Path:
    """Spark's checkpoint, with the offset of partition 0 of each micro-batch; partition 1 is at 5."""
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    for number, offset in offsets.items():
        text = f'v1\n{{}}\n{{"orders":{{"0":{offset},"1":5}}}}'
        (folder / "offsets" / str(number)).write_text(text)
        if number <= committed:
            (folder / "commits" / str(number)).write_text("v1\n{}")
    if first is not None:
        (folder / "sources" / "0" / "0").write_text(f'v1\n{{"orders":{{"0":{first},"1":5}}}}')
    return folder


def made(folder: Path, on_gap: str = "stop", **checkpoint: Any) -> RunReader:
    """The reader of this checkpoint."""
    settings = make_settings("http://localhost:1/", spark={"checkpoint": str(folder), "on_gap": on_gap})
    assert settings.spark is not None
    query = write(folder / "query", **checkpoint)
    return RunReader(settings, settings.spark, job_broker(settings), query, folder / "sidecar", once=False)


@pytest.mark.parametrize(
    ("checkpoint", "is_behind"),
    [
        ({"offsets": {}, "committed": -1}, False),
        ({"offsets": {0: 10}, "committed": 0}, True),
        ({"offsets": {0: LOW}, "committed": 0}, False),
        ({"offsets": {0: 10, 1: 20}, "committed": 0}, True),
        ({"offsets": {0: 20}, "committed": -1, "first": 10}, True),
        ({"offsets": {0: 20}, "committed": -1}, False),
    ],
)
def test_a_gap_is_seen_before_the_query_starts(tmp_path: Path, checkpoint: dict[str, Any], is_behind: bool) -> None:
    """Its position is that behind the last micro-batch, or before the pending one; the job stops, or goes on."""
    if not is_behind:
        assert made(tmp_path, **checkpoint).first_gap() is None
        return
    with pytest.raises(PositionError, match=TOLD) as caught:
        made(tmp_path, **checkpoint).first_gap()
    assert caught.value.exit_code == EXIT_CONFIG
    found = made(tmp_path / "other", "log_start", **checkpoint).first_gap()
    assert found is not None
    assert (found[0], f"read to 10, and its log begins at {LOW}" in found[1]) == (TopicPartition("orders", 0), True)


def test_a_run_with_a_gap_reads_as_with_the_client(tmp_path: Path) -> None:
    """So does the next run while a micro-batch of it is pending; the start of a new checkpoint is kept for it."""
    found = made(tmp_path, "log_start", offsets={0: 20}, committed=-1, first=10)
    with capture_logs() as events:
        assert found.leaves_connector(0)
    assert events[0]["event"] == "connector.not_used"
    assert (tmp_path / "sidecar" / "first").read_text() == '{"orders":{"0":10,"1":5}}'
    without = made(tmp_path / "b", "log_start", offsets={0: LOW, 1: 20}, committed=0)
    assert not without.leaves_connector(1)
    (tmp_path / "b" / "sidecar").mkdir()
    (tmp_path / "b" / "sidecar" / "reader").write_text("client")
    assert without.leaves_connector(1)
    assert not without.leaves_connector(-1)


@pytest.mark.parametrize(("on_gap", "code"), [("stop", 78), ("log_start", 69)])
def test_an_error_of_the_connector_gets_position_and_start(tmp_path: Path, on_gap: str, code: int) -> None:
    """Where the next start goes on, the code lets a service manager start it."""
    settings = make_settings("http://localhost:1/", spark={"checkpoint": str(tmp_path), "on_gap": on_gap})
    job, problems = SparkRun(settings, lambda: False), list[str]()
    write(tmp_path / "query", offsets={0: 10}, committed=0)
    ends: Any = SimpleNamespace(ended=problems.append)
    with pytest.raises((PositionError, QueryError), match=TOLD) as caught:
        job._fail(ends, RuntimeError(DATA_LOSS))
    assert caught.value.exit_code == code
    assert "was read to 10" in problems[0]


@pytest.mark.parametrize("error", ["java.net.SocketException: Connection reset", DATA_LOSS])
def test_an_error_without_a_gap_is_told_as_it_is(tmp_path: Path, error: str) -> None:
    """For example of a topic that was deleted while the query ran."""
    settings = make_settings("http://localhost:1/", spark={"checkpoint": str(tmp_path)})
    write(tmp_path / "query", offsets={0: 20}, committed=0)
    ends: Any = SimpleNamespace(ended=lambda problem: None)
    with pytest.raises(QueryError, match=r"the query ended: .*(reset|lost)"):
        SparkRun(settings, lambda: False)._fail(ends, RuntimeError(error))


@pytest.mark.parametrize(("known", "kind"), [(["orders"], PositionError), ([], UnknownTopicError)])
def test_a_topic_that_was_read_and_is_gone_is_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: list[str], kind: type[Exception]
) -> None:
    """A topic that was never read may still be created."""
    job = SparkRun(make_settings("http://localhost:1/", spark={"checkpoint": str(tmp_path)}), lambda: False)

    def missing() -> str:
        raise UnknownTopicError("Kafka does not know the topic orders", ["orders"])

    monkeypatch.setattr(job, "_broker", SimpleNamespace(await_cluster=missing))
    for topic in known:
        write_file(job._folder.path / "topics" / topic, b"id")
    with pytest.raises(kind, match="does not know the topic orders") as caught:
        job._open_checkpoint()
    assert caught.value.exit_code == (78 if known else 69)  # type: ignore[attr-defined]
