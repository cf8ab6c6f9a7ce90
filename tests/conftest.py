"""What holds for all tests: the end of the shared broker's log stands with each failure of a test that uses it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.support.kafka import KafkaBroker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the broker said, when a test failed that uses it."""
    report = yield
    broker: Any = getattr(item, "funcargs", {}).get("kafka")
    if report.failed and isinstance(broker, KafkaBroker):
        report.sections.append(("broker", broker.log_tail()))
    return report
