"""A broker in memory and its source, for tests of the daemon and of users."""

from __future__ import annotations

from sidecar.sources.simulated.broker import Committed, SimulatedBroker, SimulatedMessage
from sidecar.sources.simulated.source import SimulatedColumns, SimulatedSource

__all__ = ["Committed", "SimulatedBroker", "SimulatedColumns", "SimulatedMessage", "SimulatedSource"]
