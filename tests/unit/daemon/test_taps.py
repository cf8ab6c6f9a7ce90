"""Messages are shown as they pass: which, how many, and to how many. Nothing is done while nobody looks."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sidecar.core.records import DeadLetter, TopicPartition
from sidecar.daemon.status.taps import ROWS_MAX, SILENCE_S, TAPS_MAX, Tap, Taps
from sidecar.errors import UnavailableError
from sidecar.runtime.dead_letters import DeadLetterWriter
from tests.support.shell import Shell, rows


class Looked:
    """A core, and those who look at it."""

    def __init__(self) -> None:
        self.shell = Shell()
        self.letters = cast(DeadLetterWriter, SimpleNamespace(tap=None))
        pipeline = self.shell.pipeline
        reading = pipeline.intake.reading
        pipeline.intake.change(replace(reading, tags=lambda tp, messages: [b"tag"] * len(messages)))
        self.hooks = pipeline.intake, pipeline.delivery.delivered
        self.taps = Taps(pipeline, self.letters, lambda *_: None)

    def open(self, *outcomes: str, step: int = 1, group: str | None = None) -> dict[str, Any]:
        """A tap."""
        return self.taps.ask("open", {"outcomes": list(outcomes), "group": group, "step": step})

    def offsets(self, tap: dict[str, Any]) -> list[int]:
        """The offsets of the rows that wait for it."""
        return [row["offset"] for row in self.taps.ask("read", tap)["rows"]]

    @property
    def is_off(self) -> bool:
        """Whether all hooks are empty."""
        return all(hook.tap is None for hook in self.hooks) and self.letters.tap is None


def test_delivered_and_duplicates_are_shown() -> None:
    """A batch when it was accepted, and what was read again; what is open is not called a duplicate."""
    looked = Looked()
    delivered, duplicate = looked.open("delivered"), looked.open("duplicate")
    looked.shell.read(*rows(0, 4))
    looked.shell.run(10)
    assert looked.offsets(duplicate) == []
    assert looked.offsets(delivered) == [0, 1, 2, 3, 4]
    looked.shell.read(*rows(2, 6))
    looked.shell.run(10)
    assert looked.offsets(duplicate) == [2, 3, 4]
    assert looked.offsets(delivered) == [5, 6]


def test_nothing_is_done_when_nobody_looks() -> None:
    """The hooks are empty before the first tap, after the last one is closed, and after one was silent."""
    looked = Looked()
    assert looked.is_off
    tap = looked.open("delivered")
    assert not looked.is_off
    looked.taps.ask("close", tap)
    assert looked.is_off
    silent = looked.open("delivered")
    looked.taps._taps[silent["tap"]].read_s = time.monotonic() - SILENCE_S
    looked.shell.read(*rows(0, 4))
    looked.shell.run(10)
    assert looked.is_off
    with pytest.raises(UnavailableError, match="closed"):
        looked.taps.ask("read", silent)


@pytest.mark.parametrize("sizes", [[1] * 1_000, [500, 500], [3, 997], [1_000]])
def test_one_of_so_many_is_picked_however_they_come(sizes: list[int]) -> None:
    """Every hundredth of all messages, whether they are read one by one or together."""
    tap, begin, picked = Tap(frozenset(), None, 100), 0, []
    for size in sizes:
        picked += [begin + place for place in tap.picked(size)]
        begin += size
    assert picked == list(range(0, 1_000, 100))


def test_what_is_not_fetched_is_left_out_and_counted() -> None:
    """Rows that wait are bounded; the number of the others is told once."""
    tap = Tap(frozenset({"delivered"}), None, 1)
    for number in range(ROWS_MAX + 7):
        tap.show("delivered", "a", lambda n=number: {"offset": n})  # type: ignore[misc]
    found = tap.read()
    assert (len(found["rows"]), found["dropped"]) == (ROWS_MAX, 7)
    assert tap.read() == {"rows": [], "dropped": 0}


def test_only_what_is_wanted_is_shown() -> None:
    """By outcome, and by the label of the group."""
    tap = Tap(frozenset({"delivered"}), "caf%E9", 1)
    for outcome, group in (
        ("delivered", "caf\udce9"),
        ("delivered", "tea"),
        ("dead", "caf\udce9"),
        ("delivered", None),
    ):
        tap.show(outcome, group, dict)
    assert tap.read()["rows"] == [{"outcome": "delivered", "group": "caf%E9"}]


def test_there_is_a_limit_of_those_who_look() -> None:
    """One more than four is refused with a reason."""
    looked = Looked()
    for _ in range(TAPS_MAX):
        looked.open("dead")
    with pytest.raises(UnavailableError, match="look at this daemon already"):
        looked.open("dead")


@pytest.mark.parametrize(
    ("name", "fields"),
    [("open", {"outcomes": ["lost"], "step": 1}), ("open", {"outcomes": [], "step": 0}), ("shut", None)],
)
def test_a_strange_request_is_refused(name: str, fields: dict[str, Any] | None) -> None:
    """An outcome, a step or a request that there is not."""
    looked = Looked()
    with pytest.raises(ValueError, match=r"outcomes are of|cannot be asked"):
        looked.taps.ask(name, fields if fields is not None else looked.open("dead"))


def test_a_fault_ends_the_taps_and_not_the_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever goes wrong in showing a message, the message goes on."""
    looked = Looked()
    looked.open("delivered", "duplicate", "filtered")
    intake = looked.shell.pipeline.intake
    intake.change(replace(intake.reading, tags=lambda tp, messages: [1 / 0]))  # type: ignore[list-item]
    assert intake.tap is not None
    intake.tap(intake.reading, TopicPartition("t", 0), [1], None)  # type: ignore[arg-type]
    assert looked.is_off
    assert "tap.failed" in capsys.readouterr().out


def test_a_delayed_message_has_its_offset_at_the_source() -> None:
    """Positions in the store are not shown: where the offset is unknown, there is none."""
    looked = Looked()
    taps = Taps(looked.shell.pipeline, looked.letters, lambda tp, position: {1 << 60: 7}.get(position))
    tap = taps.ask("open", {"outcomes": ["dead"], "step": 1})
    store = TopicPartition("t", 0).store
    taps.given_up([DeadLetter(store, position, "s", "g", "why", None) for position in (1 << 60, 2 << 60)])
    one, other = taps.ask("read", tap)["rows"]
    assert (one["offset"], one["delayed"], "offset" in other) == (7, True, False)
