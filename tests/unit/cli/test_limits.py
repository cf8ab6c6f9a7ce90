"""Limits that are shipped follow from the defaults by the manual's rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sidecar.cli.file.validate import limit_mib, memory_mib
from sidecar.config.model import Settings

ROOT = Path(__file__).parents[3]
SETTINGS = {
    "source": {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["orders"]}},
    "sink": {"console": {}},
    "state": {"dir": "state"},
}


def with_(**more: object) -> Settings:
    """Settings with more than the least."""
    return Settings.model_validate({**SETTINGS, **more})


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("systemd/consumer-sidecar@.service", r"^MemoryMax=(\d+)M$"),
        ("docker-compose.yml", r"^    mem_limit: (\d+)m$"),
    ],
)
def test_shipped_limits_follow_the_rule(file: str, pattern: str) -> None:
    """A unit and a container may take what the defaults need, message ids included."""
    found = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert {*map(int, found)} == {limit_mib(with_(dedup={"by": "key"}))}


@pytest.mark.parametrize(
    ("more", "memory", "limit"),
    [
        ({}, 143, 384),
        ({"dedup": {"by": "key"}}, 207, 448),
        ({"dedup": {"by": "key", "ledger": {"sqlite": {}}}}, 143, 384),
        ({"memory": {"budget": "256MiB"}, "dedup": {"by": "key", "memory": "1GiB"}}, 1417, 1792),
    ],
)
def test_what_a_configuration_takes(more: dict[str, object], memory: int, limit: int) -> None:
    """Messages and ids have a budget each; with a ledger no id is in memory."""
    settings = with_(**more)
    assert (memory_mib(settings), limit_mib(settings)) == (memory, limit)
