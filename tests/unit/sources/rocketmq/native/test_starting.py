"""What the child sets in the library before it starts it. The library is a stand-in."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.sources.rocketmq.native.child import __main__ as program
from sidecar.sources.rocketmq.native.child.__main__ import PULL_TIMEOUT_MAX_MS, PULL_TIMEOUT_MS, subscribe


class Consumer:
    """Notes calls."""

    _handle = 7

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._calls.append((name, *arguments))


@pytest.mark.parametrize(
    ("queues", "timeout_ms"),
    [(1, PULL_TIMEOUT_MS), (133, PULL_TIMEOUT_MS), (200, 12_000), (10_000, PULL_TIMEOUT_MAX_MS)],
)
def test_answers_to_pulls_have_a_time_by_the_number_of_queues(
    monkeypatch: pytest.MonkeyPatch, queues: int, timeout_ms: int
) -> None:
    """It is set before the library starts, which waits for 30 s otherwise, as long for a broker that was killed."""
    calls: list[Any] = []
    for name in (
        "Reader",
        "keep_packed",
        "ask_before",
        "ParkedBatches",
        "check_layout",
        "begin_at_first",
        "listen",
    ):
        monkeypatch.setattr(program, name, lambda *_: SimpleNamespace(check=lambda: None, take=None))
    monkeypatch.setattr(program, "await_answers", lambda handle, ms: calls.append(("timeout", handle, ms)))
    monkeypatch.setattr(program, "load", lambda _: SimpleNamespace(PushConsumer=lambda _: Consumer(calls)))
    dll = SimpleNamespace(
        SetPushConsumerLogLevel=lambda *_: None, SetPushConsumerLogFileNumAndSize=lambda *_: None,
    )  # fmt: skip
    modules = {
        "rocketmq.exceptions": SimpleNamespace(RocketMQException=OSError),
        "rocketmq.ffi": SimpleNamespace(dll=dll, _CLogLevel=SimpleNamespace(WARN=1)),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    subscribe({
        "folder": "x", "ahead_bytes_max": 1 << 20, "queues": queues, "held_bytes_max": 1, "first": 0, "threads": 4,
        "group": "g", "name_servers": "a:1", "instance": "i", "access_key": "", "log_files": 1, "log_file_mb": 1,
        "topics": {"orders": "*"},
    })  # fmt: skip
    names = [each[0] for each in calls]
    assert ("timeout", 7, timeout_ms) in calls
    assert names.index("timeout") < names.index("start")
    assert names.index("subscribe") < names.index("start")
