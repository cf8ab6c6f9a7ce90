"""The comparison of C with Python on a smaller scale, with a library that stops at the first fault of memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios import lane
from tests.support.kafka import Broker

BEYOND = """
import sidecar_fastlane
sidecar_fastlane.Library().c.fl_xxh3(b"x" * 100_000, 200_000)
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def test_no_access_is_beyond_bounds_and_nothing_leaks(kafka: Broker, tmp_path: Path) -> None:
    """AddressSanitizer and UBSan find nothing in 12 random configurations, and no byte is left."""
    found = lane.compared(kafka, tmp_path, 12, 3_000, sanitized=True, seed=2_001)
    assert found.messages == 12 * 3_000


def test_the_sanitizer_is_there() -> None:
    """A read beyond the end of a text ends the process."""
    env = lane.environment(is_sanitized=True)
    done = subprocess.run([sys.executable, "-c", BEYOND], env=env, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "heap-buffer-overflow" in done.stderr
