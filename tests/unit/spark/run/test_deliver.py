"""The delivery of a range in a task: what it is fed, and when it ends. The delivery itself is tested on Spark."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.spark.run import deliver as module


def test_each_run_of_a_range_is_delivered_before_the_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order; the outcome is that of the whole range."""
    calls: list[str] = []

    class Delivery:
        def __init__(self, *_: object) -> None: ...

        def feed(self, run: str) -> None:
            calls.append(run)

        def finish(self) -> str:
            calls.append("end")
            return "outcome"

    monkeypatch.setattr(module, "_Delivery", Delivery)
    unused: Any = None
    outcome: Any = module.deliver(unused, unused, unused, ["first", "second"])  # type: ignore[list-item]
    assert (outcome, calls) == ("outcome", ["first", "second", "end"])
