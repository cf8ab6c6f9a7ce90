"""What is told of the daemon in one line, and at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from sidecar.config.model import Settings
from sidecar.core.books import Books
from sidecar.daemon.lifecycle import Daemon
from sidecar.daemon.status.keeper import status_line
from sidecar.errors import UnavailableError
from sidecar.ops.health import KINDS, Problem
from sidecar.ops.snapshot import StatusSnapshot

BROKER_STEP = KINDS["broker"].next_step


def snapshot(**change: Any) -> StatusSnapshot:
    """A daemon that has done something."""
    totals = Books(consumed=12_000, delivered=11_990, in_flight=10)
    return StatusSnapshot("g", "2026-01-01T00:00:00.000+00:00", "1", live=True, totals=totals, **change)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"lag": 1_500}, "12,000 consumed, 11,990 delivered, 10 in flight, lag 1,500; healthy"),
        (
            {"problems": (Problem("broker", "first"), Problem("group", "second"))},
            f"12,000 consumed, 11,990 delivered, 10 in flight, lag unknown; degraded: first. Next: {BROKER_STEP}",
        ),
    ],
)
def test_the_line_for_systemctl(change: dict[str, Any], line: str) -> None:
    """The books in short, the lag where it is known, and the health."""
    assert status_line(snapshot(**change)) == line


def test_a_repaired_file_is_told(tmp_path: Path) -> None:
    """What the file sink cut off at the start has its line in the log."""
    rows = tmp_path / "rows"
    rows.write_bytes(b"whole\ntorn")
    (tmp_path / "rows.parts").write_text("6 part\n")
    settings = Settings.model_validate(
        {
            "source": {"kafka": {"bootstrap_servers": "localhost:9", "group_id": "g", "topics": ["orders"],
                                 "start_timeout": "100ms"}},
            "sink": {"file": {"path": str(rows)}},
            "state": {"dir": str(tmp_path / "state")},
            "admin": {"listen": "off"},
        }
    )  # fmt: skip
    with structlog.testing.capture_logs() as lines, pytest.raises(UnavailableError):
        Daemon(settings, lambda: False).run()
    assert [line["reason"] for line in lines if line["event"] == "file.repaired"] == [
        "4 bytes of a write that was cut short were removed"
    ]
