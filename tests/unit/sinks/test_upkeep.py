"""Maintenance of a table: when it is due, over restarts, and that its failure does nothing but count."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from sidecar.config.table_layout import Maintenance
from sidecar.sinks.table import upkeep as module
from sidecar.sinks.table.upkeep import Upkeep, no_counts

HOURLY = Maintenance.model_validate({"optimize": "1h", "vacuum": "1d"})


class Kept:
    """A text in memory; it fails while it is told to."""

    def __init__(self, text: bytes = b"") -> None:
        self.text = text
        self.broken = False

    def read(self) -> bytes:
        """The text."""
        if self.broken:
            raise OSError(5, "Input/output error")
        return self.text

    def write(self, text: bytes) -> None:
        """Another text."""
        if self.broken:
            raise OSError(5, "Input/output error")
        self.text = text


class Clock:
    """The time of day, as the tests set it."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def time(self) -> float:
        """It."""
        return self.now_s

    def monotonic(self) -> float:
        """It."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the module."""
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_operations_run_at_their_intervals(clock: Clock) -> None:
    """The first run comes one interval after the first start; a restart neither repeats nor puts off."""
    kept, done, counts = Kept(), list[tuple[str, float]](), no_counts(HOURLY)
    begun_s = clock.now_s

    def upkeep() -> Upkeep:
        steps = {name: lambda name=name: done.append((name, clock.now_s - begun_s)) for name in ("optimize", "vacuum")}
        return Upkeep("t", HOURLY, steps, kept.read, kept.write, counts)

    one = upkeep()
    one.tend()
    assert (done, one.wait_s()) == ([], 3_600)
    for hour in range(1, 26):
        clock.now_s = begun_s + 3_600 * hour - 1
        one.tend()
        clock.now_s += 1
        one = upkeep() if hour % 2 else one
        one.tend()
    assert done == [
        (name, 3_600.0 * hour)
        for hour in range(1, 26)
        for name in ("optimize", "vacuum")
        if name == "optimize" or hour == 24
    ]
    assert counts == {("optimize", "ok"): 25, ("optimize", "failed"): 0, ("vacuum", "ok"): 1, ("vacuum", "failed"): 0}
    clock.now_s -= 1e6
    assert upkeep().wait_s() <= 3_600, "a clock that was set back puts nothing off for long"


@pytest.mark.parametrize("text", [b"", b"{", b'{"optimize": "x"}', b"[1]", b'{"optimize": 1e99}'])
def test_a_failure_is_logged_and_counted(clock: Clock, text: bytes) -> None:
    """What an operation raises goes no further, whatever is kept, and the next try is one interval later."""
    kept, tried, counts = Kept(text), list[float](), no_counts(Maintenance.model_validate({"optimize": "1h"}))

    def fail() -> None:
        tried.append(clock.now_s)
        raise RuntimeError("two\nlines")

    hourly = Maintenance.model_validate({"optimize": "1h"})
    one = Upkeep("t", hourly, {"optimize": fail}, kept.read, kept.write, counts)
    one.tend()
    kept.broken = True
    with capture_logs() as events:
        for _ in range(4):
            clock.now_s += 1_800
            one.tend()
    assert len(tried) == 2
    assert counts == {("optimize", "ok"): 0, ("optimize", "failed"): 2}
    failed = [event for event in events if event["event"] == "table.maintenance_failed"]
    assert [(event["operation"], event["reason"]) for event in failed] == [("optimize", "two lines")] * 2
