"""Where a job begins to read queues of RocketMQ. No broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.requests import Subscription
from sidecar.spark.ranges import rocketmq
from sidecar.spark.ranges.broker import ExpiredError

SETTINGS = RocketMqSettings.model_validate({"name_servers": "localhost:1", "topics": ["orders"], "group": "g"})
RANGES = rocketmq.RocketMqRanges("state", "envelope", SETTINGS, "*", retried=True)
TP = TopicPartition("orders", 0, "broker-a")


class FakeInquiry:
    """Answers about one queue.

    Args:
        offsets: That of the group, and the bounds of the log.
    """

    def __init__(self, *offsets: int) -> None:
        self._offsets = offsets
        self.asks = SimpleNamespace(committed=str, low=str, high=str)

    def __enter__(self) -> FakeInquiry:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queues(self) -> list[TopicPartition]:
        """The one."""
        return [TP]

    def answers(self, *_: object, **__: object) -> list[Frame]:
        """The offsets, in their order."""
        return [Frame(Code.SUCCESS, 1, 1, "", {"offset": str(offset)}, b"") for offset in self._offsets]


@pytest.mark.parametrize(
    ("committed", "event"),
    [
        (2, {"event": "offset.expired", "expired": 3}),
        (99, {"event": "partition.truncated"}),
    ],
)
def test_a_job_begins_at_the_start_of_a_log_without_the_groups_offset(
    monkeypatch: pytest.MonkeyPatch, committed: int, event: dict[str, Any]
) -> None:
    """What expired is counted; beyond the end, as after a topic was created again, no message is known to be read."""
    monkeypatch.setattr(rocketmq, "Inquiry", lambda *_, **__: FakeInquiry(committed, 5, 10))
    with capture_logs() as events:
        assert RANGES.group_offsets() == {"orders": {"broker-a:0": 5}}
    fields = {"topic": "orders", "partition": 0, "broker": "broker-a", "committed": committed, "log_start": 5}
    told = {"log_end": 10, "log_level": "error", "action": "going on at the log's start"}
    assert events == [fields | told | event]


def test_messages_that_expired_since_a_range_was_planned_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the offset and the start of the log; the next start decides."""
    moved = Frame(Code.PULL_OFFSET_MOVED, 1, 1, "", {"nextBeginOffset": "9"}, b"")
    reader = rocketmq.QueueReader(SETTINGS, TP)
    monkeypatch.setattr(reader, "pull", lambda *_: moved)
    with pytest.raises(ExpiredError, match=r"read to 2, and its log begins at 9 by now: 7 offsets expired") as caught:
        list(reader.messages(Subscription("orders"), 2, 12))
    assert (caught.value.low, caught.value.exit_code) == (9, 69)
