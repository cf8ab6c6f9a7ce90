"""What holds for all tests: examples may take their time; the broker's log stands with a failure of who uses it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

from tests.support.kafka import KafkaBroker

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the broker said, when a test failed that uses it."""
    report = yield
    broker: Any = getattr(item, "funcargs", {}).get("kafka")
    if report.failed and isinstance(broker, KafkaBroker):
        report.sections.append(("broker", broker.log_tail()))
    return report
