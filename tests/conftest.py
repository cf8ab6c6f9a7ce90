"""What holds for all tests: examples take their time, a broker's log stands with a failure, PostgreSQL is shared."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

from tests.support.kafka import KafkaBroker
from tests.support.postgresql import Database, PostgresqlServer

# Else gRPC runs code of its own in every child before its program begins, and now and then aborts there.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

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


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Database]:
    """The PostgreSQL that tests share: the one whose URL `SIDECAR_TEST_POSTGRESQL` holds, or one started here."""
    named = os.environ.get("SIDECAR_TEST_POSTGRESQL")
    if named:
        yield Database(named)
        return
    with PostgresqlServer() as server:
        yield server
