"""How a range of Kafka is read in a task: by the fast lane or by Python, and what is told of it. No broker is asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.sources.kafka.columns import KafkaColumns, LaneColumns
from sidecar.spark.ranges import kafka as module
from sidecar.spark.ranges.broker import RangeMessages
from tests.support.spark.tasks import TP, job_broker, make_settings


class FakeLane(SimpleNamespace):
    """A lane that reads nothing."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Reads with a setting of the lane, where it is usable or not, for this reason."""

    def read(setting: str, found: Any) -> RangeMessages:
        monkeypatch.setattr(module, "FastLane", FakeLane)
        monkeypatch.setattr(module, "lane_for", lambda *_: found)
        monkeypatch.setattr(module, "fetch_by_lane", lambda *_: iter(["by lane"]))
        monkeypatch.setattr(module, "fetch", lambda *_: iter(["by Python"]))
        kafka = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": [TP.topic], "lane": setting}
        return job_broker(make_settings("http://localhost:1/", source={"kafka": kafka})).read(tmp_path, TP, 0, 9)

    return read


def test_the_lane_reads_where_it_can(read: Any) -> None:
    """An empty reason is told: it is used."""
    lane = FakeLane()
    found = read("auto", lane)
    assert (list(found.runs), found.told, found.lane) == (["by lane"], "", found.lane)
    assert found.lane is not None
    assert isinstance(found.columns, LaneColumns)


@pytest.mark.parametrize(("setting", "told"), [("auto", "no compiler"), ("off", None)])
def test_python_reads_where_it_cannot(read: Any, setting: str, told: str | None) -> None:
    """The reason is told, unless nobody wants the lane."""
    found = read(setting, "no compiler")
    assert (list(found.runs), found.told, found.lane) == (["by Python"], told, None)
    assert isinstance(found.columns, KafkaColumns)
