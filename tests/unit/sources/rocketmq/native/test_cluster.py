"""Where a new group begins with `client: native`: its start is committed only where there is no commit. No broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.native.cluster import NativeCluster
from sidecar.sources.rocketmq.wire.frames import Code, Frame, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask

QUEUES = [TopicPartition("orders", number, "b") for number in range(2)]


class Answers:
    """A broker that has these commits, and logs that end at 50."""

    def __init__(self, *committed: int | None) -> None:
        self.committed = dict(zip(QUEUES, committed, strict=True))
        self.commits: list[tuple[int, int]] = []

    def ask(self, asks: Sequence[tuple[TopicPartition, Ask]]) -> list[Frame | None]:
        return [self._answer(tp, ask) for tp, ask in asks]

    def _answer(self, tp: TopicPartition, ask: Ask) -> Frame:
        offset = 50
        if ask.code == RequestCode.QUERY_CONSUMER_OFFSET:
            found = self.committed[tp]
            if found is None:
                return Frame(Code.QUERY_NOT_FOUND, 1, 1, "", {}, b"")
            offset = found
        if ask.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.commits.append((tp.partition, int(ask.fields["commitOffset"])))
        return Frame(Code.SUCCESS, 1, 1, "", {"offset": str(offset)}, b"")


def begun(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> list[tuple[int, int]]:
    """The offsets that a start commits."""
    settings = RocketMqSettings.model_validate({
        "client": "native", "native_path": "x", "name_servers": "a:1", "group": "g", "topics": ["orders"],
        "start": "latest",
    })  # fmt: skip
    cluster = NativeCluster(settings, "me")
    monkeypatch.setattr(NativeCluster, "queues", lambda _: QUEUES)
    brokers: Any = answers
    cluster.brokers = brokers
    try:
        assert cluster._begin() == ""
    finally:
        cluster.network.close()
    return answers.commits


def test_a_group_without_commits_begins_where_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the library would decide about its start."""
    assert sorted(begun(monkeypatch, Answers(None, None))) == [(0, 50), (1, 50)]


def test_a_group_with_a_commit_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a single queue is enough: the other queue is new."""
    assert begun(monkeypatch, Answers(7, None)) == []
