"""Due times as the configuration has them: in the hash of the rules, and read from messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.config.loader import load
from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.runtime.build import due_reader_of
from tests.support.messages import ListColumns, Msg

ROOT = Path(__file__).parents[3]
MINIMAL = load(ROOT / "config" / "minimal.yaml", {"HOME": "/home/me"}).public()


def settings(**delay: Any) -> Settings:
    """The minimal file with these delays."""
    return Settings.model_validate({**MINIMAL, "delay": {"store": "local", **delay}})


def test_without_delays_the_hash_has_nothing_of_them() -> None:
    """A key of the section counts only where there is one; the hash itself is part of the format."""
    assert rules_hash(Settings.model_validate(MINIMAL)).hex() == "24efa4a7"


@pytest.mark.parametrize(
    "delay",
    [
        {"from": {"header": "at"}},
        {"from": {"json": "$.at"}},
        {"topics": {"orders": "15m"}},
        {"max": "31d"},
        {"beyond_max": "clamp"},
        {"malformed": "now"},
    ],
    ids=lambda delay: next(iter(delay)),
)
def test_what_decides_on_the_way_is_in_the_hash(delay: dict[str, Any]) -> None:
    """The section changes the hash, and so does each key that sends a message another way."""
    hashes = {rules_hash(found) for found in (Settings.model_validate(MINIMAL), settings(), settings(**delay))}
    assert len(hashes) == 3


def test_limits_and_order_are_not_in_the_hash() -> None:
    """Disk space and the order of topics send no message another way."""
    assert rules_hash(settings(disk_max="1GiB")) == rules_hash(settings())
    text = MINIMAL["source"]["kafka"]
    source = {"kafka": {**text, "topics": ["a", "b"]}}
    one, other = (
        Settings.model_validate({**MINIMAL, "source": source, "delay": {"store": "local", "topics": topics}})
        for topics in ({"a": "1m", "b": "2m"}, {"b": "2m", "a": "60s"})
    )
    assert rules_hash(one) == rules_hash(other)


def test_due_times_are_read_as_configured() -> None:
    """The example file holds what has the header, and all of its retry topic; without delays there is no reader."""
    found = load(ROOT / "config" / "delay.yaml", {})
    read = due_reader_of(found, ListColumns())
    assert read
    run = [Msg(timestamp=1_000), Msg(timestamp=1_000, headers=[("sidecar-deliver-at", b"1m")])]
    assert read(TopicPartition("orders", 0), run) == [None, 61_000]
    assert read(TopicPartition("orders-retry", 0), run) == [901_000, 61_000]
    assert due_reader_of(load(ROOT / "config" / "minimal.yaml", {"HOME": "/home/me"}), ListColumns()) is None
