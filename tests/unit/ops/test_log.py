"""The log set-up: lines as they reach the stream, and the limit on repeated ones."""

from __future__ import annotations

import io
import json
import logging
import warnings
from typing import Any

import pytest
import structlog

from sidecar.ops.log import LINES_MAX, SUBJECTS_MAX, WINDOW_SECONDS, RateLimiter, configure


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """All lines written, each a JSON object."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_are_json_lines_with_time_and_level() -> None:
    """Off a terminal each event is one JSON object with UTC time, level, name and fields."""
    stream = io.StringIO()
    configure("auto", "info", stream)
    structlog.get_logger().info("batch.delivered", group="caf\udce9", count=5, text="two\nlines")
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "batch.delivered", "level": "info", "group": "caf\udce9", "count": 5, "text": "two\nlines"}


def test_a_terminal_gets_text() -> None:
    """On a terminal, and where asked for, lines are for people."""
    for stream, format_ in ((Terminal(), "auto"), (io.StringIO(), "console")):
        configure(format_, "info", stream)
        structlog.get_logger().info("batch.delivered", group="paid")
        assert "batch.delivered" in stream.getvalue()
        assert not stream.getvalue().startswith("{")


def test_lines_below_the_level_are_not_written() -> None:
    """The level holds for events and for libraries."""
    stream = io.StringIO()
    configure("json", "warning", stream)
    structlog.get_logger().info("batch.delivered")
    logging.getLogger("some.library").info("chatter")
    structlog.get_logger().warning("batch.retried")
    assert [line["event"] for line in lines(stream)] == ["batch.retried"]


def test_payloads_are_kept_out() -> None:
    """Bytes show as their length and long texts are cut, in both formats, and a traceback has no local variables."""
    for format_ in ("json", "console"):
        stream = io.StringIO()
        configure(format_, "debug", stream)
        secret = b"-".join((b"secret", b"payload"))
        structlog.get_logger().debug("message.seen", value=secret, view=memoryview(secret), text="x" * 5_000)
        try:
            raise ValueError("broken")
        except ValueError:
            structlog.get_logger().exception("batch.failed")
        written = stream.getvalue()
        assert "14 bytes" in written
        assert len(written) < 4_000
        assert "ValueError: broken" in written
        assert "secret-payload" not in written


def test_libraries_are_routed_in() -> None:
    """What a library logs or warns of becomes an event that names it."""
    stream = io.StringIO()
    configure("json", "info", stream)
    logging.getLogger("some.library").warning("lost %s of %d", "half", 8)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    first, second = lines(stream)
    assert (first["event"], first["logger"], first["message"]) == ("library.logged", "some.library", "lost half of 8")
    assert (second["event"], second["logger"]) == ("library.logged", "py.warnings")


def test_repeated_lines_are_limited_each_by_its_subject() -> None:
    """Of one event and group only so many lines are written; another group's still are; libraries are limited too."""
    stream = io.StringIO()
    configure("json", "info", stream)
    for number in range(3 * LINES_MAX):
        structlog.get_logger().info("batch.retried", group="paid", number=number)
        logging.getLogger("some.library").warning("attempt %d", number)
    structlog.get_logger().info("batch.retried", group="created")
    groups = [line.get("group", line.get("logger")) for line in lines(stream)]
    assert (groups.count("paid"), groups.count("created"), groups.count("some.library")) == (LINES_MAX, 1, LINES_MAX)


def test_the_next_line_tells_how_many_were_held_back() -> None:
    """After the window the event passes again, with the number of those that did not."""
    now = 0.0
    limiter = RateLimiter(lambda: now)
    admitted = [limiter.admit("batch.retried", "paid") for _ in range(LINES_MAX + 7)]
    assert admitted == [0] * LINES_MAX + [None] * 7
    now = WINDOW_SECONDS
    assert limiter.admit("batch.retried", "paid") == 7
    assert limiter.admit("batch.retried", "paid") == 0
    event = {"event": "batch.retried", "group": "paid"}
    for _ in range(LINES_MAX):
        limiter.admit("batch.retried", "paid", None, None, None, None)
    with pytest.raises(structlog.DropEvent):
        limiter(None, "info", dict(event))
    now = 2 * WINDOW_SECONDS
    assert limiter(None, "info", dict(event)) == {**event, "suppressed": 1}


def test_the_limiter_remembers_a_bounded_number_of_subjects() -> None:
    """However many subjects there are, the oldest are forgotten, and a new one always passes."""
    limiter = RateLimiter(lambda: 0.0)
    assert all(limiter.admit("event", number) == 0 for number in range(5 * SUBJECTS_MAX))
    assert len(limiter._seen) == SUBJECTS_MAX


def test_a_closed_stream_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """When nobody can read the log any more, logging does not raise."""
    stream = io.StringIO()
    configure("json", "info", stream)
    stream.close()
    structlog.get_logger().info("batch.delivered")
    logging.getLogger("some.library").warning("x")
    assert capsys.readouterr() == ("", "")
